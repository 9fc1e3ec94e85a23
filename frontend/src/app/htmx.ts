// htmx under our content security policy: no eval, no inline style, the CSRF header on its requests.

import htmx from "htmx.org";

import { csrfToken } from "./csrf.ts";

export function startHtmx(): void {
  htmx.config.allowEval = false;
  htmx.config.allowScriptTags = false;
  htmx.config.includeIndicatorStyles = false;
  htmx.config.selfRequestsOnly = true;
  // History restores from the server: what a page shows may be another user's after a log-out.
  htmx.config.historyCacheSize = 0;
  document.addEventListener("htmx:configRequest", (event) => {
    const detail = (event as CustomEvent<{ verb: string; headers: Record<string, string> }>).detail;
    if (detail.verb !== "get") detail.headers["X-CSRFToken"] = csrfToken();
  });
  // A part that asks again by itself rests while nobody can see it.
  document.addEventListener("htmx:beforeRequest", (event) => {
    if (document.hidden && event.target instanceof Element && event.target.matches("[data-poll]")) event.preventDefault();
  });
}
