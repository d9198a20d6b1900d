/**
 * Compare two runs: the same query, two columns, correct answers ticked where they are known.
 */

import { ApiError } from "../api.js";
import { address, number } from "../address.js";
import { announce, h, icon } from "../dom.js";
import {
  failure,
  firstCorrect,
  heading,
  load,
  photo,
  photoGrid,
  sentenceList,
  state,
  unknownWords,
  waitingCards,
  waitingRows,
} from "../elements.js";
import { pick } from "../picker.js";
import {
  entryIn,
  forRun,
  imagesFor,
  photoOf,
  sentenceIn,
  textsFor,
  uploadedFile,
} from "../queries.js";
import { uploadedPicture } from "../uploaded.js";
import { fillIn, sentenceForm } from "./photos.js";

const TITLE = "Compare";
const SHOWN = 12;
const RANKED = 100; // among which the correct answer is looked for

export function show(page) {
  const { run, parameters, status } = page;
  const lead = "One query, two runs: what each finds, and where the correct answer is.";
  if (status.runs.length < 2) {
    page.root.append(
      heading(TITLE, lead),
      state(
        "compare",
        "One run is served",
        h("p", {}, "Give two to compare them, for example before and after round two:"),
        h("code", {}, "aoq serve RUN OTHER"),
      ),
    );
    return Promise.resolve();
  }
  const other =
    status.runs.find((one) => one.name === parameters.other && one !== run) ??
    status.runs.find((one) => one !== run);
  const query = {
    text: parameters.text ?? "",
    number: number(parameters, "text_number"),
    image: number(parameters, "image"),
    upload: parameters.upload ?? null,
  };
  const place = h("section", { "aria-label": "Comparison" });
  page.root.append(
    heading(TITLE, lead),
    runChoices(page, run, other),
    askLine(page, other, query),
    place,
  );
  if (!query.text && query.number === null && query.image === null && !query.upload) {
    place.append(
      state(
        "compare",
        "Nothing to compare yet",
        h(
          "p",
          {},
          "Type a sentence, or pick a caption or a photo of the index: then the correct answers are ticked.",
        ),
      ),
    );
    return Promise.resolve();
  }
  return compared(page, place, [run, other], query);
}

function runChoices(page, run, other) {
  const go = async (left, right) => {
    const parameters = await forRun(page.parameters, run, left);
    if (page.alive()) page.go("compare", { ...parameters, other: right.name });
  };
  const named = (event) => page.status.runs.find((one) => one.name === event.target.value);
  const choice = (name, label, chosen, barred, choose) =>
    h(
      "label",
      {},
      h("span", {}, label),
      h(
        "select",
        {
          id: name,
          onchange: (event) => choose(named(event)),
        },
        ...page.status.runs
          .filter((one) => one !== barred)
          .map((one) => h("option", { value: one.name, selected: one === chosen }, one.label)),
      ),
    );
  return h(
    "div",
    { class: "choices-of-runs" },
    choice("run", "Left", run, other, (left) => go(left, other)),
    h(
      "button",
      { type: "button", id: "swap", onclick: () => go(other, run) },
      icon("shuffle"),
      "Swap",
    ),
    choice("other", "Right", other, run, (right) => go(run, right)),
  );
}

function askLine(page, other, query) {
  const go = (parameters) =>
    page.go("compare", { run: page.run.name, other: other.name, ...parameters });
  const picked = (kind, parametersOf) => async () => {
    const entry = await pick(page, kind);
    if (entry) go(parametersOf(entry));
  };
  const caption = picked("text", (entry) => ({ text_number: entry.number, text: entry.text }));
  const picture = picked("image", (entry) => ({ image: entry.number }));
  return h(
    "div",
    { class: "ask-line" },
    sentenceForm(
      page,
      query.image === null && !query.upload ? query.text : "",
      (text) => go({ text }),
      { button: "Compare" },
    ),
    h(
      "div",
      { class: "line" },
      h(
        "button",
        { type: "button", id: "pick-caption", onclick: caption },
        icon("sentences"),
        "Pick a caption",
      ),
      h(
        "button",
        { type: "button", id: "pick-photo", onclick: picture },
        icon("photos"),
        "Pick a photo",
      ),
    ),
  );
}

