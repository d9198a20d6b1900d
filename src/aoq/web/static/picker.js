/**
 * A dialog to pick an entry of the index: a random page, or those with a word in them.
 */

import { arrowKeys, h, icon } from "./dom.js";
import { ofRun } from "./api.js";
import { load, photo, waitingCards, waitingRows } from "./elements.js";
import { sampleOf } from "./queries.js";

const SHOWN = { image: 24, text: 16 };
const PAUSE = 250; // milliseconds in typing after which a word counts as written

/** Ask the person for an entry; null where the dialog is closed, or the view left, without one. */
export function pick(page, kind, { split = "test" } = {}) {
  return new Promise((resolve) => {
    let chosen = null;
    let seed = randomSeed();
    let typing;
    const place = h("div", { class: "choices" });
    const word = h("input", {
      type: "search",
      id: "picker-word",
      placeholder: "Only those with the word…",
      autocomplete: "off",
      oninput: () => (clearTimeout(typing), (typing = setTimeout(show, PAUSE))),
    });
    const show = () => {
      clearTimeout(typing);
      return load({ alive: () => dialog.open }, place, {
        waiting: [kind === "image" ? waitingCards(12) : waitingRows(8)],
        ask: () => found(page.run.name, kind, { split, word: word.value.trim(), seed }),
        show: (answer) => [entries(answer, kind, (entry) => ((chosen = entry), dialog.close()))],
      });
    };
    const shuffle = h(
      "button",
      { type: "button", onclick: () => ((word.value = ""), (seed = randomSeed()), show()) },
      icon("shuffle"),
      "Others",
    );
    const close = h(
      "button",
      { type: "button", class: "plain", "aria-label": "Close", onclick: () => dialog.close() },
      icon("close"),
    );
    const title = kind === "image" ? "Pick a photo" : "Pick a caption";
    const dialog = h(
      "dialog",
      { class: "picker", "aria-label": title, onclose: () => (dialog.remove(), resolve(chosen)) },
      h("div", { class: "picker-top" }, h("h2", {}, title), close),
      h(
        "form",
        { class: "line", onsubmit: (event) => (event.preventDefault(), show()) },
        h("label", { class: "unseen", for: "picker-word" }, "Word"),
        word,
        shuffle,
      ),
      place,
    );
    page.signal.addEventListener("abort", () => dialog.close());
    document.body.append(dialog);
    dialog.showModal();
    word.focus();
    show();
  });
}

export function randomSeed() {
  return Math.floor(Math.random() * 1e6);
}

function found(run, kind, { split, word, seed }) {
  const only = split === "train" ? split : null; // others are preferred, but not needed
  if (word) return ofRun(run, "entries", { kind, split: only, query: word, limit: SHOWN[kind] });
  return sampleOf(run, kind, { split, limit: SHOWN[kind], seed });
}

function entries(answer, kind, take) {
  if (!answer.entries.length)
    return h("p", { class: "state" }, "Nothing in the index has this word.");
  const items = answer.entries.map((entry) =>
    h(
      "li",
      {},
      h(
        "button",
        { type: "button", class: "choice", onclick: () => take(entry) },
        kind === "image" ? photo(entry) : entry.text,
      ),
    ),
  );
  return arrowKeys(
    h("ul", { class: kind === "image" ? "choice-grid" : "choice-rows" }, ...items),
    "button",
  );
}
