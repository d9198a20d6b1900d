/**
 * Find photos: by a sentence, by photos they should be like, and by everything that narrows it.
 */

import { address, number } from "../address.js";
import { askedBy, filterOf, isAsked, parametersOf } from "../ask.js";
import { builder } from "../builder.js";
import { h, icon } from "../dom.js";
import {
  countOf,
  heading,
  load,
  moreButton,
  nothingFits,
  percentagesOf,
  photoGrid,
  state,
  summary,
  unknownWords,
  waitingCards,
} from "../elements.js";
import { randomSeed } from "../picker.js";
import { photosFor, sampleOf } from "../queries.js";
import { selectionBar, selectionOf, whenSelected } from "../selection.js";

const TITLE = "Find photos";
const SHOWN = 12;
const EXAMPLES = 4;
const EXAMPLE = "A dog runs through the snow";

export function show(page) {
  const { run, parameters } = page;
  const asked = askedBy(parameters);
  const place = h("section", { "aria-label": "Photos found" });
  page.root.append(
    heading(
      TITLE,
      `Describe what should be in the picture. ${countOf(run.images, "photo")} ${run.images === 1 ? "is" : "are"} searched.`,
    ),
    builder(page, asked, place),
    place,
    selectionBar(page),
  );
  if (!isAsked(asked)) return (run.texts ? examples : somePhotos)(page, place);
  const top = Math.min(number(parameters, "top") || SHOWN, page.status.limits.top);
  return found(page, place, asked, top);
}

/** The line in which a sentence is asked. */
export function sentenceForm(page, text, ask, { button = "Find", example = EXAMPLE } = {}) {
  const input = h("input", {
    type: "search",
    id: "sentence",
    value: text,
    required: true,
    maxlength: page.status.limits.query_characters,
    placeholder: example,
    autocomplete: "off",
    spellcheck: "true",
  });
  const submit = (event) => {
    event.preventDefault();
    if (input.value.trim()) ask(input.value.trim());
  };
  return h(
    "form",
    { class: "line ask", role: "search", onsubmit: submit },
    h("label", { class: "unseen", for: "sentence" }, "Sentence"),
    input,
    h("button", { class: "strong" }, icon("search"), button),
  );
}

function found(page, place, asked, top) {
  const { run, memory } = page;
  return load(page, place, {
    waiting: [h("p", { class: "summary" }, "Searching…"), waitingCards(top)],
    ask: () => photosFor(run.name, asked, top),
    show: (answer) => {
      fillIn(answer.text);
      const exact = { ...asked, text: answer.text, number: answer.number };
      memory.results = {
        run: run.name,
        hash: location.hash,
        numbers: answer.hits.map((hit) => hit.number),
      };
      if (!answer.hits.length) return [unknownWords(answer.unknown_words), noHits(page, asked)].filter(Boolean);
      return [
        unknownWords(answer.unknown_words),
        nothingFits(answer),
        h(
          "div",
          { class: "summary-line" },
          summary(answer, run.images, "photos", run.teacher),
          selectAll(page, answer.hits, exact),
        ),
        photoGrid(answer.hits, leadsTo(page, exact), { choice: choiceOf(page, exact) }),
        percentagesOf(answer),
        moreButton(answer.hits.length, reachable(page, answer, top), (more) =>
          page.go("photos", { ...parametersOf(exact), top: more }, { replace: true }),
        ),
      ].filter(Boolean);
    },
  });
}

/** How many could be shown: a filter or a bar lets fewer through than the index has. */
function reachable({ run, status }, answer, top) {
  return answer.hits.length < top ? answer.hits.length : Math.min(run.images, status.limits.top);
}

function leadsTo({ run }, { text, number }) {
  return (hit) => address("photo", { run: run.name, image: hit.number, text, text_number: number });
}

function choiceOf(page, asked) {
  const selection = selectionOf(page.run);
  const query = inWords(asked);
  const isChosen = (hit) => selection.has(hit);
  whenSelected(() => syncBoxes(page, isChosen), page.signal);
  return { isChosen, toggle: (hit) => selection.toggle(hit, query) };
}

/** Boxes follow the selection, which its bar can clear. */
function syncBoxes(page, isChosen) {
  for (const box of page.root.querySelectorAll(".choose input"))
    box.checked = isChosen({ number: Number(box.value) });
}

function selectAll(page, hits, asked) {
  const select = () => selectionOf(page.run).add(hits, inWords(asked));
  return h(
    "button",
    { type: "button", class: "plain small", id: "select-all", onclick: select },
    "Select all",
  );
}

/** A query in words, as an exported table names it. */
function inWords(asked) {
  return [
    [asked.text, ...asked.also].filter(Boolean).join(" + "),
    ...asked.like.map((number) => `like photo ${number}`),
    asked.upload && "like an uploaded photo",
    ...asked.without.map((text) => `without ${text}`),
    filterOf(asked),
  ]
    .filter(Boolean)
    .join(", ");
}

function noHits(page, asked) {
  const without = { ...parametersOf(asked), precision: null };
  const isStrict = asked.precision !== null;
  const all = Object.fromEntries(["folder", "from", "to", "split", "where"].map((name) => [name, ""]));
  return state(
    "photos",
    "Nothing fits",
    h(
      "p",
      {},
      isStrict
        ? `No photo is as close as hits have to be for ${Math.round(100 * asked.precision)} % of them to be right.`
        : filterOf(asked)
          ? "No photo passes the filter."
          : "No photo was found.",
    ),
    isStrict
      ? h("a", { class: "button", href: address("photos", { run: page.run.name, ...without }) }, "Show the closest")
      : filterOf(asked) &&
          h("a", { class: "button", href: address("photos", { run: page.run.name, ...parametersOf({ ...asked, ...all }) }) }, "Search all photos"),
  );
}

/** Where the address has only a number, the sentence is known when the answer is there. */
export function fillIn(text) {
  const input = document.getElementById("sentence");
  if (input && !input.value) input.value = text;
}

/** An index without sentences has no examples: some of its photos show what can be found. */
function somePhotos(page, place) {
  const { run } = page;
  return load(page, place, {
    waiting: [waitingCards(SHOWN)],
    ask: () =>
      sampleOf(run.name, "image", { limit: SHOWN, seed: (page.memory.seed ??= randomSeed()) }),
    show: (answer) => [
      h("h2", { class: "small" }, "Some of them"),
      photoGrid(answer.entries, (entry) =>
        address("photo", { run: run.name, image: entry.number }),
      ),
    ],
  });
}

function examples(page, place) {
  const { run } = page;
  return load(page, place, {
    waiting: [
      h(
        "ul",
        { class: "examples", "aria-hidden": "true" },
        ...Array.from({ length: EXAMPLES }, () => h("li", { class: "waiting" }, h("i"))),
      ),
    ],
    ask: () =>
      sampleOf(run.name, "text", {
        limit: EXAMPLES,
        seed: (page.memory.seed ??= randomSeed()),
      }),
    show: (answer) => {
      if (!answer.entries.length) return [];
      const chips = answer.entries.map((entry) =>
        h(
          "li",
          {},
          h(
            "a",
            {
              class: "example",
              href: address("photos", {
                run: run.name,
                text_number: entry.number,
                text: entry.text,
              }),
            },
            entry.text,
          ),
        ),
      );
      return [
        h("h2", { class: "small" }, "For example, with the correct photo ticked"),
        h("ul", { class: "examples" }, ...chips),
      ];
    },
  });
}
