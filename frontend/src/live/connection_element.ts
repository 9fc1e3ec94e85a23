// <sl-connection>: whether the page is live, and if not, since when its data is and when the next try is due.

import { LitElement, type TemplateResult, html, nothing } from "lit";

import { clockTime } from "../format.ts";
import { NOT_LOGGED_IN, type Status } from "./connection.ts";

const WORDS: Record<Status["kind"], string> = {
  connecting: "connecting",
  live: "live",
  trouble: "trouble",
  reconnecting: "reconnecting",
  polling: "polling every 3 s",
  offline: "offline",
  asleep: "paused while hidden",
  refused: "not live",
};

export class ConnectionElement extends LitElement {
  static override properties = { status: { attribute: false } };

  declare status: Status;
  #ticking: ReturnType<typeof setInterval> | undefined;

  constructor() {
    super();
    this.status = { kind: "connecting" };
  }

  protected override createRenderRoot(): HTMLElement {
    return this;
  }

  override connectedCallback(): void {
    super.connectedCallback();
    this.#ticking = setInterval(() => {
      if ("at" in this.status) this.requestUpdate();
    }, 1000);
  }

  override disconnectedCallback(): void {
    super.disconnectedCallback();
    clearInterval(this.#ticking);
  }

  protected override render(): TemplateResult {
    const status = this.status;
    this.dataset["kind"] = status.kind;
    return html`<span class="sl-dot" aria-hidden="true"></span><span role="status">${WORDS[status.kind]}${more(status)}</span
      >${"at" in status ? html`<span aria-hidden="true">, ${untilNext(status.at)}</span>` : nothing}`;
  }
}

function more(status: Status): TemplateResult | string {
  if (status.kind === "trouble") return `: ${status.detail}`;
  if (status.kind === "offline") return status.dataOf === null ? "" : `: data of ${clockTime(status.dataOf)}`;
  if (status.kind !== "refused") return "";
  if (status.code !== NOT_LOGGED_IN) return ": this run is not there any more";
  return html`: <a href="/login?next=${encodeURIComponent(location.pathname)}">log in again</a>`;
}

function untilNext(at: number): string {
  const seconds = Math.ceil((at - Date.now()) / 1000);
  return seconds > 0 ? `next try in ${seconds} s` : "trying now";
}
