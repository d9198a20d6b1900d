/**
 * The token of a server that wants one: taken from the address once, or typed. The server makes a
 * session of it that scripts cannot read, and the address forgets it.
 */

import { ApiError, post } from "./api.js";
import { h, icon } from "./dom.js";

/** Begin a session with the token behind `#token=`, if there is one; return why not, if it fails. */
export async function sessionOfAddress() {
  const found = location.hash.match(/^#\/?token=([^&]+)/);
  if (!found) return null;
  history.replaceState(null, "", location.pathname);
  try {
    await begin(decodeURIComponent(found[1]));
    return null;
  } catch (error) {
    return error.message;
  }
}

/** The form in which a token is typed; `entered` is called when it was accepted. */
export function signIn(problem, entered) {
  const input = h("input", {
    type: "password",
    id: "token",
    required: true,
    autocomplete: "current-password",
    spellcheck: "false",
  });
  const reason = h("p", { class: "reason", role: "alert" }, problem ?? "");
  const submit = async (event) => {
    event.preventDefault();
    try {
      await begin(input.value.trim());
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      reason.textContent = error.message;
      input.select();
      return;
    }
    entered();
  };
  return h(
    "form",
    { class: "state sign-in", onsubmit: submit },
    icon("key"),
    h("h1", { tabindex: -1 }, "This server wants a token"),
    h("p", {}, "Whoever runs it has it: it was shown when the server started."),
    h(
      "div",
      { class: "line" },
      h("label", { class: "unseen", for: "token" }, "Token"),
      input,
      h("button", { class: "strong" }, "Enter"),
    ),
    reason,
  );
}

function begin(token) {
  return post("/api/session", { token });
}
