/**
 * Mined negatives: an anchor, its positives, and the wrong partners a teacher finds most alike.
 */

import { address, number } from "../address.js";
import { ofRun } from "../api.js";
import { h, icon } from "../dom.js";
import {
  failure,
  heading,
  load,
  photo,
  photoGrid,
  prose,
  sentenceList,
  state,
  waitingCards,
  waitingRows,
} from "../elements.js";
import { pick, randomSeed } from "../picker.js";
import { sampleOf } from "../queries.js";

const TITLE = "Negatives";
const DEPTH = 12;

export function show(page) {
  const { run, parameters } = page;
  const kind = parameters.kind === "text" ? "text" : "image";
  page.root.append(
    heading(
      TITLE,
      "The hardest wrong partners of a training image or text, mined from the whole training set.",
    ),
  );
  if (!run.has_negatives) {
    page.root.append(
      state("negatives", "This run has no mined lists", h("p", {}, ...prose(run.negatives_reason))),
    );
    return Promise.resolve();
  }
  const place = h("section", { "aria-label": "Negatives of the anchor" });
  page.root.append(anchorChoice(page, kind, place), place);
  const anchor = number(parameters, "number");
  return anchor === null ? anyAnchor(page, place, kind) : mined(page, place, kind, anchor);
}

function anchorChoice(page, kind, place) {
  const { run } = page;
  const tab = (value, name, label) =>
    h(
      "a",
      {
        class: "button",
        href: address("negatives", { run: run.name, kind: value }),
        "aria-current": kind === value ? "true" : null,
      },
      icon(name),
      label,
    );
  const choose = async () => {
    const entry = await pick(page, kind, { split: "train" });
    if (entry) page.go("negatives", { kind, number: entry.number });
  };
  const another = () =>
    goToAny(page, kind).catch(
      (error) => page.alive() && place.replaceChildren(failure(error, another)),
    );
  return h(
    "div",
    { class: "line" },
    h(
      "span",
      { class: "switch", role: "group", "aria-label": "Anchor" },
      tab("image", "photos", "Photos"),
      tab("text", "sentences", "Sentences"),
    ),
    h(
      "button",
      { type: "button", id: "another", onclick: another },
      icon("shuffle"),
      "Another",
    ),
    h("button", { type: "button", id: "pick", onclick: choose }, icon("search"), "Pick one"),
  );
}

function anyAnchor(page, place, kind) {
  return load(page, place, {
    waiting: waitingFor(kind),
    ask: () => goToAny(page, kind, { replace: true }),
    show: () => [state("negatives", "The index has no entries to start from")],
  });
}

/** Go to an anchor drawn at random, another than the one that is shown. */
async function goToAny(page, kind, options) {
  const shown = number(page.parameters, "number");
  const { entries } = await sampleOf(page.run.name, kind, {
    split: "train",
    limit: 2,
    seed: randomSeed(),
  });
  const drawn = entries.find((entry) => entry.number !== shown) ?? entries[0];
  if (page.alive() && drawn) page.go("negatives", { kind, number: drawn.number }, options);
}

function mined(page, place, kind, anchor) {
  return load(page, place, {
    waiting: waitingFor(kind),
    ask: () => ofRun(page.run.name, `negatives/${kind}/${anchor}`, { depth: DEPTH }),
    show: (answer) => (kind === "image" ? ofImage(page, answer) : ofText(page, answer)),
  });
}

function waitingFor(kind) {
  return [
    h(
      "div",
      { class: "anchor" },
      h("div", { class: "frame wide waiting" }),
      waitingRows(kind === "image" ? 5 : 1),
    ),
    kind === "image" ? waitingRows(DEPTH) : waitingCards(DEPTH),
  ];
}

function ofImage(page, { anchor, positives, candidates, provenance }) {
  const { run } = page;
  const ofCaption = (entry) =>
    address("negatives", { run: run.name, kind: "text", number: entry.number });
  return [
    h(
      "div",
      { class: "anchor" },
      h("div", { class: "frame wide" }, photo(anchor, { size: "full", eager: true })),
      h(
        "div",
        {},
        h("h2", { class: "small" }, "Positives: its own captions"),
        sentenceList(positives, ofCaption),
      ),
    ),
    h("h2", { class: "small" }, `The ${candidates.length} hardest wrong sentences`),
    sentenceList(candidates, ofCaption),
    origin(provenance),
  ];
}

function ofText(page, { anchor, positives, candidates, provenance }) {
  const { run } = page;
  const ofPhoto = (entry) =>
    address("negatives", { run: run.name, kind: "image", number: entry.number });
  return [
    h("blockquote", { class: "anchor-text" }, anchor.text),
    h(
      "h2",
      { class: "small" },
      positives.length > 1 ? "Positives: its own photos" : "Positive: its own photo",
    ),
    photoGrid(positives, ofPhoto),
    h("h2", { class: "small" }, `The ${candidates.length} hardest wrong photos`),
    photoGrid(candidates, ofPhoto),
    origin(provenance),
  ];
}

/** Where the lists come from: teacher, data, depth and filters. */
function origin(provenance) {
  if (!provenance?.length) return h("p");
  return h(
    "details",
    { class: "origin" },
    h("summary", {}, "Where these lists come from"),
    h(
      "dl",
      {},
      ...provenance.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, String(value))]),
    ),
  );
}
