/**
 * A run: its curves, its results beside those of the other runs served, and its settings.
 */

import { get, ofRun } from "../api.js";
import { chart, legend } from "../chart.js";
import { h, icon } from "../dom.js";
import { countOf, heading, load } from "../elements.js";

// Key in the results, heading, group, digits, and whether higher is better.
const COLUMNS = [
  ["i2t_r1", "R@1", "Sentences for a photo", 1, true],
  ["i2t_r5", "R@5", "Sentences for a photo", 1, true],
  ["i2t_r10", "R@10", "Sentences for a photo", 1, true],
  ["i2t_median_rank", "median", "Sentences for a photo", 0, false],
  ["t2i_r1", "R@1", "Photos for a sentence", 1, true],
  ["t2i_r5", "R@5", "Photos for a sentence", 1, true],
  ["t2i_r10", "R@10", "Photos for a sentence", 1, true],
  ["t2i_median_rank", "median", "Photos for a sentence", 0, false],
  ["rsum", "rsum", "", 1, true],
];
const MODELS = { towers: "Pretrained towers", own: "A model of your own" };
const PANELS = [
  ["rsum", "rsum: the six recalls together"],
  ["i2t_r1", "R@1, sentences for a photo"],
  ["t2i_r1", "R@1, photos for a sentence"],
];

export function show(page) {
  const { run } = page;
  const results = h("section", { "aria-label": "Results" });
  const curves = h("section", { "aria-label": "Curves" });
  const settings = h("section", { "aria-label": "Settings" });
  page.root.append(heading(run.label, facts(run)), ...proposing(run), results, curves, settings);
  const asked = () => ofRun(run.name, "results");
  return Promise.all([
    load(page, results, {
      waiting: [blank()],
      ask: () => Promise.all([asked(), get("/api/status")]),
      show: ([answer, { runs }]) => resultTables(run.name, answer.results, runs),
    }),
    load(page, curves, {
      waiting: [h("div", { class: "charts tall" }, blank(), blank(), blank())],
      ask: () => ofRun(run.name, "curves"),
      show: ({ rounds }) => drawnCurves(rounds),
    }),
    load(page, settings, {
      waiting: [blank()],
      ask: asked,
      show: (answer) => settingsTable(answer.settings),
    }),
  ]);
}

function facts(run) {
  const found = run.exact
    ? "searched exactly"
    : `proposed by ${run.teacher.label}, ranked by the model`;
  const model = MODELS[run.model] ?? run.model.toUpperCase();
  return `${model} · ${countOf(run.images, "photo")} and ${countOf(run.texts, "sentence")} in the index, ${found}`;
}

/** How much of what full scoring finds is found where a teacher proposes. */
function proposing({ exact, teacher }) {
  if (exact) return [];
  const { label, proposals, recall, recall_split: split } = teacher;
  const share = (value) => `${(100 * value).toFixed(1)} %`;
  const found = (way, noun) =>
    `${share(recall[way].r1)} of the first and ${share(recall[way].r10)} of the first ten ${noun}`;
  const queries = split ? `queries of ${split}` : "queries of all splits";
  const measured =
    recall.i2t && recall.t2i
      ? `Of what scoring everything finds, that keeps ${found("t2i", "photos")}, and ${found("i2t", "sentences")} (${recall.t2i.queries} and ${recall.i2t.queries} ${queries}).`
      : "How much that misses has not been measured.";
  const sentence = `${label} proposes ${proposals.toLocaleString("en")} for every query. ${measured}`;
  return [h("p", { class: "lead proposing" }, sentence)];
}

function blank() {
  return h("div", { class: "blank waiting" }, h("i"));
}

/**
 * What a run came to, beside the others on the same test set: recalls on another one cannot be
 * compared. A run that was not judged on test has what its training says of dev.
 */
function resultTables(name, results, runs) {
  const title = h("h2", {}, "Results");
  const run = runs.find((one) => one.name === name);
  const own = results.length || !run.dev ? results : [{ split: "dev", ...run.dev }];
  const others = runs.filter((one) => one !== run);
  const judged = others.filter((one) => one.test);
  const isAlike = (one) => run.test_data !== null && one.test_data === run.test_data;
  const unjudged = others.filter((one) => !one.test);
  const rows = [
    ...own.map((result) => [`${run.label}, ${result.split}`, result]),
    ...judged.filter(isAlike).map((one) => [`${one.label}, test`, one.test]),
    ...unjudged.filter((one) => one.dev).map((one) => [`${one.label}, dev`, one.dev]),
  ];
  if (!own.some(({ split }) => split === "test")) unjudged.unshift(run);
  const remarks = [notJudged(unjudged), judgedElsewhere(judged.filter((one) => !isAlike(one)))];
  if (!rows.length) return [title, h("div", { class: "state" }, ...remarks)];
  return [
    title,
    h(
      "p",
      { class: "lead" },
      "Recalls in percent, ranks from 1; the best of the test split in bold.",
      own.some(({ intervals }) => intervals) && " In brackets: 95 % intervals over queries.",
    ),
    metricTable(rows),
    ...remarks.filter(Boolean),
  ];
}

