/**
 * Requests to the server behind the page. Most answers do not change while it runs, so they are
 * kept: going back shows at once what was there. A run may still be training, so what tells of that
 * is asked for each time. An error is the server's own sentence.
 */

const KEPT_ANSWERS = 200;
const CHANGING = /\/(status|curves|results)$/;
const PASSING = [0, 429, 503]; // no connection, too many at once, too late
const kept = new Map();

/** What went wrong, in a sentence for the person. */
export class ApiError extends Error {
  constructor(sentence, status) {
    super(sentence);
    this.status = status;
  }

  /** Whether the same question may be answered later. */
  get passes() {
    return PASSING.includes(this.status);
  }
}

/** Called with the seconds to wait where the server is busy, and with 0 when the wait is over. */
export const busy = { tell: () => {} };

/** Called where the server wants a token that it has not got. */
export const refused = { tell: () => {} };

/** Ask for an answer of a run, e.g. `ofRun("vsrn", "images", {text: "a dog"})`. */
export function ofRun(run, path, parameters = {}) {
  return get(`/api/runs/${encodeURIComponent(run)}/${path}`, parameters);
}

export function get(path, parameters = {}) {
  const given = Object.entries(parameters).filter(
    ([, value]) => value !== null && value !== undefined,
  );
  const address = given.length ? `${path}?${new URLSearchParams(given)}` : path;
  return remembered(address, () => request(address), { changes: CHANGING.test(path) });
}

/** Ask for what a query finds in a run. */
export function search(run, query) {
  const path = `/api/runs/${encodeURIComponent(run)}/search`;
  return remembered(`${path} ${JSON.stringify(query)}`, () => post(path, query));
}

/** Send something to the server; its answer may be empty. */
export function post(path, content) {
  const headers = { "Content-Type": "application/json" };
  return request(path, { method: "POST", headers, body: JSON.stringify(content) });
}

/** Send a picture to a run: for its sentences ("texts"), or to ask about it ("uploads"). */
export function postPicture(run, file, path) {
  const body = new FormData();
  body.append("picture", file, file.name || "picture");
  return request(`/api/runs/${encodeURIComponent(run)}/${path}`, { method: "POST", body });
}

function remembered(key, ask, { changes = false } = {}) {
  if (!kept.has(key)) {
    const answer = ask();
    const forget = () => kept.delete(key);
    kept.set(key, answer);
    answer.then(() => changes && forget(), forget);
    if (kept.size > KEPT_ANSWERS) kept.delete(kept.keys().next().value);
  }
  return kept.get(key);
}

async function request(address, options) {
  let response = await sent(address, options);
  if (response.status === 429) {
    await patience(Number(response.headers.get("Retry-After")) || 1);
    response = await sent(address, options);
  }
  if (response.status === 204) return null;
  const answer = await response.json().catch(() => null);
  if (response.status === 401) refused.tell(address);
  if (response.ok && answer !== null) return answer;
  throw new ApiError(
    answer?.error ?? `The server answered ${response.status} and gave no reason.`,
    response.status,
  );
}

async function sent(address, options) {
  try {
    return await fetch(address, options);
  } catch {
    throw new ApiError("The server does not answer. Is `aoq serve` still running?", 0);
  }
}

async function patience(seconds) {
  busy.tell(seconds);
  await new Promise((resolve) => setTimeout(resolve, seconds * 1000));
  busy.tell(0);
}
