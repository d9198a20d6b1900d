/**
 * The query builder: one line for a sentence, chips for what else is asked, and a panel, closed
 * until it is wanted, with everything that can be asked. All of it is one form, and all that it
 * asks is in the address.
 */

import { address } from "./address.js";
import { ofRun } from "./api.js";
import { parametersOf, withoutMarked } from "./ask.js";
import { h, icon } from "./dom.js";
import { failure, load, photo } from "./elements.js";
import { pick } from "./picker.js";
import { keepUpload, photoOf, uploadedFile } from "./queries.js";
import { acceptFiles, fileButton, refusedFile } from "./uploading.js";
import { uploadedPicture } from "./uploaded.js";

const PRECISIONS = [0.3, 0.5, 0.7, 0.8, 0.9, 0.95];
const BETWEEN = { also: "; ", without: ", " }; // several of them in one field
const FILTERS = ["folder", "from", "to", "split", "where"];

/** The form and its chips; `place` is where a file that cannot be taken is said to be so. */
export function builder(page, asked, place) {
  const { run } = page;
  const go = (changed, options) => page.go("photos", parametersOf({ ...asked, ...changed }), options);
  const isOpen = page.memory.refining ?? false;
  const input = h("input", {
    type: "search",
    id: "sentence",
    value: asked.text,
    maxlength: page.status.limits.query_characters,
    placeholder: "A dog runs through the snow",
    autocomplete: "off",
    spellcheck: "true",
  });
  const panel = h("div", { class: "refine", id: "refine", hidden: !isOpen });
  const toggle = h(
    "button",
    {
      type: "button",
      id: "refine-toggle",
      "aria-expanded": String(isOpen),
      "aria-controls": "refine",
      onclick: () => {
        page.memory.refining = panel.hidden;
        panel.hidden = !panel.hidden;
        toggle.setAttribute("aria-expanded", String(!panel.hidden));
        if (!panel.hidden) fill();
      },
    },
    icon("refine"),
    h("span", {}, "Refine"),
  );
  const take = (file) => {
    const refusal = refusedFile(page, file);
    if (refusal) return place.replaceChildren(failure(new Error(refusal)));
    return go({ upload: keepUpload(file) });
  };
  const fill = () => panel.childElementCount || fillPanel(page, panel, { asked, go, take });
  const submit = (event) => {
    event.preventDefault();
    const { text, without } = withoutMarked(input.value);
    const fields = panelFields(panel, asked);
    const number = text === asked.text ? asked.number : null;
    const excluded = [...new Set([...(fields.without ?? asked.without), ...without])];
    go({ ...fields, text, number, without: excluded });
  };
  const form = h(
    "form",
    { class: "builder", role: "search", novalidate: true, onsubmit: submit },
    h(
      "div",
      { class: "line ask" },
      h("label", { class: "unseen", for: "sentence" }, "Sentence"),
      input,
      toggle,
      h("button", { class: "strong" }, icon("search"), h("span", {}, "Find")),
    ),
    chips(page, asked),
    panel,
  );
  if (run.reads_pictures) acceptFiles(page, form, take);
  if (isOpen) fill();
  return form;
}

/** What is asked besides the sentence; each chip is a link to the query without it. */
function chips(page, asked) {
  const chip = (name, content, rest) =>
    h(
      "li",
      {},
      h(
        "a",
        {
          class: "chip",
          href: address("photos", { run: page.run.name, ...parametersOf({ ...asked, ...rest }) }),
          "aria-label": `Remove: ${name}`,
        },
        ...content,
        icon("close"),
      ),
    );
  const without = (list, at) => list.filter((_, place) => place !== at);
  const all = [
    ...asked.like.map((number, at) =>
      chip(`like photo ${number}`, [likePhoto(page, number), "like this"], {
        like: without(asked.like, at),
      }),
    ),
    asked.upload &&
      chip("like your photo", [thumb(uploadedPicture(uploadedFile(asked.upload))), "like yours"], {
        upload: null,
      }),
    ...asked.also.map((text, at) =>
      chip(`and ${text}`, [h("i", {}, "and"), " ", text], { also: without(asked.also, at) }),
    ),
    ...asked.without.map((text, at) =>
      chip(`without ${text}`, [h("i", {}, "without"), " ", text], {
        without: without(asked.without, at),
      }),
    ),
    ...FILTERS.filter((name) => asked[name]).map((name) =>
      chip(`${name} ${asked[name]}`, [h("i", {}, name), " ", asked[name]], { [name]: "" }),
    ),
    asked.words === "only" && chip("captions only", ["captions only"], { words: "" }),
    asked.words === "off" && chip("looks only", ["looks only"], { words: "" }),
    asked.precision &&
      chip("lowest precision", [`${Math.round(100 * asked.precision)} % right or more`], {
        precision: null,
      }),
    asked.collapse && chip("near-duplicates as one", ["near-duplicates as one"], { collapse: false }),
  ].filter(Boolean);
  return all.length > 0 && h("ul", { class: "chips", "aria-label": "Also asked" }, ...all);
}

