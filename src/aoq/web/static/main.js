/**
 * The page as a whole: which view is shown, for which run, and the way between them.
 *
 * A view has `show(page)`, which puts what it has at once into `page.root` and returns a promise
 * for the rest. `page.alive()` is false as soon as the person has gone on.
 */

import { address, parsed } from "./address.js";
import { busy, get, refused } from "./api.js";
import { h, icon } from "./dom.js";
import { failure, heading, state } from "./elements.js";
import { forRun } from "./queries.js";
import { sessionOfAddress, signIn } from "./session.js";
import * as attention from "./views/attention.js";
import * as compare from "./views/compare.js";
import * as negatives from "./views/negatives.js";
import * as photo from "./views/photo.js";
import * as photos from "./views/photos.js";
import * as run from "./views/run.js";
import * as sentences from "./views/sentences.js";

const VIEWS = { photos, sentences, photo, compare, attention, negatives, run };
const SEARCH = [
  ["photos", "photos", "Photos"],
  ["sentences", "sentences", "Sentences"],
];
const RESEARCH = [
  ["compare", "compare", "Compare"],
  ["attention", "attention", "Attention"],
  ["negatives", "negatives", "Negatives"],
  ["run", "run", "Run"],
];
const PARENT = { photo: "photos" }; // of a view that the navigation does not name

const main = document.getElementById("main");
const memory = Object.fromEntries(Object.keys(VIEWS).map((view) => [view, {}]));
const places = new Map();
let status = null;
let shown = null;
let leaving = new AbortController();

async function start() {
  history.scrollRestoration = "manual";
  busy.tell = tellBusy;
  document
    .querySelector(".skip")
    .addEventListener("click", (event) => (event.preventDefault(), main.focus()));
  document.addEventListener("keydown", searchKey);
  await enter(await sessionOfAddress());
}

/** Ask what is served, or for the token without which the server does not say it. */
async function enter(problem) {
  try {
    status = await get("/api/status");
  } catch (error) {
    const isRefused = error.status === 401;
    main.replaceChildren(isRefused ? signIn(problem, enter) : failure(error, () => location.reload()));
    main.querySelector("input")?.focus();
    return;
  }
  refused.tell = () => location.reload(); // the token is no longer accepted
  document.getElementById("version").textContent = `aoq ${status.version}`;
  if (!status.runs.length) {
    main.replaceChildren(state("run", "No run is served"));
    return;
  }
  addEventListener("hashchange", route);
  route();
}

/** Show what the address says. */
async function route() {
  const { view: asked, parameters } = parsed(location.hash);
  const view = Object.hasOwn(VIEWS, asked) ? asked : "photos";
  const served = (name) => status.runs.find((one) => one.name === name);
  const missing = [parameters.run, parameters.other].find((name) => name && !served(name));
  const chosen = served(parameters.run) ?? status.runs[0];
  const before = leave();
  const page = pageOf(view, chosen, parameters);
  drawNavigation(view, chosen);
  document
    .getElementById("run-choice")
    .replaceChildren(...(missing ? [] : runChoice(view, chosen, parameters)));
  main.replaceChildren(page.root);
  const ready = missing ? page.root.append(...notServed(missing, view, parameters)) : VIEWS[view].show(page);
  document.title = `${main.querySelector("h1").textContent} · aoq`;
  settleFocus(view, before);
  shown = { view, hash: location.hash };
  await ready;
  if (!page.alive()) return;
  if (before.back) comeBack();
  if (before.same === view) keepFocus(before.focus);
}

function pageOf(view, chosen, parameters) {
  const signal = leaving.signal;
  const root = h("div", { class: `view ${view}` });
  const go = (to, given, { replace = false } = {}) => {
    const target = address(to, { run: chosen.name, ...given });
    if (target === location.hash) return;
    if (!replace) return void (location.hash = target);
    history.replaceState(history.state, "", target);
    route();
  };
  return {
    root,
    status,
    run: chosen,
    parameters,
    memory: memory[view],
    signal,
    alive: () => !signal.aborted,
    go,
    replace: (target) => (history.replaceState(history.state, "", target), route()),
    results: () => (memory.photos.results?.run === chosen.name ? memory.photos.results : null),
  };
}

