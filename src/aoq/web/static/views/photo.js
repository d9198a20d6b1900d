/**
 * A photo: large, with what is known of it, photos that look like it, and what the model looked at
 * where a sentence is asked. Arrow keys go through the photos that were found, Escape goes back.
 */

import { address, number } from "../address.js";
import { attention } from "../attention.js";
import { h, icon } from "../dom.js";
import {
  heading,
  load,
  photo,
  photoGrid,
  pictureAddress,
  prose,
  state,
  waitingCards,
} from "../elements.js";
import { pick, randomSeed } from "../picker.js";
import {
  forRun,
  pairFor,
  photosLike,
  photoWithCaptions,
  sampleOf,
  uploadedFile,
} from "../queries.js";
import { selectionBar, selectionOf, whenSelected } from "../selection.js";
import { uploadedPicture } from "../uploaded.js";
import { sentenceForm } from "./photos.js";

const TITLE = "Attention";
const SAMPLE = 12;
const SIMILAR = 6;

export function show(page) {
  const { parameters } = page;
  const query = { image: number(parameters, "image"), upload: parameters.upload ?? null };
  if (query.image === null && !query.upload) return choose(page);
  const sentence = { text: parameters.text ?? "", number: number(parameters, "text_number") };
  const title = h("h1", { tabindex: -1 }, query.upload ? "Your photo" : "Photo");
  const place = h("div", { class: "detail" });
  const similar = h("section", { class: "similar", "aria-label": "Similar photos" });
  page.root.append(
    h("div", { class: "photo-top" }, title, ...amongResults(page, query, sentence)),
    place,
    similar,
    selectionBar(page),
  );
  return load(page, place, {
    waiting: [
      h("div", { class: "stage waiting" }),
      h("div", { class: "panel waiting" }, h("i"), h("i"), h("i")),
    ],
    ask: () => pictured(page, query),
    show: (known) => {
      if (known.entry) nameIt(title, known.entry);
      if (known.entry || uploadedFile(query.upload)) showSimilar(page, query, similar);
      return detail(page, query, known, sentence);
    },
  });
}

/** The path of a photo below the folder that was indexed; its folder in quieter ink. */
function nameIt(title, { id }) {
  const at = id.lastIndexOf("/") + 1;
  title.replaceChildren(h("span", { class: "folder" }, id.slice(0, at)), id.slice(at));
  document.title = `${id} · aoq`;
}

/** The way back to what was found, and to the photos before and after this one. */
function amongResults(page, { image }, sentence) {
  const results = page.results();
  const at = results ? results.numbers.indexOf(image) : -1;
  if (at < 0) return [];
  const to = (place) =>
    place >= 0 && place < results.numbers.length
      ? address("photo", {
          run: page.run.name,
          image: results.numbers[place],
          text: sentence.text,
          text_number: sentence.number,
        })
      : null;
  const step = (place, drawing, name) =>
    h(
      to(place) ? "a" : "span",
      { class: "button step", href: to(place), "aria-label": name, "aria-disabled": to(place) ? null : "true" },
      icon(drawing),
    );
  const keys = { ArrowLeft: to(at - 1), ArrowRight: to(at + 1), Escape: results.hash };
  const press = (event) => {
    const isBusy = event.target.closest("input, select, .regions, .words, .grid, dialog, ul, ol");
    if (isBusy || event.altKey || event.ctrlKey || event.metaKey || !keys[event.key]) return;
    event.preventDefault();
    if (event.key === "Escape") location.hash = keys.Escape;
    else page.replace(keys[event.key]);
  };
  document.addEventListener("keydown", press, { signal: page.signal });
  return [
    h(
      "nav",
      { class: "among", "aria-label": "Photos found" },
      h("a", { class: "button", id: "back", href: results.hash }, icon("back"), "Results"),
      step(at - 1, "back", "Previous photo"),
      h("span", { class: "number" }, `${at + 1} of ${results.numbers.length}`),
      step(at + 1, "forward", "Next photo"),
    ),
  ];
}

/** Photos that look like this one. */
function showSimilar(page, query, place) {
  load(page, place, {
    waiting: [h("h2", { class: "small" }, "Similar photos"), waitingCards(SIMILAR)],
    ask: () => photosLike(page.run.name, query, SIMILAR),
    show: ({ hits }) =>
      hits.length
        ? [
            h("h2", { class: "small" }, "Similar photos"),
            photoGrid(hits.map(withoutScore), (hit) =>
              address("photo", { run: page.run.name, image: hit.number }),
            ),
          ]
        : [],
  });
}

