/**
 * A photo in detail: the picture, its captions, and the attention between it and a sentence.
 */

import { address, number } from "../address.js";
import { attention } from "../attention.js";
import { h, icon } from "../dom.js";
import { heading, load, photo, photoGrid, prose, state, waitingCards } from "../elements.js";
import { pick, randomSeed } from "../picker.js";
import { forRun, pairFor, photoWithCaptions, sampleOf, uploadedFile } from "../queries.js";
import { uploadedPicture } from "../uploaded.js";
import { sentenceForm } from "./photos.js";

const TITLE = "Attention";
const SAMPLE = 12;

export function show(page) {
  const { run, parameters } = page;
  const query = { image: number(parameters, "image"), upload: parameters.upload ?? null };
  if (query.image === null && !query.upload) return choose(page);
  const sentence = { text: parameters.text ?? "", number: number(parameters, "text_number") };
  const place = h("div", { class: "detail" });
  page.root.append(
    run.has_attention
      ? heading(
          TITLE,
          "Which regions of the picture a word looks at, and which words a region looks at.",
        )
      : heading("Photo", "How well a sentence fits it."),
    place,
  );
  return load(page, place, {
    waiting: [
      h("div", { class: "stage waiting" }),
      h("div", { class: "panel waiting" }, h("i"), h("i"), h("i")),
    ],
    ask: () => pictured(page, query),
    show: (known) => detail(page, query, known, sentence),
  });
}

/** The picture and what is known of it; it is decoded first, so that nothing moves when it comes. */
async function pictured(page, { image, upload }) {
  if (upload) return { picture: uploadedPicture(uploadedFile(upload)), captions: [] };
  const known = await photoWithCaptions(page.run.name, image);
  const picture = photo(known.entry, { size: "full", eager: true });
  await picture.decode?.().catch(() => {});
  return { ...known, picture };
}

/** Without a photo: some to choose from. */
function choose(page) {
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

function detail(page, query, { entry, picture, captions }, asked) {
  const { run } = page;
  const sentence = sentenceOf(asked, captions);
  const stage = h("div", { class: "stage-place" }, h("div", { class: "stage" }, picture));
  const words = h("div", { class: "words-place" });
  const here = (parameters) => address("photo", { run: run.name, ...query, ...parameters });
  const panel = h(
    "div",
    { class: "panel" },
    words,
    captions.length > 0 && h("h2", { class: "small" }, "Captions of this photo"),
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
    h("h2", { class: "small" }, "A sentence of your own"),
    sentenceForm(page, "", (text) => page.go("photo", { ...query, text }), {
      button: run.has_attention ? "Look" : "Score",
    }),
    links(page, query, entry),
  );
  lookAt(page, { query, sentence, stage, words, picture });
  return [stage, panel];
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
    { class: "remark" },
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
