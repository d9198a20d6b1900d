/**
 * Elements that several views share: states, score bars, cards of photos, rows of sentences.
 */

import { announce, arrowKeys, h, icon } from "./dom.js";

/** The heading of a view with a sentence that says what it is for. */
export function heading(title, lead) {
  return h("div", { class: "heading" }, h("h1", { tabindex: -1 }, title), h("p", {}, lead));
}

/** A panel that says why there is nothing to see, and what can be done. */
export function state(name, title, ...content) {
  return h("div", { class: "state" }, icon(name), h("h2", {}, title), ...content);
}

/** A sentence of the server; what it puts between backticks is a command. */
export function prose(text) {
  return text.split("`").map((part, at) => (at % 2 ? h("code", {}, part) : part));
}

/** The server's own sentence, with a way to try again where that may help. */
export function failure(error, again) {
  return h(
    "div",
    { class: "state failed", role: "alert" },
    icon("warning"),
    h("p", {}, ...prose(error.message)),
    again && error.passes && h("button", { type: "button", onclick: again }, "Try again"),
  );
}

const turns = new WeakMap(); // whose answer a place waits for

/**
 * Fill a place with an answer: its shape while waiting, then the answer or the error. What comes
 * after the person has left the view, or has asked for something else there, is dropped.
 */
export async function load(page, place, { waiting = [], ask, show }) {
  const turn = {};
  const isCurrent = () => page.alive() && turns.get(place) === turn;
  turns.set(place, turn);
  place.replaceChildren(...waiting);
  place.setAttribute("aria-busy", "true");
  let content;
  try {
    const answer = await ask();
    if (!isCurrent()) return;
    content = show(answer);
  } catch (error) {
    if (!("status" in error)) console.error(error);
    if (!isCurrent()) return;
    content = [failure(error, () => load(page, place, { waiting, ask, show }))];
  }
  place.replaceChildren(...content);
  place.removeAttribute("aria-busy");
}

/** A number of things, in words that fit it: "1 photo", "1,200 photos". */
export function countOf(number, noun) {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}

/** The address of a picture in the size that is needed: `thumb`, `full` or `original`. */
export function pictureAddress(picture, size) {
  const address = new URL(picture, location.origin);
  address.searchParams.set("size", size);
  return address.pathname + address.search;
}

/**
 * A photo of the index, or what stands for it where the data set has features only. Where its
 * caption is beside it, a screen reader need not read it twice.
 */
export function photo(entry, { size = "thumb", eager = false, captioned = false } = {}) {
  const name = entry.text || `Photo ${entry.id}`;
  if (entry.picture_gone)
    return h(
      "span",
      { class: "no-picture", role: "img", "aria-label": `${name} (the photo is gone)` },
      icon("photos"),
      `${entry.id}: the photo is gone`,
    );
  if (!entry.picture)
    return h(
      "span",
      { class: "no-picture", role: "img", "aria-label": name },
      icon("photos"),
      entry.id,
    );
  return h("img", {
    src: pictureAddress(entry.picture, size),
    alt: captioned ? "" : name,
    loading: eager ? "eager" : "lazy",
    decoding: "async",
  });
}

/**
 * How good a hit is. A bar shows how likely it is right, where that was measured; a score alone
 * means nothing beside other queries, so it has no bar.
 */
function scoreMark({ score, probability = null }) {
  if (score === null || score === undefined) return null;
  if (probability === null)
    return h(
      "span",
      { class: "score" },
      h("span", { class: "number" }, h("span", { class: "unseen" }, "score "), score.toFixed(3)),
    );
  return h(
    "span",
    { class: "score", title: `score ${score.toFixed(3)}` },
    h(
      "span",
      { class: "bar", "aria-hidden": "true" },
      h("span", { style: { width: `${(100 * probability).toFixed(1)}%` } }),
    ),
    h(
      "span",
      { class: "number" },
      h("span", { class: "unseen" }, "likely right: "),
      percent(probability),
    ),
  );
}

/** A share in whole percent, which never claims certainty. */
export function percent(share) {
  if (share > 0 && share < 0.01) return "< 1 %";
  return `${Math.min(99, Math.round(100 * share))} %`;
}

export function tick() {
  return h("span", { class: "tick" }, icon("tick"), h("span", {}, "correct"));
}

/**
 * Photos as a grid of cards; each leads where `leadsTo` says. With `choice`, each can be selected:
 * by its box, or by X where the focus is on it.
 */
export function photoGrid(hits, leadsTo, { extra = () => null, choice = null } = {}) {
  const cards = hits.map((hit, at) => {
    const caption = [extra(hit), hit.text].filter(Boolean);
    const mark = scoreMark(hit);
    return h(
      "li",
      { class: hit.correct ? "card correct" : "card" },
      h(
        "a",
        { href: leadsTo(hit), title: hit.id },
        h(
          "span",
          { class: "frame" },
          photo(hit, { eager: at < 12, captioned: Boolean(hit.text) }),
          hit.correct && tick(),
          hit.duplicates?.length > 0 && h("span", { class: "copies" }, `+${hit.duplicates.length}`),
        ),
        h(
          "span",
          { class: "below" },
          mark && h("span", { class: "ranked" }, h("span", { class: "rank" }, `${at + 1}`), mark),
          caption.length > 0 && h("span", { class: "caption" }, ...caption),
        ),
      ),
      choice && choiceBox(hit, choice),
    );
  });
  const grid = h("ol", { class: "grid" }, ...cards);
  if (choice) grid.addEventListener("keydown", selectByKey);
  return arrowKeys(grid, "a");
}

