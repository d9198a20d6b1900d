/**
 * Questions to a run. A query that is an entry of the index has a number, and its correct answers
 * are known; free texts and uploaded pictures have none.
 */

import { ApiError, ofRun, postPicture } from "./api.js";

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

/** Sentences for a photo of the index or for an uploaded picture. */
export async function textsFor(run, { image, upload }, top) {
  return upload ? textsForUpload(run, upload, top) : ofRun(run, "texts", { image, top });
}

/** An entry of a run's index, and the same one in that of another; null where it is not there. */
export async function entryIn(other, run, kind, number) {
  const { entry } = await ofRun(run, `entries/${kind}/${number}`);
  const { entries } = await ofRun(other, "entries", { kind, id: entry.id });
  return { entry, there: entries.find((one) => one.text === entry.text) ?? null };
}

/** A photo of the index with its captions. */
export async function photoWithCaptions(run, image) {
  const { entry, partners } = await ofRun(run, `entries/image/${image}`);
  return { entry, captions: partners };
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
  const upload = uploads.get(name);
  if (!upload)
    throw new ApiError(
      "The uploaded picture is not kept when the page is loaded again; choose it once more.",
      404,
    );
  const key = `${run} ${top}`;
  if (!upload.answers.has(key)) upload.answers.set(key, await postPicture(run, upload.file, top));
  return upload.answers.get(key);
}

/** Attention between a picture and a sentence; a picture the server has dropped is sent again. */
export async function attentionFor(run, { image, upload }, { text, number }) {
  const sentence = number !== null ? { text_number: number } : { text };
  if (!upload) return ofRun(run, "attention", { image, ...sentence });
  const token = async () => (await textsForUpload(run, upload, 1)).upload;
  try {
    return await ofRun(run, "attention", { upload: await token(), ...sentence });
  } catch (error) {
    if (error.status !== 404 || !uploads.has(upload)) throw error;
    uploads.get(upload).answers.delete(`${run} 1`);
    return ofRun(run, "attention", { upload: await token(), ...sentence });
  }
}
