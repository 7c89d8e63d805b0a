"""The page that redeems a one-time link where the console is not built: one form and one script.

The link's token stands in the fragment of the URL, which browsers send to nobody, so that it is in no log. The page's
one script is named by its digest in the Content-Security-Policy.
"""

from __future__ import annotations

import base64
from hashlib import sha256

_SCRIPT = """
const [kind, token] = location.hash.slice(1).split("=");
history.replaceState(null, "", location.pathname);
const form = document.querySelector("form"), said = document.querySelector("output");
const texts = {
  invitation: ["Accept the invitation", ["name", "password"]],
  password_reset: ["Set another password", ["password"]],
  sign_in: ["Sign in", []],
  code: ["Enter the code of your authenticator", ["code"]],
  first_password: ["Choose a password", ["password"]],
};
let step = kind;
function show(next, message) {
  step = next;
  said.textContent = message || "";
  const [title, fields] = texts[step] || ["", []];
  form.hidden = !texts[step];
  document.querySelector("h1").textContent = title || "Turnpike";
  for (const label of form.querySelectorAll("label")) label.hidden = !fields.includes(label.htmlFor);
}
async function call(method, path, body) {
  const headers = {"content-type": "application/json", "x-turnpike-csrf": "1"};
  const answer = await fetch("/admin/v1" + path, {method, headers, body: body && JSON.stringify(body)});
  const content = await answer.json();
  if (!answer.ok) throw new Error(content.error.message);
  return content;
}
async function entered(answer) {
  if (answer.state === "second_factor_required") return show("code");
  const me = await call("GET", "/users/me");
  me.has_password ? show("", "You are signed in.") : show("first_password");
}
form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const {name, password, code} = Object.fromEntries(new FormData(form));
  try {
    if (step === "invitation") {
      await call("POST", "/invitations/accept", {token, name, password});
      show("", "Welcome. You may sign in now.");
    } else if (step === "password_reset") {
      await call("POST", "/password-resets/redeem", {token, password});
      show("", "The password is set. You may sign in now.");
    } else if (step === "sign_in") await entered(await call("POST", "/session/link", {token}));
    else if (step === "code") await entered(await call("POST", "/session/second-factor", {code}));
    else {
      await call("POST", "/users/me/password", {new: password});
      show("", "You are signed in, and the password is set.");
    }
  } catch (error) {
    said.textContent = error.message;
  }
});
show(texts[kind] ? kind : "", texts[kind] ? "" : "This link is not complete.");
"""
LINK_PAGE_HTML = f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Turnpike</title>
<h1>Turnpike</h1>
<form hidden>
<label for="name">Name <input id="name" name="name" autocomplete="name"></label>
<label for="password">Password, at least 12 characters
<input id="password" name="password" type="password" autocomplete="new-password"></label>
<label for="code">Code <input id="code" name="code" inputmode="numeric" autocomplete="one-time-code"></label>
<button>Go on</button>
</form>
<output aria-live="polite"></output>
<noscript>This page needs JavaScript; docs/users.md says how to redeem a link with curl.</noscript>
<script>{_SCRIPT}</script></html>
"""
_DIGEST = base64.b64encode(sha256(_SCRIPT.encode()).digest()).decode()
LINK_PAGE_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": f"default-src 'none'; script-src 'sha256-{_DIGEST}'; connect-src 'self'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
"""The headers of the page."""
