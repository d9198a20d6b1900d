/**
 * Attention on a picture: point at a word, or move the focus there, and the regions it attended to
 * light up; point at a region, and the words do. Strength is opacity, relative to the strongest.
 */

import { announce, arrowKeys, h } from "./dom.js";

const STRONGEST = 0.75;
const WORTH_NAMING = 0.01;

/**
 * The stage (picture with its regions), the words, and the line that says in words what is lit.
 * A model that attends one way only is read the other way round: its columns instead of its rows.
 */
export function attention(map, picture) {
  const regions = map.boxes ?? squares(regionCount(map));
  const boxes = regions.map((box, at) => regionButton(box, at, map.boxes ? null : at + 1));
  const words = map.words.map(({ word, known }, at) => wordButton(word, known, at));
  const hint = "Point at a word to see where it looks, or at a region to see its words.";
  const readout = h("p", { class: "readout" }, hint);
  let hovered = null;
  let chosen = null;

  const paint = () => {
    const { kind, at } = hovered ?? chosen ?? {};
    light(boxes, kind === "word" ? wordWeights(map, at) : null, STRONGEST);
    light(words, kind === "region" ? regionWeights(map, at) : null, 1);
    [...boxes, ...words].forEach((button) =>
      button.classList.toggle(
        "pointed",
        button.dataset.kind === kind && Number(button.dataset.at) === at,
      ),
    );
    readout.textContent =
      kind === "word"
        ? wordSentence(map, regions, at)
        : kind === "region"
          ? regionSentence(map, regions, at)
          : hint;
  };
  const pointed = (event) => {
    const button = event.target.closest?.("[data-kind]");
    return button && { kind: button.dataset.kind, at: Number(button.dataset.at) };
  };
  const listen = (container) => {
    container.addEventListener(
      "pointerover",
      (event) => event.pointerType === "mouse" && ((hovered = pointed(event)), paint()),
    );
    container.addEventListener("pointerleave", () => ((hovered = null), paint()));
    for (const type of ["focusin", "click"]) {
      container.addEventListener(type, (event) => {
        chosen = pointed(event) ?? chosen;
        paint();
        if (type === "focusin") announce(readout.textContent);
      });
    }
    container.addEventListener(
      "keydown",
      (event) => event.key === "Escape" && ((hovered = chosen = null), paint()),
    );
    return container;
  };

  const stage = h(
    "div",
    { class: map.boxes ? "stage" : "stage bare" },
    map.boxes && picture,
    h("div", { class: "regions", role: "group", "aria-label": "Regions of the picture" }, ...boxes),
  );
  const line = h(
    "p",
    { class: "words", role: "group", "aria-label": "Words of the sentence" },
    ...words.flatMap((word) => [word, " "]),
  );
  arrowKeys(stage, "button", { single: true });
  arrowKeys(line, "button", { single: true });
  return { stage: listen(stage), words: listen(line), readout };
}

function regionButton([left, top, right, bottom], at, label) {
  const percent = (share) => `${(100 * share).toFixed(3)}%`;
  const style = {
    left: percent(left),
    top: percent(top),
    width: percent(right - left),
    height: percent(bottom - top),
    // A region inside another one lies above it, or nobody could point at it.
    "z-index": String(Math.round(1000 * (1 - (right - left) * (bottom - top)))),
  };
  const name = `Region ${at + 1}, ${placeOf([left, top, right, bottom])}`;
  return h(
    "button",
    {
      type: "button",
      class: "region",
      "data-kind": "region",
      "data-at": at,
      "aria-label": name,
      style,
    },
    label,
  );
}

function wordButton(word, known, at) {
  const title = known ? null : "This word is not in the vocabulary of the run, to which all such words are the same.";
  return h(
    "button",
    {
      type: "button",
      class: known ? "word" : "word unknown",
      "data-kind": "word",
      "data-at": at,
      title,
    },
    word,
  );
}

function light(buttons, weights, strongest) {
  const most = weights ? Math.max(...weights) : 0;
  buttons.forEach((button, at) =>
    button.style.setProperty(
      "--strength",
      most > 0 ? ((strongest * Math.max(0, weights[at])) / most).toFixed(3) : "0",
    ),
  );
}

function wordWeights(map, word) {
  return map.by_word ? map.by_word[word] : map.by_region.map((row) => row[word]);
}

function regionWeights(map, region) {
  return map.by_region ? map.by_region[region] : map.by_word.map((row) => row[region]);
}

function wordSentence(map, regions, word) {
  const weights = wordWeights(map, word);
  const at = strongestOf(weights);
  const name = `“${map.words[word].word}”`;
  const place = placeOf(regions[at]);
  const verb = map.by_word
    ? `${name} looks most at the ${place}`
    : `The region that looks most at ${name} is the ${place}`;
  return `${verb} (${percentage(weights[at])}).`;
}

function regionSentence(map, regions, region) {
  const weights = regionWeights(map, region);
  const ranked = [...weights.keys()].sort((one, other) => weights[other] - weights[one]);
  const best = ranked.filter((at, order) => order === 0 || weights[at] >= WORTH_NAMING).slice(0, 3);
  const named = best.map((at) => `“${map.words[at].word}” (${percentage(weights[at])})`).join(", ");
  const place = placeOf(regions[region]);
  return map.by_region
    ? `The region at the ${place} looks most at ${named}.`
    : `The region at the ${place} is looked at most by ${named}.`;
}

function strongestOf(weights) {
  return weights.indexOf(Math.max(...weights));
}

function percentage(weight) {
  return `${(100 * weight).toFixed(0)}\u00a0%`;
}

/** Where a box lies, in words. */
function placeOf([left, top, right, bottom]) {
  const third = (from, to) => Math.min(2, Math.floor(1.5 * (from + to)));
  const row = ["top", "middle", "bottom"][third(top, bottom)];
  const column = ["left", "centre", "right"][third(left, right)];
  return row === "middle" && column === "centre" ? "centre" : `${row} ${column}`;
}

function regionCount(map) {
  return map.by_region?.length ?? map.by_word[0].length;
}

/** Places for regions that nobody knows the places of: a sheet of numbered squares. */
function squares(count) {
  const side = Math.ceil(Math.sqrt(count));
  const cell = (at) => [
    (at % side) / side,
    Math.floor(at / side) / side,
    ((at % side) + 1) / side,
    (Math.floor(at / side) + 1) / side,
  ];
  return Array.from({ length: count }, (_, at) => cell(at));
}