function likePhoto(page, number) {
  const frame = thumb();
  photoOf(page.run.name, number).then(
    (entry) => frame.replaceChildren(photo(entry, { captioned: true })),
    () => frame.replaceChildren(icon("photos")), // the search says what is wrong
  );
  return frame;
}

function thumb(...content) {
  return h("span", { class: "thumb" }, ...content);
}

/** Everything that can be asked, as far as the index knows of it. */
function fillPanel(page, panel, { asked, go, take }) {
  const { run } = page;
  const choose = async () => {
    const entry = await pick(page, "image");
    if (entry) go({ like: [...new Set([...asked.like, entry.number])] });
  };
  return load(page, panel, {
    ask: () => ofRun(run.name, "columns"),
    show: ({ columns }) => [
      field("And also", textInput("also", asked.also.join(BETWEEN.also), "at night; in winter")),
      field("Without", textInput("without", asked.without.join(BETWEEN.without), "people, cars")),
      h(
        "div",
        { class: "field", role: "group", "aria-label": "Like photos" },
        h("span", {}, "Like photos"),
        h(
          "span",
          { class: "line" },
          h("button", { type: "button", id: "like", onclick: choose }, icon("photos"), "Pick"),
          ...(run.reads_pictures ? fileButton("like-picture", "Upload", take) : []),
        ),
      ),
      ...columnFields(columns, asked),
      ...qualityFields(run, asked),
    ],
  });
}

function columnFields(columns, asked) {
  const byName = Object.fromEntries(columns.map((column) => [column.name, column]));
  const { folder, date, split } = byName;
  const several = (column) => column?.values?.length > 1;
  const names = columns.map((column) => column.name).join(", ");
  return [
    several(folder) && field("Folder", valueSelect("folder", folder.values, asked.folder, "Any")),
    date && field("From", dateInput("from", date, asked.from)),
    date && field("To", dateInput("to", date, asked.to)),
    several(split) && field("Split", valueSelect("split", split.values, asked.split, "Any")),
    field("Filter", textInput("where", asked.where, "width > 1000"), `Columns: ${names}`),
  ].filter(Boolean);
}

function qualityFields(run, asked) {
  const calibration = run.calibrations.merged ?? run.calibrations.model;
  const reachable = PRECISIONS.filter((share) => share <= (calibration?.best_precision ?? 0));
  const precisions = reachable.map((share) => [share, `${Math.round(100 * share)} % right or more`]);
  const captions = [
    ["", "Looks and captions"],
    ["only", "Captions only"],
    ["off", "Looks only"],
  ];
  return [
    precisions.length > 0 &&
      field("Show", select("precision", [["", "All"], ...precisions], asked.precision ?? "")),
    run.has_words && field("Search", select("words", captions, asked.words)),
    h(
      "label",
      { class: "field check" },
      h("input", { type: "checkbox", name: "collapse", checked: asked.collapse }),
      h("span", {}, "Near-duplicates as one"),
    ),
  ].filter(Boolean);
}

/** What the panel says, once it was filled; what it does not ask for stays. */
function panelFields(panel, asked) {
  const inputs = [...panel.querySelectorAll("[name]")];
  const said = Object.fromEntries(
    inputs.map((one) => [one.name, one.type === "checkbox" ? one.checked : one.value.trim()]),
  );
  for (const [name, between] of Object.entries(BETWEEN).filter(([name]) => name in said)) {
    const isAsItWas = said[name] === asked[name].join(between);
    const items = said[name].split(between.trim()).map((each) => each.trim());
    said[name] = isAsItWas ? asked[name] : items.filter(Boolean);
  }
  if ("precision" in said) said.precision = Number(said.precision) || null;
  return said;
}

function field(name, control, hint) {
  return h("label", { class: "field", title: hint }, h("span", {}, name), control);
}

function textInput(name, value, example) {
  return h("input", {
    type: "text",
    name,
    value,
    maxlength: 500,
    placeholder: example,
    autocomplete: "off",
  });
}

function dateInput(name, { least, most }, value) {
  const day = (date) => date.slice(0, 10);
  return h("input", { type: "date", name, value, min: day(least), max: day(most) });
}

function valueSelect(name, values, chosen, any) {
  const options = values.map(({ value, count }) => [
    value,
    `${value === "" ? "(top)" : value} (${count.toLocaleString("en")})`,
  ]);
  return select(name, [["", any], ...options.filter(([value]) => value !== "")], chosen);
}

function select(name, options, chosen) {
  return h(
    "select",
    { name },
    ...options.map(([value, label]) =>
      h("option", { value, selected: String(value) === String(chosen) }, label),
    ),
  );
}
