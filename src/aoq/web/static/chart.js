/**
 * Curves over epochs, drawn as SVG: one panel a measure, one line a round. Lines differ in colour
 * and in the shape of their points, and the same figures are in a table below.
 */

import { h, s } from "./dom.js";
import { countOf } from "./elements.js";

const WIDTH = 360;
const HEIGHT = 220;
const MARGIN = { left: 40, right: 14, top: 12, bottom: 34 };
const SHAPES = ["circle", "square", "diamond"];

/** A panel: `lines` are `{name, points: [[epoch, value], ...]}`. */
export function chart(title, lines) {
  const points = lines.flatMap((line) => line.points);
  const x = axis(
    points.map(([epoch]) => epoch),
    MARGIN.left,
    WIDTH - MARGIN.right,
    6,
    true,
  );
  const y = axis(
    points.map(([, value]) => value),
    HEIGHT - MARGIN.bottom,
    MARGIN.top,
    4,
    false,
  );
  const drawing = s(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": described(title, lines) },
    ...y.ticks.map((value) =>
      s(
        "g",
        { class: "tick-line" },
        s("line", { x1: MARGIN.left, x2: WIDTH - MARGIN.right, y1: y.at(value), y2: y.at(value) }),
        s("text", { x: MARGIN.left - 8, y: y.at(value) + 4, "text-anchor": "end" }, String(value)),
      ),
    ),
    ...x.ticks.map((value) =>
      s(
        "text",
        { x: x.at(value), y: HEIGHT - MARGIN.bottom + 18, "text-anchor": "middle" },
        String(value),
      ),
    ),
    s(
      "text",
      { x: (MARGIN.left + WIDTH - MARGIN.right) / 2, y: HEIGHT - 2, "text-anchor": "middle" },
      "epoch",
    ),
    ...lines.map((line, at) => drawnLine(line, at, x, y)),
  );
  return h("figure", { class: "chart" }, h("figcaption", {}, title), drawing);
}

/** Which shape and colour stands for which line. */
export function legend(names) {
  return h(
    "ul",
    { class: "legend" },
    ...names.map((name, at) =>
      h(
        "li",
        { class: `line-${at % SHAPES.length}` },
        s(
          "svg",
          { viewBox: "0 0 28 12", width: 28, height: 12, "aria-hidden": "true" },
          s("path", { d: "M0 6h28" }),
          marker(at, 14, 6),
        ),
        name,
      ),
    ),
  );
}

function drawnLine(line, at, x, y) {
  const places = line.points.map(([epoch, value]) => [x.at(epoch), y.at(value)]);
  const path = places
    .map(([left, top], order) => `${order ? "L" : "M"}${left.toFixed(1)} ${top.toFixed(1)}`)
    .join("");
  const markers = places.map(([left, top], order) => {
    const shape = marker(at, left, top);
    shape.append(
      s(
        "title",
        {},
        `${line.name}, epoch ${line.points[order][0]}: ${line.points[order][1].toFixed(1)}`,
      ),
    );
    return shape;
  });
  return s("g", { class: `line-${at % SHAPES.length}` }, s("path", { d: path }), ...markers);
}

function marker(at, x, y) {
  const shape = SHAPES[at % SHAPES.length];
  if (shape === "circle") return s("circle", { cx: x, cy: y, r: 3.6 });
  const turn = shape === "diamond" ? `rotate(45 ${x} ${y})` : null;
  return s("rect", { x: x - 3.3, y: y - 3.3, width: 6.6, height: 6.6, transform: turn });
}

/** A scale from values to places, with round numbers to mark on it. */
function axis(values, from, to, count, whole) {
  const low = Math.min(...values);
  const high = Math.max(...values);
  const step = roundStep((high - low || 1) / count, whole);
  const start = whole ? low : Math.floor(low / step) * step;
  const end = whole
    ? Math.max(high, low + 1)
    : Math.max(Math.ceil(high / step), Math.floor(low / step) + 1) * step;
  const first = Math.ceil(start / step) * step;
  const ticks = Array.from({ length: Math.floor((end - first) / step + 1e-9) + 1 }, (_, at) =>
    Number((first + at * step).toFixed(6)),
  );
  return { ticks, at: (value) => from + ((value - start) / (end - start)) * (to - from) };
}

function roundStep(rough, whole) {
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
  return whole ? Math.max(1, Math.round(step)) : step;
}

function described(title, lines) {
  const ends = lines
    .filter((line) => line.points.length)
    .map(
      ({ name, points }) =>
        `${name} goes from ${points[0][1].toFixed(1)} to ${points.at(-1)[1].toFixed(1)} in ${countOf(points.length, "epoch")}`,
    );
  return `${title}: ${ends.join("; ")}.`;
}
