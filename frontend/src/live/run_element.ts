// <sl-run run-id cursor>: follows a run and hands what is new to the parts of the page.

import { ChartsElement } from "../charts/charts_element.ts";
import { startCommands } from "./commands.ts";
import { Connection, type Status } from "./connection.ts";
import { ConnectionElement } from "./connection_element.ts";
import { showRun } from "./fields.ts";
import { Follower } from "./follower.ts";
import { LogElement } from "./log_element.ts";
import type { LogLine, Point, RunSummary } from "./messages.ts";
import { RunApi } from "./rest.ts";

/** A tab hidden for longer gives its socket back, and catches up from its cursor when it is seen again. */
const ASLEEP_AFTER_MS = 60_000;

export class RunElement extends HTMLElement {
  #connection: Connection | null = null;
  #follower: Follower | null = null;
  #api: RunApi | null = null;
  #seen = "";
  #sleepTimer: ReturnType<typeof setTimeout> | undefined;

  connectedCallback(): void {
    if (this.#connection) return;
    const runId = this.getAttribute("run-id") ?? "";
    const api = (this.#api = new RunApi(runId));
    const follower = (this.#follower = new Follower({
      showRun: (run) => this.#showRun(run),
      add: (points, log) => this.#add(points, log),
      load: () => this.#load(),
    }));
    this.#connection = new Connection(Number(this.getAttribute("cursor") ?? 0), {
      open: (since) => new WebSocket(socketAddress(runId, since)),
      poll: (since) => api.updates(since),
      news: (updates) => follower.take(updates),
      refetch: () => follower.reload(),
      status: (status) => this.#showStatus(status),
    });
    startCommands(this, api);
    this.#charts?.whenTooLong(() => follower.reload());
    document.addEventListener("visibilitychange", this.#onVisibility);
    addEventListener("online", this.#onOnline);
    follower.reload();
    this.#connection.start();
  }

  disconnectedCallback(): void {
    document.removeEventListener("visibilitychange", this.#onVisibility);
    removeEventListener("online", this.#onOnline);
    clearTimeout(this.#sleepTimer);
    this.#connection?.stop();
    this.#connection = null;
  }

  get #charts(): ChartsElement | null {
    return this.querySelector<ChartsElement>("sl-charts");
  }

  get #log(): LogElement | null {
    return this.querySelector<LogElement>("sl-log");
  }

  async #load(): Promise<void> {
    if (!this.#api) return;
    const [charts, log] = await Promise.all([this.#api.charts(), this.#api.log()]);
    this.#charts?.show(charts);
    this.#log?.show(log);
  }

  #add(points: readonly Point[], log: readonly LogLine[]): void {
    this.#charts?.add(points);
    this.#log?.add(log);
  }

  #showRun(run: RunSummary): void {
    showRun(this, run);
    // Stage marks and evaluations are drawn by the platform: a stage that begins or ends changes them.
    const stages = run.stages.map((stage) => [stage.started_at !== null, stage.finished_at !== null]);
    const seen = JSON.stringify([run.state, run.attempt, stages]);
    const changed = this.#seen !== "" && this.#seen !== seen;
    this.#seen = seen;
    if (!changed) return;
    this.#follower?.reload();
    this.dispatchEvent(new CustomEvent("sl-run-changed", { bubbles: true, detail: { state: run.state } }));
  }

  #showStatus(status: Status): void {
    const element = this.querySelector<ConnectionElement>("sl-connection");
    if (element) element.status = status;
    this.dataset["connection"] = status.kind;
  }

  readonly #onVisibility = (): void => {
    clearTimeout(this.#sleepTimer);
    if (document.hidden) this.#sleepTimer = setTimeout(() => this.#connection?.stop(), ASLEEP_AFTER_MS);
    else if (this.dataset["connection"] === "asleep") this.#connection?.start();
  };

  /** The browser has a network again: no reason to wait for the next try. */
  readonly #onOnline = (): void => {
    const kind = this.dataset["connection"];
    if (kind !== "offline" && kind !== "reconnecting") return;
    this.#connection?.stop();
    this.#connection?.start();
  };
}

function socketAddress(runId: string, since: number): string {
  const scheme = location.protocol === "https:" ? "wss:" : "ws:";
  return `${scheme}//${location.host}/ws/v1/runs/${encodeURIComponent(runId)}?since=${since}`;
}
