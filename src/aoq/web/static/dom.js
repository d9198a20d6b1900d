/**
 * Elements in one call. Styles are set as properties, never as attributes, because the content
 * security policy of the page refuses inline styles; texts are always text, never markup.
 */

const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes, listeners (`onclick`), `style` as an object, and children. */
export function h(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** Make an element of a drawing (SVG). */
export function s(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

/** A drawing of the sprite; it only decorates, the words beside it say what it means. */
export function icon(name) {
  return s(
    "svg",
    { class: "icon", "aria-hidden": "true" },
    s("use", { href: `/static/icons.svg#${name}` }),
  );
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style")
      Object.entries(value).forEach(([key, text]) => element.style.setProperty(key, text));
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(
    ...children.flat().filter((child) => child !== null && child !== undefined && child !== false),
  );
  return element;
}

/** Say something to screen readers, without moving the focus. */
export function announce(sentence) {
  document.getElementById("announcer").textContent = sentence;
}

/**
 * Arrow keys between the items of a list or grid: left and right in order, up and down to the
 * item nearest in that direction, Home and End to the ends. With `single`, the whole is one stop
 * of the Tab key, as it should be where there are many items.
 */
export function arrowKeys(container, selector, { single = false } = {}) {
  const items = () => [...container.querySelectorAll(selector)];
  const only = (chosen) => items().forEach((item) => (item.tabIndex = item === chosen ? 0 : -1));
  if (single) only(items()[0]);
  container.addEventListener("focusin", (event) => {
    if (single && event.target.matches(selector)) only(event.target);
  });
  container.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey || !event.target.matches(selector)) return;
    const next = neighbour(items(), event.target, event.key);
    if (!next) return;
    event.preventDefault();
    next.focus();
  });
  return container;
}

function neighbour(items, from, key) {
  const at = items.indexOf(from);
  if (key === "ArrowRight") return items[at + 1];
  if (key === "ArrowLeft") return items[at - 1];
  if (key === "Home") return items[0];
  if (key === "End") return items.at(-1);
  if (key !== "ArrowDown" && key !== "ArrowUp") return undefined;
  const sign = key === "ArrowDown" ? 1 : -1;
  const here = middle(from);
  const distance = (item) =>
    Math.abs(middle(item).x - here.x) + 3 * Math.abs(middle(item).y - here.y);
  return items
    .filter((item) => sign * (middle(item).y - here.y) > 4)
    .sort((one, other) => distance(one) - distance(other))[0];
}

function middle(element) {
  const box = element.getBoundingClientRect();
  return { x: box.left + box.width / 2, y: box.top + box.height / 2 };
}