function notJudged(runs) {
  if (!runs.length) return null;
  return h(
    "p",
    { class: "hint" },
    `Not judged on the test split: ${named(runs)}; `,
    h("code", {}, "aoq evaluate"),
    ` with ${runs.length > 1 ? "their folders" : "its folder"} does it.`,
    runs.some((one) => one.dev) && " A dev row is of the validation that chose the weights.",
  );
}

function judgedElsewhere(runs) {
  if (!runs.length) return null;
  return h(
    "p",
    { class: "hint" },
    `Left out, as not known to be judged on the same data: ${named(runs)}.`,
  );
}

/** Labels say what was trained, and several runs may share one. */
function named(runs) {
  return runs.map(({ label, name }) => `${label} (${name})`).join(", ");
}

/** Where a figure lies if other queries are asked, below it; only `--bootstrap` tells. */
function interval(bounds, digits) {
  if (!bounds) return null;
  const [low, high] = bounds.map((bound) => bound.toFixed(digits));
  return h("small", { class: "interval" }, `[${low}, ${high}]`);
}

function metricTable(rows) {
  const present = COLUMNS.filter(([key]) =>
    rows.some(([, row]) => row[key] !== undefined && row[key] !== null),
  );
  const groups = [...new Set(present.map(([, , group]) => group))];
  const test = rows.filter(([name]) => name.endsWith(", test")).map(([, row]) => row);
  const bestOf = ([key, , , , higher]) =>
    test.length > 1 ? (higher ? Math.max : Math.min)(...test.map((row) => row[key])) : null;
  const cell = (row, column) =>
    h(
      "td",
      { class: test.includes(row) && row[column[0]] === bestOf(column) ? "best" : null },
      typeof row[column[0]] === "number" ? row[column[0]].toFixed(column[3]) : "–",
      interval(row.intervals?.[column[0]], column[3]),
    );
  const groupHeads = groups.map((group) => {
    const columns = present.filter(([, , own]) => own === group).length;
    return h("th", { colspan: columns, scope: "colgroup" }, group);
  });
  return wideTable(
    "Table of results",
    [
      h("tr", {}, h("td"), ...groupHeads),
      headRow("run and split", ...present.map(([, name]) => name)),
    ],
    rows.map(([name, row]) => bodyRow(name, ...present.map((column) => cell(row, column)))),
  );
}

/** A table that scrolls sideways by itself, also by keyboard. */
function wideTable(label, heads, rows) {
  return h(
    "div",
    { class: "wide-table", tabindex: 0, role: "region", "aria-label": label },
    h("table", {}, h("thead", {}, ...heads), h("tbody", {}, ...rows)),
  );
}

function headRow(...names) {
  return h("tr", {}, ...names.map((name) => h("th", { scope: "col" }, name)));
}

function bodyRow(name, ...cells) {
  return h("tr", {}, h("th", { scope: "row" }, name), ...cells);
}

function drawnCurves(rounds) {
  const trained = rounds.filter((round) => round.epochs.length);
  const title = h("h2", {}, "Curves");
  if (!trained.length)
    return [
      title,
      h(
        "div",
        { class: "state" },
        icon("run"),
        h("p", {}, "This run has no record of its training."),
      ),
    ];
  const points = (round, key) =>
    round.epochs
      .filter((epoch) => typeof epoch[key] === "number")
      .map((epoch) => [epoch.epoch, epoch[key]]);
  const panels = PANELS.map(([key, name]) => [
    name,
    trained
      .map((round) => ({ name: spoken(round.name), points: points(round, key) }))
      .filter((line) => line.points.length),
  ]).filter(([, lines]) => lines.length);
  return [
    title,
    h("p", { class: "lead" }, "On the dev split after each epoch."),
    legend(trained.map((round) => spoken(round.name))),
    h("div", { class: "charts" }, ...panels.map(([name, lines]) => chart(name, lines))),
    h("details", { class: "origin" }, h("summary", {}, "As a table"), epochTable(trained)),
  ];
}

function spoken(name) {
  const words = name.replaceAll("-", " ");
  return words[0].toUpperCase() + words.slice(1);
}

function epochTable(rounds) {
  const keys = [...PANELS.map(([key]) => key), "loss"];
  const number = (value) => (typeof value === "number" ? value.toFixed(1) : "–");
  const rows = rounds.flatMap((round) =>
    round.epochs.map((epoch) => {
      const figures = [String(epoch.epoch), ...keys.map((key) => number(epoch[key]))];
      return bodyRow(spoken(round.name), ...figures.map((figure) => h("td", {}, figure)));
    }),
  );
  const heads = headRow("round", "epoch", "rsum", "sentences R@1", "photos R@1", "loss");
  return wideTable("Figures of each epoch", [heads], rows);
}

function settingsTable(settings) {
  const rows = Object.entries(settings).map(([name, value]) =>
    h(
      "div",
      {},
      h("dt", {}, name),
      h("dd", {}, typeof value === "string" ? value : JSON.stringify(value)),
    ),
  );
  if (!rows.length)
    return [h("h2", {}, "Settings"), h("p", { class: "lead" }, "All as in the paper.")];
  return [
    h("h2", {}, "Settings"),
    h("p", { class: "lead" }, "Those that differ from the paper's."),
    h("dl", { class: "settings" }, ...rows),
  ];
}
