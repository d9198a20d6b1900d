/**
 * Photos that were selected, over several searches, and what is made of them: a table or JSON.
 * Photos are numbered by index, so another index begins with none.
 */

import { announce, h, icon } from "./dom.js";
import { countOf } from "./elements.js";

const COLUMNS = ["id", "query", "score", "probability", "text", "number", "run"];
const RISKY = /^[=+\-@\t\r]/; // what a spreadsheet would compute

let index = null;
const chosen = new Map(); // by number
const listeners = new Set();

/** The selection of a run's index; listeners are told of each change until the view is left. */
export function selectionOf(run) {
  if (index !== run.index) {
    index = run.index;
    chosen.clear();
  }
  return {
    has: (hit) => chosen.has(hit.number),
    toggle: (hit, query) => {
      if (!chosen.delete(hit.number)) chosen.set(hit.number, record(hit, query, run));
      tell();
    },
    add: (hits, query) => {
      hits.forEach((hit) => chosen.set(hit.number, record(hit, query, run)));
      tell();
    },
  };
}

/** Call a function at each change, until the signal. */
export function whenSelected(listener, signal) {
  listeners.add(listener);
  signal.addEventListener("abort", () => listeners.delete(listener));
}

/** The bar at the lower edge that says how many are selected and what can be done with them. */
export function selectionBar(page) {
  const bar = h("div", { class: "selection", role: "region", "aria-label": "Selected photos" });
  const draw = () => {
    bar.hidden = chosen.size === 0;
    const button = (label, drawing, onclick) =>
      h("button", { type: "button", onclick }, icon(drawing), label);
    bar.replaceChildren(
      h("b", {}, countOf(chosen.size, "photo")),
      button("CSV", "download", () => save("photos.csv", "text/csv", csv([...chosen.values()]))),
      button("JSON", "download", () =>
        save("photos.json", "application/json", JSON.stringify([...chosen.values()], null, 2)),
      ),
      button("Clear", "close", () => (chosen.clear(), tell())),
    );
  };
  whenSelected(draw, page.signal);
  draw();
  return bar;
}

function tell() {
  announce(`${countOf(chosen.size, "photo")} selected.`);
  listeners.forEach((listener) => listener());
}

function record(hit, query, run) {
  const { id, score = null, probability = null, text, number } = hit;
  return { id, query, score, probability, text, number, run: run.name };
}

/** A table by RFC 4180; no cell of text begins as a formula does. */
export function csv(rows) {
  const cell = (value) => {
    const text = typeof value === "string" && RISKY.test(value) ? `'${value}` : `${value ?? ""}`;
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const line = (cells) => `${cells.map(cell).join(",")}\r\n`;
  return [COLUMNS, ...rows.map((row) => COLUMNS.map((name) => row[name]))].map(line).join("");
}

function save(name, type, content) {
  const address = URL.createObjectURL(new Blob([content], { type }));
  h("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