/** How alike two photos are is no number that means anything to a person. */
function withoutScore(hit) {
  return { ...hit, score: undefined };
}

/** The picture and what is known of it; it is decoded first, so that nothing moves when it comes. */
async function pictured(page, { image, upload }) {
  if (upload) return { picture: uploadedPicture(uploadedFile(upload)), captions: [] };
  const known = await photoWithCaptions(page.run.name, image);
  const picture = photo(known.entry, { size: "full", eager: true });
  await picture.decode?.().catch(() => {});
  return { ...known, picture };
}

/** Without a photo: some to choose from, as the research view of attention has it. */
export function choose(page) {
  const { run } = page;
  const place = h("section", { "aria-label": "Photos" });
  const another = async () => {
    const entry = await pick(page, "image");
    if (entry) page.go("photo", { image: entry.number });
  };
  page.root.append(
    heading(
      TITLE,
      "Choose a photo, then point at the words of a sentence to see which regions they look at.",
    ),
    run.has_attention ? "" : noAttention(page, attentive(page).map(({ name }) => ({ run: name }))),
    h(
      "div",
      { class: "line" },
      h(
        "button",
        { type: "button", id: "pick", onclick: another },
        icon("search"),
        "Pick by a word",
      ),
      run.reads_pictures &&
        h(
          "a",
          { class: "button", href: address("sentences", { run: run.name }) },
          icon("upload"),
          "Upload one",
        ),
    ),
    place,
  );
  return load(page, place, {
    waiting: [waitingCards(SAMPLE)],
    ask: () =>
      sampleOf(run.name, "image", {
        limit: SAMPLE,
        seed: (page.memory.seed ??= randomSeed()),
      }),
    show: (answer) =>
      answer.entries.length
        ? [
            photoGrid(answer.entries, (entry) =>
              address("photo", { run: run.name, image: entry.number }),
            ),
          ]
        : [state("photos", "The index has no photos")],
  });
}

function detail(page, query, { entry, picture, captions, columns = {} }, asked) {
  const { run } = page;
  const sentence = sentenceOf(asked, captions);
  const shape = picture.naturalWidth / picture.naturalHeight;
  const stage = h(
    "div",
    { class: "stage-place", style: shape > 0 ? { "--shape": String(shape) } : {} },
    h("div", { class: "stage" }, picture),
  );
  const words = h("div", { class: "words-place" });
  const here = (parameters) => address("photo", { run: run.name, ...query, ...parameters });
  const panel = h(
    "div",
    { class: "panel" },
    facts(columns),
    actions(page, query, entry),
    captions.length > 0 && h("h2", { class: "small" }, "Captions"),
    captions.length > 0 &&
      h(
        "ul",
        { class: "captions" },
        ...captions.map((caption) =>
          h(
            "li",
            {},
            h(
              "a",
              {
                href: here({ text_number: caption.number, text: caption.text }),
                "aria-current": caption.text === sentence.text ? "true" : null,
              },
              caption.text,
            ),
          ),
        ),
      ),
    h(
      "section",
      { class: "looked" },
      h("h2", { class: "small" }, run.has_attention ? "What the model looked at" : "How well a sentence fits"),
      words,
      sentenceForm(page, "", (text) => page.go("photo", { ...query, text }), {
        button: run.has_attention ? "Look" : "Score",
        example: "A sentence of your own",
      }),
    ),
    links(page, query, entry),
  );
  lookAt(page, { query, sentence, stage, words, picture });
  return [stage, panel];
}

const UNNAMED = ["folder", "name"]; // the title says them
const NAMES = { date: "Taken", width: "Size", split: "Split" };

/** What is known of a photo, by columns of the index. */
function facts(columns) {
  const { width, height } = columns;
  const shown = { ...columns };
  if (width && height) shown.width = `${width} × ${height}`;
  delete shown.height;
  if (shown.date) shown.date = shown.date.replace("T", " ");
  const rows = Object.entries(shown).filter(([name]) => !UNNAMED.includes(name));
  if (!rows.length) return null;
  return h(
    "dl",
    { class: "facts" },
    ...rows.flatMap(([name, value]) => [
      h("dt", {}, NAMES[name] ?? name),
      h("dd", {}, String(value)),
    ]),
  );
}