function compared(page, place, runs, query) {
  const byPhoto = query.image !== null || Boolean(query.upload);
  const waiting = () =>
    h(
      "div",
      { class: "column" },
      h("div", { class: "column-top waiting" }, h("i"), h("i")),
      byPhoto ? waitingRows(SHOWN) : waitingCards(SHOWN),
    );
  return load(page, place, {
    waiting: [
      h("div", { class: "verdict waiting" }, h("i")),
      h("div", { class: "columns" }, waiting(), waiting()),
    ],
    ask: () =>
      Promise.all([
        byPhoto ? shownPicture(page, query) : null,
        ...runs.map((run) => answerOf(run, query, runs[0], byPhoto)),
      ]),
    show: ([picture, ...answers]) => {
      const kind = byPhoto ? "sentences" : "photos";
      if (!byPhoto) fillIn(answers.find((answer) => answer.query)?.query.text ?? "");
      const keyOf = keyIn(runs);
      const found = answers.map((answer) => answer.hits && new Set(answer.hits.map(keyOf)));
      const onlyHere = answers.map(
        (_, at) => (hit) => Boolean(found[1 - at]) && !found[1 - at].has(keyOf(hit)),
      );
      const sentence = verdict(answers, onlyHere[0], runs, kind);
      announce(sentence);
      const columns = answers.map((answer, at) =>
        column(runs[at], answer, onlyHere[at], byPhoto),
      );
      return [
        h("div", { class: "verdict" }, picture, h("p", {}, sentence)),
        h("div", { class: `columns ${kind}` }, ...columns),
      ];
    },
  });
}

async function shownPicture(page, query) {
  if (query.upload) return uploadedPicture(uploadedFile(query.upload));
  return photo(await photoOf(page.run.name, query.image), { eager: true });
}

/** A run's answer, or its error: one run that fails does not hide what the other found. */
async function answerOf(run, query, first, byPhoto) {
  try {
    const asked = run === first ? query : await translated(run, query, first);
    const answer = await (byPhoto ? textsFor : imagesFor)(run.name, asked, RANKED);
    return { ...answer, asked, ranked: answer.hits, hits: answer.hits.slice(0, SHOWN) };
  } catch (error) {
    if (error instanceof ApiError) return { error };
    throw error;
  }
}

/** A query for another run: the same entry has another number where indexes differ. */
async function translated(run, query, first) {
  if (query.image !== null) {
    const { there } = await entryIn(run.name, first.name, "image", query.image);
    if (there) return { ...query, image: there.number };
    throw new ApiError(
      `The index of ${run.label} does not hold this photo, so it cannot be its query${run.reads_pictures ? "; upload the photo instead" : ""}.`,
      404,
    );
  }
  return { ...query, ...(await sentenceIn(run.name, first.name, query)) };
}

/** What is the same in two runs: a number where they have one index; ids may be there twice. */
function keyIn([one, other]) {
  const isShared = one.index === other.index;
  return (hit) => (isShared ? hit.number : JSON.stringify([hit.id, hit.text]));
}

/**
 * What the two answers have in common, and, where both know what is correct, which has it further
 * up, as a sentence.
 */
function verdict(answers, onlyLeft, runs, kind) {
  if (answers.some((answer) => answer.error))
    return "There is nothing to compare where a run gives no answer.";
  const shown = answers[0].hits;
  const shared = shown.filter((hit) => !onlyLeft(hit)).length;
  const common = `${shared} of the first ${shown.length} ${kind} ${shared === 1 ? "is" : "are"} in both.`;
  const [left, right] = answers.map((answer) => answer.ranked);
  const isKnown = (hits) => hits.some((hit) => hit.correct !== null);
  if (!isKnown(left) || !isKnown(right)) return common;
  return `${rankVerdict(firstCorrect(left), firstCorrect(right), runs)} ${common}`;
}

function rankVerdict(left, right, runs) {
  if (left === right)
    return left === null
      ? `Neither has a correct answer among its first ${RANKED}.`
      : `Both have a correct answer at rank ${left}.`;
  const [winner, better, worse] =
    right === null || (left !== null && left < right)
      ? [runs[0], left, right]
      : [runs[1], right, left];
  const than =
    worse === null ? `the other not among its first ${RANKED}` : `the other at rank ${worse}`;
  return `${winner.label} has its first correct answer at rank ${better}, ${than}.`;
}

function column(run, answer, onlyHere, byPhoto) {
  const top = h(
    "div",
    { class: "column-top" },
    h("h2", {}, run.label),
    h("p", {}, answer.error ? run.model : standing(answer.ranked, run)),
  );
  if (answer.error) return h("div", { class: "column" }, top, h("div", {}, failure(answer.error)));
  const extra = (hit) => onlyHere(hit) && h("span", { class: "only" }, "only here");
  const list = byPhoto
    ? sentenceList(
        answer.hits,
        (hit) =>
          address("photo", {
            run: run.name,
            image: answer.asked.image,
            upload: answer.asked.upload,
            text_number: hit.number,
            text: hit.text,
          }),
        { extra },
      )
    : photoGrid(
        answer.hits,
        (hit) =>
          address("photo", {
            run: run.name,
            image: hit.number,
            text: answer.query.text,
            text_number: answer.query.number,
          }),
        { extra },
      );
  return h("div", { class: "column" }, top, h("div", {}, unknownWords(answer.unknown_words), list));
}

function standing(hits, run) {
  if (!hits.some((hit) => hit.correct !== null)) return run.model;
  const rank = firstCorrect(hits);
  return rank ? `first correct at rank ${rank}` : `no correct one in the first ${hits.length}`;
}
