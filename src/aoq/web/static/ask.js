/**
 * What is asked of a photo search: read from an address, written to one, and sent to the server.
 *
 * One sentence is in the line; the rest are chips below it. Lists are lines in an address, so that
 * any sentence can stand in them.
 */

import { number as numberOf } from "./address.js";

const WORDS = ["only", "off"];

/** The query that an address states. */
export function askedBy(parameters) {
  const precision = Number(parameters.precision);
  return {
    text: (parameters.text ?? "").trim(),
    number: numberOf(parameters, "text_number"),
    also: lines(parameters.also),
    without: lines(parameters.without),
    like: (parameters.like ?? "").split(",").filter((each) => /^\d{1,9}$/.test(each)).map(Number),
    upload: parameters.upload ?? null,
    folder: parameters.folder ?? "",
    from: parameters.from ?? "",
    to: parameters.to ?? "",
    split: parameters.split ?? "",
    where: parameters.where ?? "",
    words: WORDS.includes(parameters.words) ? parameters.words : "",
    precision: precision > 0 && precision < 1 ? precision : null,
    collapse: parameters.collapse === "1",
  };
}

/** The parameters of an address for a query. */
export function parametersOf({ number, also, without, like, collapse, ...plain }) {
  return {
    ...plain,
    text_number: number,
    also: also.join("\n"),
    without: without.join("\n"),
    like: like.join(","),
    collapse: collapse ? 1 : null,
  };
}

/** Whether there is anything to search for. */
export function isAsked({ text, number, also, like, upload }) {
  return Boolean(text || number !== null || also.length || like.length || upload);
}

/** The body of a request; `upload` is the server's name of an uploaded picture. */
export function requestOf(asked, { top, upload }) {
  const first = asked.number ?? asked.text;
  const body = {
    texts: [...(first === "" ? [] : [first]), ...asked.also],
    like: [...asked.like, ...(upload ? [upload] : [])],
    without: asked.without,
    where: filterOf(asked),
    words: asked.words || "auto",
    min_precision: asked.precision,
    collapse: asked.collapse,
    top,
  };
  return Object.fromEntries(
    Object.entries(body).filter(([, value]) => value !== null && value.length !== 0),
  );
}

/** The filter in words, as `aoq search --where` takes it; null where all photos may be found. */
export function filterOf({ folder, from, to, split, where }) {
  const parts = [
    folder && `folder = ${quoted(folder)}`,
    from && `date >= ${quoted(from)}`,
    to && `date <= ${quoted(to)}`,
    split && `split = ${quoted(split)}`,
  ].filter(Boolean);
  if (where) parts.push(parts.length ? `(${where})` : where);
  return parts.join(" and ") || null;
}

/**
 * The words to exclude, which a minus marks as elsewhere: `a dog -snow -"red car"`. A minus inside
 * a word is none.
 */
export function withoutMarked(line) {
  const without = [];
  const text = line.replace(/(^|\s)-(?:"([^"]+)"|([^\s"-][^\s"]*))/g, (_, before, quote, word) => {
    without.push(quote ?? word);
    return before;
  });
  return { text: text.replace(/\s+/g, " ").trim(), without };
}

function lines(text) {
  return (text ?? "").split("\n").map((line) => line.trim()).filter(Boolean);
}

function quoted(text) {
  return `"${text.replace(/["\\]/g, "\\$&")}"`;
}
