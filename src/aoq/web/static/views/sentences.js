/**
 * Find sentences: a photo, uploaded or of the index, and the sentences that fit it best.
 */

import { address, number } from "../address.js";
import { h, icon } from "../dom.js";
import {
  failure,
  heading,
  load,
  moreButton,
  photo,
  sentenceList,
  state,
  summary,
  waitingRows,
} from "../elements.js";
import { pick } from "../picker.js";
import { keepUpload, photoOf, textsFor, uploadedFile } from "../queries.js";
import { acceptFiles, fileButton, refusedFile } from "../uploading.js";
import { uploadedPicture } from "../uploaded.js";

const TITLE = "Find sentences";
const SHOWN = 12;

export function show(page) {
  const { run, parameters } = page;
  const query = { image: number(parameters, "image"), upload: parameters.upload ?? null };
  const place = h("section", { "aria-label": "Sentences found", class: "answers" });
  if (!run.texts) {
    page.root.append(heading(TITLE, "For a photo, those of the index."), noSentences(run));
    return Promise.resolve();
  }
  const chooser = photoChooser(page, query, place);
  page.root.append(
    heading(TITLE, `Choose a photo. ${run.texts.toLocaleString("en")} sentences are searched.`),
    h("div", { class: "beside" }, chooser, place),
  );
  if (query.image === null && !query.upload) {
    place.append(
      state(
        "sentences",
        "No photo yet",
        h(
          "p",
          {},
          run.reads_pictures ? "Upload one, drop or paste it here, or pick" : "Pick",
          " one of the index: the sentences that belong to it are then ticked.",
        ),
      ),
    );
    return Promise.resolve();
  }
  const top = Math.min(number(parameters, "top") || SHOWN, page.status.limits.top);
  return found(page, place, query, top);
}

/** An index of photos alone; a sentence of one's own can still be scored. */
function noSentences(run) {
  return state(
    "sentences",
    "The index holds photos only",
    h("p", {}, "There are no sentences to find. Open a photo to score sentences of your own on it:"),
    h("a", { class: "button", href: address("photo", { run: run.name }) }, "Choose a photo"),
  );
}

function found(page, place, query, top) {
  const { run } = page;
  return load(page, place, {
    waiting: [h("p", { class: "summary" }, "Searching…"), waitingRows(top)],
    ask: () => textsFor(run.name, query, top),
    show: (answer) => {
      const leadsTo = (hit) =>
        address("photo", { run: run.name, ...query, text_number: hit.number, text: hit.text });
      return [
        summary(answer, run.texts, "sentences", run.teacher),
        sentenceList(answer.hits, leadsTo),
        moreButton(answer.hits.length, Math.min(run.texts, page.status.limits.top), (more) =>
          page.go("sentences", { ...query, top: more }, { replace: true }),
        ),
      ].filter(Boolean);
    },
  });
}

/** The chosen photo, and the ways to choose another: index, and where it can be read a file. */
function photoChooser(page, query, place) {
  const choose = async () => {
    const entry = await pick(page, "image");
    if (entry) page.go("sentences", { image: entry.number });
  };
  const readable = page.run.reads_pictures;
  const take = (file) => takeFile(page, file, place);
  const zone = h(
    "div",
    { class: "chooser" },
    h("div", { class: "frame wide" }, ...chosenPicture(page, query)),
    h(
      "div",
      { class: "line" },
      ...(readable ? fileButton("picture", "Upload a photo", take, { strong: true }) : []),
      h("button", { type: "button", id: "pick", onclick: choose }, icon("photos"), "Pick one"),
    ),
    h(
      "p",
      { class: "hint" },
      readable
        ? "You can also drop a picture here or paste one."
        : "This run cannot read pictures of your own, only those of its index.",
    ),
  );
  if (readable) acceptFiles(page, zone, take);
  return zone;
}

function takeFile(page, file, place) {
  const refusal = refusedFile(page, file);
  if (refusal) return place.replaceChildren(failure(new Error(refusal)));
  return page.go("sentences", { upload: keepUpload(file) });
}

function chosenPicture(page, query) {
  if (query.upload) return [uploadedPicture(uploadedFile(query.upload))];
  if (query.image === null)
    return [
      h(
        "span",
        { class: "no-picture" },
        icon("photos"),
        page.run.reads_pictures ? "Drop a photo" : "No photo",
      ),
    ];
  const frame = h("div", { class: "fills" });
  load(page, frame, {
    ask: () => photoOf(page.run.name, query.image),
    show: (entry) => [photo(entry, { size: "full", eager: true })],
  });
  return [frame];
}
