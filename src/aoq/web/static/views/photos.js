/**
 * Find photos: a sentence, and the photos that fit it best.
 */

import { address, number } from "../address.js";
import { h, icon } from "../dom.js";
import {
  countOf,
  heading,
  load,
  moreButton,
  photoGrid,
  summary,
  unknownWords,
  waitingCards,
} from "../elements.js";
import { randomSeed } from "../picker.js";
import { imagesFor, sampleOf } from "../queries.js";

const TITLE = "Find photos";
const SHOWN = 12;
const EXAMPLES = 4;

export function show(page) {
  const { run, parameters } = page;
  const query = { text: parameters.text ?? "", number: number(parameters, "text_number") };
  const place = h("section", { "aria-label": "Photos found" });
  const form = sentenceForm(page, query.text, (text) => page.go("photos", { text }));
  page.root.append(
    heading(
      TITLE,
      `Describe what should be in the picture. ${countOf(run.images, "photo")} ${run.images === 1 ? "is" : "are"} searched.`,
    ),
    form,
    place,
  );
  if (!query.text && query.number === null) return (run.texts ? examples : somePhotos)(page, place);
  const top = Math.min(number(parameters, "top") || SHOWN, page.status.limits.top);
  return found(page, place, query, top);
}

/** The line in which a sentence is asked. */
export function sentenceForm(page, text, ask, { button = "Find" } = {}) {
  const input = h("input", {
    type: "search",
    id: "sentence",
    value: text,
    required: true,
    maxlength: page.status.limits.query_characters,
    placeholder: "A dog runs through the snow",
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

function found(page, place, query, top) {
  const { run } = page;
  return load(page, place, {
    waiting: [h("p", { class: "summary" }, "Searching…"), waitingCards(top)],
    ask: () => imagesFor(run.name, query, top),
    show: (answer) => {
      const sentence = { text: answer.query.text, text_number: answer.query.number };
      const leadsTo = (hit) => address("photo", { run: run.name, image: hit.number, ...sentence });
      fillIn(answer.query.text);
      return [
        unknownWords(answer.unknown_words),
        summary(answer, run.images, "photos", run.teacher),
        photoGrid(answer.hits, leadsTo),
        moreButton(answer.hits.length, Math.min(run.images, page.status.limits.top), (more) =>
          page.go("photos", { ...sentence, top: more }, { replace: true }),
        ),
      ].filter(Boolean);
    },
  });
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