function choiceBox(hit, { isChosen, toggle }) {
  const name = hit.text || `Photo ${hit.id}`;
  const box = h("input", {
    type: "checkbox",
    value: hit.number,
    "aria-label": `Select: ${name}`,
    checked: isChosen(hit),
    onchange: () => toggle(hit),
  });
  return h("label", { class: "choose" }, box);
}

function selectByKey(event) {
  if (event.key !== "x" || event.ctrlKey || event.metaKey || event.altKey) return;
  event.target.closest(".card")?.querySelector(".choose input")?.click();
}

/** Sentences as a list of rows with scores. */
export function sentenceList(hits, leadsTo, { extra = () => null } = {}) {
  const rows = hits.map((hit, at) =>
    h(
      "li",
      { class: hit.correct ? "correct" : null },
      h(
        "a",
        { href: leadsTo(hit) },
        h("span", { class: "rank" }, `${at + 1}`),
        h("span", { class: "text" }, hit.text, hit.correct && tick(), extra(hit)),
        scoreMark(hit),
      ),
    ),
  );
  return arrowKeys(h("ol", { class: "rows" }, ...rows), "a");
}

export function waitingCards(count) {
  const card = () =>
    h(
      "li",
      { class: "card waiting" },
      h("span", { class: "frame" }),
      h("span", { class: "below" }, h("i"), h("i")),
    );
  return h("ol", { class: "grid", "aria-hidden": "true" }, ...Array.from({ length: count }, card));
}

export function waitingRows(count) {
  const row = () => h("li", { class: "waiting" }, h("i"));
  return h("ol", { class: "rows", "aria-hidden": "true" }, ...Array.from({ length: count }, row));
}

/** Words of the query that the run has never seen. */
export function unknownWords(words) {
  if (!words?.length) return null;
  const named = words.flatMap((word, at) => [at ? ", " : "", h("b", {}, word)]);
  const plural = words.length > 1;
  return h(
    "p",
    { class: "remark" },
    icon("warning"),
    h(
      "span",
      {},
      ...named,
      plural ? " are" : " is",
      " not in the vocabulary of this run, to which all such words are the same.",
    ),
  );
}

/** The rank of the first correct answer, from 1; null where none is among the hits. */
export function firstCorrect(hits) {
  const at = hits.findIndex((hit) => hit.correct);
  return at < 0 ? null : at + 1;
}

const RANKED_BY = { words: "by captions", merged: "by looks and captions" };

/** One line on an answer: how many, how long, how found, and where the first correct one is. */
export function summary(answer, total, noun, teacher) {
  const known = answer.hits.some((hit) => hit.correct !== null);
  const rank = firstCorrect(answer.hits);
  const line = [
    `Best ${answer.hits.length} of ${total.toLocaleString("en")} ${noun}`,
    seconds(answer.seconds),
    RANKED_BY[answer.ranked_by] ?? null,
    answer.exact ? null : `proposed by ${teacher.label}, ranked by this model`,
    known && (rank ? `first correct at rank ${rank}` : "no correct one among them"),
  ].filter(Boolean);
  announce(`${line.join(", ")}.`);
  return h("p", { class: "summary" }, line.join(" · "));
}

const WORTH_SHOWING = 0.25; // probability below which the best hit is no good one

/** What to say where even the best hit is hardly right. */
export function nothingFits({ hits, calibration }) {
  const best = hits[0]?.probability ?? 1;
  if (best >= WORTH_SHOWING) return null;
  const measured = calibration
    ? `of such hits on ${calibration.queries.toLocaleString("en")} queries of ${calibration.split}, ${percent(best)} were right`
    : `the best of these is right with ${percent(best)}, the model says`;
  return h(
    "p",
    { class: "remark" },
    icon("warning"),
    h("span", {}, h("b", {}, "Nothing fits well"), `: ${measured}.`),
  );
}

/** What the percentages beside bars are; null where there are none. */
export function percentagesOf({ hits, calibration }) {
  if (!hits.some((hit) => (hit.probability ?? null) !== null)) return null;
  const source = calibration
    ? `how many of such hits were right, on ${calibration.queries.toLocaleString("en")} queries of ${calibration.split}`
    : "how likely each fits, as the model says";
  return h("p", { class: "hint" }, `The bars show ${source}.`);
}

function seconds(value) {
  return value < 1 ? `${Math.max(1, Math.round(1000 * value))} ms` : `${value.toFixed(1)} s`;
}

/** A button for more answers, where there are more; keeps what is shown. */
export function moreButton(shown, possible, ask) {
  if (shown >= possible) return null;
  return h(
    "button",
    {
      type: "button",
      id: "more",
      class: "more",
      onclick: () => ask(Math.min(possible, 2 * shown)),
    },
    "Show more",
  );
}
