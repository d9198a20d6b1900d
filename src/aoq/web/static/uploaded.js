/**
 * A picture of the person's own, painted on a canvas: the content security policy lets images come
 * from the server only, and the picture has not left this tab's memory in any other form.
 */

import { h, icon } from "./dom.js";

const LONGEST_SIDE = 1280;

/** The picture, or its name where the browser cannot read such files. */
export function uploadedPicture(file) {
  const frame = h("span", { class: "fills" });
  const missing = (words) =>
    frame.replaceChildren(h("span", { class: "no-picture" }, icon("photos"), words));
  if (!file) missing("No longer here");
  else
    createImageBitmap(file).then(
      (bitmap) => frame.replaceChildren(painted(bitmap, file.name)),
      () => missing(file.name || "Your picture"),
    );
  return frame;
}

function painted(bitmap, name) {
  const scale = Math.min(1, LONGEST_SIDE / Math.max(bitmap.width, bitmap.height));
  const canvas = h("canvas", { role: "img", "aria-label": `Your picture ${name}` });
  canvas.width = Math.max(1, Math.round(bitmap.width * scale));
  canvas.height = Math.max(1, Math.round(bitmap.height * scale));
  canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  return canvas;
}
