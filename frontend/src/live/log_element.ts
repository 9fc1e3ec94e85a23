// <sl-log>: the tail of a run's log, as text and nothing but text. It follows the end until the reader scrolls up.

import { exactTime } from "../format.ts";
import { LogLines } from "./log_lines.ts";
import type { LogLine } from "./messages.ts";

const SHOWN_CHARACTERS = 2000;
const LEVELS = ["all lines", "warnings and errors", "errors"] as const;
const HIDDEN_AT: Record<string, number> = { info: 1, warning: 2 };

export class LogElement extends HTMLElement {
  readonly #kept = new LogLines();
  readonly #list = document.createElement("ol");
  readonly #empty = document.createElement("p");
  #dirty = false;

  connectedCallback(): void {
    if (this.#list.isConnected) return;
    this.#list.className = "sl-log-lines";
    this.#list.tabIndex = 0;
    this.#list.setAttribute("aria-label", "log, newest last");
    this.#empty.className = "sl-log-empty";
    this.#empty.textContent = "The engine has said nothing yet.";
    this.replaceChildren(this.#levels(), this.#empty, this.#list);
    document.addEventListener("visibilitychange", () => this.#draw());
  }

  /** Show these lines in place of what is there. */
  show(lines: readonly LogLine[]): void {
    this.#kept.clear();
    this.add(lines);
    this.#dirty = true;
    this.#draw();
  }

  add(lines: readonly LogLine[]): void {
    if (this.#kept.add(lines).length === 0) return;
    this.#dirty = true;
    this.#draw();
  }

  #draw(): void {
    if (!this.#dirty || document.hidden) return;
    this.#dirty = false;
    const list = this.#list;
    const following = list.scrollHeight - list.scrollTop - list.clientHeight < 40;
    // Lines that are shown already keep their elements, so that a selection in them stays.
    const shown = new Map([...list.children].map((item) => [(item as HTMLElement).dataset["line"], item]));
    list.replaceChildren(
      ...this.#kept.lines.map((line) => shown.get(`${line.attempt}/${line.seq}`) ?? itemOf(line)),
    );
    this.#empty.hidden = this.#kept.lines.length > 0;
    if (following) list.scrollTop = list.scrollHeight;
  }

  #levels(): HTMLElement {
    const label = document.createElement("label");
    label.className = "sl-log-level";
    const choice = document.createElement("select");
    choice.className = "form-select form-select-sm";
    LEVELS.forEach((words, level) => choice.add(new Option(words, String(level))));
    choice.addEventListener("change", () => {
      this.#list.dataset["level"] = choice.value;
    });
    label.append("Show ", choice);
    return label;
  }
}

function itemOf(line: LogLine): HTMLLIElement {
  const item = document.createElement("li");
  item.dataset["line"] = `${line.attempt}/${line.seq}`;
  item.dataset["hiddenAt"] = String(HIDDEN_AT[line.level] ?? 3);
  item.dataset["level"] = line.level;
  const at = document.createElement("time");
  at.dateTime = line.at;
  at.textContent = new Date(line.at).toLocaleTimeString("en-GB");
  at.title = `${exactTime(line.at)}, attempt ${line.attempt}, event ${line.seq}`;
  const level = document.createElement("span");
  level.className = "sl-log-word";
  level.textContent = line.level;
  item.append(at, " ", level, " ", messageOf(line.message));
  return item;
}

/** A message as text; one that would fill the page is cut, with a button for the rest. */
function messageOf(message: string): HTMLElement {
  const text = document.createElement("span");
  text.className = "sl-log-message";
  text.textContent = message.slice(0, SHOWN_CHARACTERS);
  if (message.length <= SHOWN_CHARACTERS) return text;
  const more = document.createElement("button");
  more.type = "button";
  more.className = "btn btn-sm btn-link";
  more.textContent = `show ${(message.length - SHOWN_CHARACTERS).toLocaleString("en")} more characters`;
  more.addEventListener("click", () => {
    text.textContent = message;
  });
  text.append("… ", more);
  return text;
}
