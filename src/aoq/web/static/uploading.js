/**
 * Files of the person's own: chosen, dropped on a place, or pasted.
 */

import { h, icon } from "./dom.js";

/** A button that opens a file. */
export function fileButton(id, label, take, { strong = false } = {}) {
  const input = h("input", {
    type: "file",
    id,
    class: "unseen",
    accept: "image/*",
    onchange: () => input.files[0] && take(input.files[0]),
  });
  const style = { class: strong ? "button strong" : "button", for: id };
  return [input, h("label", style, icon("upload"), label)];
}

/** Take files that are dropped on a place, or pasted anywhere while the view is shown. */
export function acceptFiles(page, zone, take) {
  const dragged = (event) => {
    event.preventDefault();
    zone.classList.toggle("dropping", event.type === "dragover");
    if (event.type === "drop" && event.dataTransfer.files[0]) take(event.dataTransfer.files[0]);
  };
  for (const type of ["dragover", "dragleave", "drop"]) zone.addEventListener(type, dragged);
  const pasted = (event) => event.clipboardData?.files[0] && take(event.clipboardData.files[0]);
  document.addEventListener("paste", pasted, { signal: page.signal });
}

/** Why a file is not even sent; null where it can be. */
export function refusedFile(page, file) {
  const limit = page.status.limits.upload_bytes;
  if (file.size <= limit) return null;
  return `${file.name} has ${megabytes(file.size)}; at most ${megabytes(limit)} are taken. Choose a smaller picture.`;
}

function megabytes(bytes) {
  return `${(bytes / 1e6).toFixed(1)} MB`;
}
