/**
 * Questions to a run. A query that is an entry of the index has a number, and its correct answers
 * are known; free texts and uploaded pictures have none.
 */

import { number as numberOf } from "./address.js";
import { ApiError, ofRun, postPicture, search } from "./api.js";
import { requestOf } from "./ask.js";

/**
 * Photos for everything that can be asked at once. A number counts only where the run has the same
 * sentence under it.
 */
export async function photosFor(run, asked, top) {
  const known = asked.number === null ? asked : { ...asked, ...(await numbered(run, asked)) };
  const ask = (upload) => search(run, requestOf(known, { top, upload }));
  const answer = await (asked.upload ? sentAgain(run, asked.upload, ask) : ask(null));
  return { ...answer, text: known.text, number: known.number };
}

async function numbered(run, { text, number }) {
  try {
    const { entry } = await ofRun(run, `entries/text/${number}`);
    return text && entry.text !== text ? { number: null } : { text: entry.text };
  } catch (error) {
    if (error.status === 404 && text) return { number: null };
    throw error;
  }
}

/** Photos that look like one of the index, or like an upload. */
export function photosLike(run, { image, upload }, top) {
  const ask = (like) => search(run, { like: [like], top });
  return upload ? sentAgain(run, upload, ask) : ask(image);
}

/**
 * Photos for a sentence. A number counts only where the run has the same sentence under it: an
 * address may have been made for another run.
 */
export async function imagesFor(run, { text, number }, top) {
  const numbered = number === null ? null : await numberedImages(run, number, text, top);
  return numbered ?? ofRun(run, "images", { text, top });
}

async function numberedImages(run, number, text, top) {
  try {
    const answer = await ofRun(run, "images", { text_number: number, top });
    return !text || answer.query.text === text ? answer : null;
  } catch (error) {
    if (error.status === 404 && text) return null;
    throw error;
  }
}

/**
 * Sentences for a photo of the index or for an uploaded picture. A photo that was indexed without
 * captions has no correct ones, so none of them counts as wrong either.
 */
export async function textsFor(run, { image, upload }, top) {
  if (upload) return textsForUpload(run, upload, top);
  const [answer, { captions }] = await Promise.all([
    ofRun(run, "texts", { image, top }),
    photoWithCaptions(run, image),
  ]);
  if (captions.length) return answer;
  return { ...answer, hits: answer.hits.map((hit) => ({ ...hit, correct: null })) };
}

/**
 * An entry of a run's index, and the same one in that of another; null where it is not there.
 * Photos of several folders may share an id: the picture tells them apart, where it is known.
 */
export async function entryIn(other, run, kind, number) {
  const { entry } = await ofRun(run, `entries/${kind}/${number}`);
  const { entries } = await ofRun(other, "entries", { kind, id: entry.id });
  const alike = entries.filter((one) => one.text === entry.text);
  const there =
    alike.find((one) => one.content === entry.content) ??
    alike.find((one) => one.content === null || entry.content === null);
  return { entry, there: there ?? null };
}

/** A sentence for another run; what no number stands for, or not that sentence, is in words. */
export async function sentenceIn(other, run, { text, number }) {
  if (number === null) return { text, number };
  try {
    const { entry, there } = await entryIn(other, run, "text", number);
    if (!text || text === entry.text) return { text: entry.text, number: there?.number ?? null };
  } catch (error) {
    if (error.status !== 404 || !text) throw error;
  }
  return { text, number: null };
}

/**
 * Parameters of an address for another run: numbers mean the same only where the indexes hold the
 * same. Else the entries are looked for, and those that are not found are left out.
 */
