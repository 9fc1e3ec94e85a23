// Puts a run's summary into the page: `data-field`, `data-state`, the progress bar, and which commands are possible.

import { type Format, formatted } from "../format.ts";
import type { RunSummary } from "./messages.ts";

const NOTHING = "–";

export function showRun(root: HTMLElement, run: RunSummary): void {
  for (const element of root.querySelectorAll<HTMLElement>("[data-field]")) showField(element, run);
  for (const element of root.querySelectorAll<HTMLElement>("[data-state]")) element.dataset["state"] = run.state;
  for (const bar of root.querySelectorAll<HTMLProgressElement>("progress[data-role=progress]")) {
    bar.max = Math.max(1, run.total_steps);
    bar.value = run.x;
  }
  for (const button of root.querySelectorAll<HTMLButtonElement>("button[data-command]")) allow(button, run);
}

function showField(element: HTMLElement, run: RunSummary): void {
  const name = element.dataset["field"] ?? "";
  const value = valueAt(run, name);
  const format = (element.dataset["format"] ?? "text") as Format;
  if (typeof value === "string" && (format === "age" || format === "time") && element instanceof HTMLTimeElement) {
    element.dateTime = value;
  } else if (typeof value === "string" && format === "age") {
    element.dataset["age"] = value; // app/ages.ts keeps it true
  }
  const text = formatted(value, format) || (name === "state_reason" ? "" : NOTHING);
  if (element.textContent !== text) element.textContent = text;
}

/** `latest.pass@1` is `run.latest["pass@1"]`, `stages.0.trained_steps` a field of the first stage; a key of its own
 *  with dots in it is found too. */
export function valueAt(of: Record<string, unknown>, path: string): unknown {
  if (path in of) return of[path];
  const dot = path.indexOf(".");
  const within = dot > 0 ? of[path.slice(0, dot)] : undefined;
  if (typeof within !== "object" || within === null) return undefined;
  return valueAt(within as Record<string, unknown>, path.slice(dot + 1));
}

function allow(button: HTMLButtonElement, run: RunSummary): void {
  const kind = button.dataset["command"] ?? "";
  const allowed = run.allowed_commands.includes(kind);
  if (!("busy" in button.dataset)) button.disabled = !allowed;
  button.title = allowed ? "" : `not possible while the run is ${run.state}`;
}