/** What can be done with a photo. */
function actions(page, { image, upload }, entry) {
  const { run } = page;
  const hasPicture = entry?.picture && !entry.picture_gone;
  const original = hasPicture && pictureAddress(entry.picture, "original");
  const name = entry && `${entry.id.split("/").at(-1).replace(/\.\w+$/, "")}.jpg`;
  return h(
    "div",
    { class: "line actions" },
    h(
      "a",
      { class: "button strong", id: "more-like", href: address("photos", { run: run.name, like: image, upload }) },
      icon("search"),
      "More like this",
    ),
    hasPicture &&
      h("a", { class: "button", href: original, download: name }, icon("download"), "Download"),
    hasPicture &&
      h("a", { class: "button", href: original, target: "_blank", rel: "noopener" }, "Full size"),
    entry && selectButton(page, entry),
  );
}

function selectButton(page, entry) {
  const selection = selectionOf(page.run);
  const button = h("button", {
    type: "button",
    id: "select",
    onclick: () => selection.toggle(entry, page.parameters.text ?? ""),
  });
  const draw = () => {
    button.setAttribute("aria-pressed", String(selection.has(entry)));
    button.replaceChildren(icon("tick"), selection.has(entry) ? "Selected" : "Select");
  };
  whenSelected(draw, page.signal);
  draw();
  return button;
}

/** The sentence that was asked for, or else the first caption. */
function sentenceOf(asked, captions) {
  if (asked.text) return asked;
  if (asked.number === null) return captions[0] ?? { text: "", number: null };
  return captions.find((caption) => caption.number === asked.number) ?? asked;
}

function links(page, query, entry) {
  const { run } = page;
  return h(
    "p",
    { class: "links" },
    run.texts > 0 &&
      h(
        "a",
        { href: address("sentences", { run: run.name, ...query }) },
        "Sentences for this photo",
      ),
    page.status.runs.length > 1 &&
      h("a", { href: address("compare", { run: run.name, ...query }) }, "Compare runs on it"),
    run.has_negatives &&
      entry?.split === "train" && // where negatives are mined
      h(
        "a",
        { href: address("negatives", { run: run.name, kind: "image", number: query.image }) },
        "Its mined negatives",
      ),
  );
}

function lookAt(page, { query, sentence, stage, words, picture }) {
  const { run } = page;
  if (!run.has_attention) {
    const asked = { ...query, text: sentence.text, text_number: sentence.number };
    const isAsked = sentence.text || sentence.number !== null;
    return load(page, words, {
      waiting: [plainSentence(sentence)],
      ask: () =>
        Promise.all([
          isAsked ? pairFor("score", run.name, query, sentence) : null,
          ...attentive(page).map((other) => forRun(asked, run, other)),
        ]),
      show: ([fit, ...parameters]) => [
        plainSentence(sentence),
        scored(fit) ?? h("p", { class: "readout" }, "Type a sentence to see how well it fits."),
        noAttention(page, parameters),
      ],
    });
  }
  if (!sentence.text && sentence.number === null)
    return words.append(
      h("p", { class: "readout" }, "Type a sentence to see where its words look."),
    );
  return load(page, words, {
    waiting: [plainSentence(sentence), h("p", { class: "readout" }, "Looking…")],
    ask: () => pairFor("attention", run.name, query, sentence),
    show: (map) => {
      const parts = attention(map, picture);
      stage.replaceChildren(parts.stage);
      return [
        parts.words,
        parts.readout,
        !map.boxes &&
          h(
            "p",
            { class: "hint" },
            "The data set does not say where its regions lie, so they are numbered squares.",
          ),
        scored(map),
      ].filter(Boolean);
    },
  });
}

/** The score of a pair, with its probability where the model gives one. */
function scored(fit) {
  if (!fit) return null;
  const likely = fit.probability ?? null;
  const share = likely === null ? "" : `, ${(100 * likely).toFixed(1)} % that they belong together`;
  return h("p", { class: "hint" }, `Score ${fit.score.toFixed(3)}${share}`);
}

function plainSentence(sentence) {
  return h("p", { class: "words" }, sentence.text);
}

function attentive(page) {
  return page.status.runs.filter((run) => run.has_attention);
}

/** Why this model has no attention, and which of the runs served has, each with its parameters. */
function noAttention(page, parameters) {
  return h(
    "div",
    { class: "remark quiet" },
    icon("attention"),
    h(
      "span",
      {},
      ...prose(page.run.attention_reason),
      ...attentive(page).flatMap((run, at) => [
        " ",
        h("a", { href: address("photo", parameters[at]) }, `Look with ${run.label}`),
      ]),
    ),
  );
}