export async function forRun(parameters, from, to) {
  if (from.index === to.index) return { ...parameters, run: to.name };
  const { kind, text = "", upload, like = "" } = parameters;
  const numberIn = async (name, kind) => {
    const number = numberOf(parameters, name);
    if (number === null) return null;
    return (await entryIn(to.name, from.name, kind, number)).there?.number ?? null;
  };
  try {
    const likeThere = async (number) =>
      (await entryIn(to.name, from.name, "image", number)).there?.number ?? null;
    const [liked, image, number, sentence] = await Promise.all([
      Promise.all(like.split(",").filter(Boolean).map(likeThere)),
      numberIn("image", "image"),
      numberIn("number", kind === "text" ? "text" : "image"),
      sentenceIn(to.name, from.name, { text, number: numberOf(parameters, "text_number") }),
    ]);
    const found = { image, number, text: sentence.text, text_number: sentence.number };
    const those = liked.filter((each) => each !== null).join(",");
    return { ...parameters, ...found, like: those, run: to.name };
  } catch (error) {
    if (error instanceof ApiError) return { run: to.name, kind, text, upload };
    throw error;
  }
}

/** A photo of the index with its captions, and what else is known of it. */
export async function photoWithCaptions(run, image) {
  const { entry, partners, columns } = await ofRun(run, `entries/image/${image}`);
  return { entry, captions: partners, columns };
}

/** A photo of the index by its number. */
export async function photoOf(run, image) {
  return (await photoWithCaptions(run, image)).entry;
}

/**
 * A random page of entries, the same for the same seed. Prefers the given split, whose entries the
 * model was not trained on; an index need not have it.
 */
export async function sampleOf(run, kind, { split = "test", limit, seed }) {
  const preferred = await ofRun(run, "entries", { kind, split, limit, sample: seed });
  return preferred.total ? preferred : ofRun(run, "entries", { kind, limit, sample: seed });
}

// Uploaded pictures stay in this tab, for as long as it is open: file, and each run's answers.
const uploads = new Map();

/** Keep a picture; the name returned stands for it in addresses. */
export function keepUpload(file) {
  const name = crypto.getRandomValues(new Uint32Array(1))[0].toString(36);
  uploads.set(name, { file, answers: new Map() });
  return name;
}

/** The file of an uploaded picture, or null where this tab does not have it. */
export function uploadedFile(name) {
  return uploads.get(name)?.file ?? null;
}

async function textsForUpload(run, name, top) {
  return answered(run, name, `texts?top=${top}`);
}

/** The name that the server gave to an uploaded picture. */
async function uploadName(run, name) {
  return (await answered(run, name, "uploads")).upload;
}

/** The answer to a picture that is sent; it is sent once for each. */
async function answered(run, name, path) {
  const upload = uploads.get(name);
  if (!upload)
    throw new ApiError(
      "The uploaded picture is not kept when the page is loaded again; choose it once more.",
      404,
    );
  const key = `${run} ${path}`;
  if (!upload.answers.has(key)) upload.answers.set(key, await postPicture(run, upload.file, path));
  return upload.answers.get(key);
}

/**
 * The "attention" between a picture and a sentence, or their "score"; a picture the server has
 * dropped is sent again.
 */
export async function pairFor(what, run, { image, upload }, asked) {
  const sentence = await sentenceOf(run, asked);
  if (!upload) return ofRun(run, what, { image, ...sentence });
  return sentAgain(run, upload, (name) => ofRun(run, what, { upload: name, ...sentence }));
}

/** Ask about an upload; one that the server has dropped is sent once more. */
async function sentAgain(run, upload, ask) {
  try {
    return await ask(await uploadName(run, upload));
  } catch (error) {
    if (error.status !== 404 || !uploads.has(upload)) throw error;
    uploads.get(upload).answers.delete(`${run} uploads`);
    return ask(await uploadName(run, upload));
  }
}

/** A sentence as a parameter; here too a number counts only where it stands for the same. */
async function sentenceOf(run, { text, number }) {
  if (number === null) return { text };
  if (!text) return { text_number: number };
  try {
    const { entry } = await ofRun(run, `entries/text/${number}`);
    return entry.text === text ? { text_number: number } : { text };
  } catch (error) {
    if (error.status === 404) return { text };
    throw error;
  }
}