/** Remember where the person was, for the way back; an entry of the history seen before is one. */
function leave() {
  const active = document.activeElement;
  const focus = { id: active?.id || null, href: active?.getAttribute?.("href") ?? null };
  if (shown) places.set(shown.hash, { scroll: scrollY, focus });
  leaving.abort();
  leaving = new AbortController();
  const back = history.state?.seen === true;
  if (!back) history.replaceState({ seen: true }, "");
  return { back, first: shown === null, same: shown?.view, focus };
}

/** In the same view the focus stays on the same control; another view is read from its heading. */
function settleFocus(view, before) {
  if (before.first) return;
  if (!before.back && before.same !== view) scrollTo(0, 0);
  main.querySelector("h1").focus({ preventScroll: true });
  if (before.same === view) keepFocus(before.focus);
}

/** Some controls are there at once, others come with the answer. */
function keepFocus({ id }) {
  if (id && document.activeElement?.tagName === "H1")
    document.getElementById(id)?.focus({ preventScroll: true });
}

function comeBack() {
  const place = places.get(location.hash);
  if (!place) return;
  const left =
    place.focus.href &&
    [...main.querySelectorAll("a")].find((link) => link.getAttribute("href") === place.focus.href);
  left?.focus({ preventScroll: true });
  scrollTo(0, place.scroll);
}

/** Photo search first; the research views are behind one link, and then a row of their own. */
function drawNavigation(view, chosen) {
  const current = PARENT[view] ?? view;
  const isResearch = RESEARCH.some(([name]) => name === view);
  const link = ([name, drawing, label], isCurrent = name === current) =>
    h(
      "a",
      { href: address(name, { run: chosen.name }), "aria-current": isCurrent ? "page" : null },
      icon(drawing),
      h("span", {}, label),
    );
  const first = status.runs.length > 1 ? "compare" : "run";
  document
    .getElementById("views")
    .replaceChildren(
      ...SEARCH.map((one) => link(one)),
      link([first, "research", "Research"], isResearch),
    );
  const row = document.getElementById("research");
  row.hidden = !isResearch;
  row.replaceChildren(...RESEARCH.map((one) => link(one)));
  document.querySelector(".brand").setAttribute("href", address("photos", { run: chosen.name }));
}

/** Another run would answer otherwise, so it is for the person to choose one. */
function notServed(name, view, { text }) {
  const links = status.runs.map((run) =>
    h("a", { href: address(view, { run: run.name, text }) }, run.label),
  );
  return [
    heading(`No run is called ${name}`, "The address names a run that is not served; these are:"),
    h("p", { class: "links" }, ...links),
  ];
}

function runChoice(view, chosen, parameters) {
  if (status.runs.length === 1) return [h("span", { class: "only-run" }, chosen.label)];
  if (view === "compare") return []; // which has its own
  const { signal } = leaving;
  const change = async (event) => {
    const other = status.runs.find((one) => one.name === event.target.value);
    const target = address(view, await forRun(parameters, chosen, other));
    if (!signal.aborted) location.hash = target;
  };
  const options = status.runs.map((one) =>
    h("option", { value: one.name, selected: one === chosen }, one.label),
  );
  return [
    h("label", { for: "chosen-run" }, "Run"),
    h("select", { id: "chosen-run", onchange: change }, ...options),
  ];
}

function tellBusy(seconds) {
  document.getElementById("notice").textContent = seconds
    ? `The server is busy; asking again in ${seconds} s.`
    : "";
}

/** A slash goes to the sentence, as on many search pages. */
function searchKey(event) {
  const input = document.getElementById("sentence");
  if (event.key !== "/" || !input || event.target.matches("input, select, textarea")) return;
  event.preventDefault();
  input.focus();
}

start();
