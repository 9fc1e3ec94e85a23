// The lines of a log that are kept: each once, in order, the last ones. Pure.

import type { LogLine } from "./messages.ts";

export const KEPT = 600;

export class LogLines {
  lines: LogLine[] = [];
  #seen = new Set<string>();

  /** Those of `lines` that are new, in order; what is too old is forgotten. */
  add(lines: readonly LogLine[]): LogLine[] {
    const fresh = lines.filter((line) => !this.#seen.has(nameOf(line)));
    if (fresh.length === 0) return [];
    for (const line of fresh) this.#seen.add(nameOf(line));
    this.lines = [...this.lines, ...fresh].sort(inOrder);
    for (const line of this.lines.splice(0, Math.max(0, this.lines.length - KEPT))) this.#seen.delete(nameOf(line));
    return fresh;
  }

  clear(): void {
    this.lines = [];
    this.#seen.clear();
  }
}

function nameOf(line: LogLine): string {
  return `${line.attempt}/${line.seq}`;
}

function inOrder(a: LogLine, b: LogLine): number {
  return a.attempt - b.attempt || a.seq - b.seq;
}
