// What the platform sends about a run, over the WebSocket and from REST `updates`.

/** A metric's value at a step over all stages (of engines: at seconds within the run); null with a word (`NaN`, `Inf`...) where it was not finite. */
export type Point = [key: string, x: number, value: number | null, nonFinite: string];

export interface LogLine {
  attempt: number;
  seq: number;
  at: string;
  level: string;
  message: string;
}

export interface StageOfRun {
  name: string;
  kind: string;
  started_at: string | null;
  finished_at: string | null;
}

export interface RunSummary {
  state: string;
  stage: string;
  x: number;
  total_steps: number;
  attempt: number;
  allowed_commands: string[];
  stages: StageOfRun[];
  [field: string]: unknown;
}

export interface Updates {
  cursor: number;
  reset: boolean;
  run: RunSummary;
  points: Point[];
  log: LogLine[];
  more: boolean;
}

export type Message =
  | ({ type: "snapshot" | "delta" } & Updates)
  | { type: "refetch"; cursor: number; reset: boolean }
  | { type: "ping" }
  | { type: "trouble"; detail: string };

const TYPES = new Set(["snapshot", "delta", "refetch", "ping", "trouble"]);

/** A message of ours, or null for anything else. */
export function parsed(text: string): Message | null {
  const found: unknown = JSON.parse(text);
  const type = typeof found === "object" && found !== null ? (found as { type?: unknown }).type : undefined;
  return typeof type === "string" && TYPES.has(type) ? (found as Message) : null;
}
