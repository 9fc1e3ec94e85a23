// The REST calls that a run's page makes. A failure carries what the problem document says, and the request's id.

import { csrfToken } from "../app/csrf.ts";
import type { Chart } from "../charts/chart.ts";
import { NOT_LOGGED_IN, NOT_VISIBLE, Refusal } from "./connection.ts";
import type { LogLine, Updates } from "./messages.ts";

const LOG_LINES = 300;

export class ProblemError extends Error {}

export interface CommandResource {
  id: string;
  kind: string;
  status: string;
  note: string;
}

export class RunApi {
  readonly #base: string;

  constructor(runId: string) {
    this.#base = `/api/v1/runs/${encodeURIComponent(runId)}`;
  }

  updates(since: number): Promise<Updates> {
    return get<Updates>(`${this.#base}/updates?since=${since}`);
  }

  async charts(): Promise<Chart[]> {
    return (await get<{ charts: Chart[] }>(`${this.#base}/charts`)).charts;
  }

  /** The last lines, oldest first. */
  async log(): Promise<LogLine[]> {
    return (await get<{ results: LogLine[] }>(`${this.#base}/logs?limit=${LOG_LINES}`)).results;
  }

  async command(kind: string, reason: string): Promise<CommandResource> {
    const answer = await fetch(`${this.#base}/commands/${encodeURIComponent(kind)}`, {
      method: "POST",
      headers: {
        "Content-Type": "application/json",
        "X-CSRFToken": csrfToken(),
        "Idempotency-Key": freshKey(),
      },
      body: JSON.stringify(reason ? { reason } : {}),
    });
    if (!answer.ok) throw new ProblemError(await problemOf(answer));
    return (await answer.json()) as CommandResource;
  }
}

async function get<T>(url: string): Promise<T> {
  const answer = await fetch(url, { headers: { Accept: "application/json" }, cache: "no-store" });
  if (answer.status === 401 || answer.status === 403) throw new Refusal(NOT_LOGGED_IN);
  if (answer.status === 404) throw new Refusal(NOT_VISIBLE);
  if (!answer.ok) throw new ProblemError(await problemOf(answer));
  return (await answer.json()) as T;
}

/** What went wrong, in words for people. */
async function problemOf(answer: Response): Promise<string> {
  const id = answer.headers.get("X-Request-ID");
  const asked = id ? ` (request ${id})` : "";
  try {
    const problem = (await answer.json()) as { title?: string; detail?: string };
    return `${problem.detail ?? problem.title ?? `status ${answer.status}`}${asked}`;
  } catch {
    return `the platform answered with status ${answer.status}${asked}`;
  }
}

/** A key that nobody used before; browsers give randomUUID only to HTTPS and localhost. */
function freshKey(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
