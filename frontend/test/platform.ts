// A platform for tests: a run that tells points, served over sockets that can break and over polling.

import type { Socket, Status, Ways } from "../src/live/connection.ts";
import type { Message, Point, RunSummary, Updates } from "../src/live/messages.ts";

export const RUN: RunSummary = {
  state: "running",
  stage: "rl",
  x: 0,
  total_steps: 10,
  attempt: 1,
  allowed_commands: [],
  stages: [],
};

export class FakeSocket implements Socket {
  onmessage: ((event: MessageEvent) => void) | null = null;
  onclose: ((event: CloseEvent) => void) | null = null;
  closed = false;
  readonly since: number;

  constructor(since: number) {
    this.since = since;
  }

  close(): void {
    this.closed = true;
  }

  say(message: Message): void {
    this.onmessage?.({ data: JSON.stringify(message) } as MessageEvent);
  }

  lose(code = 1006): void {
    this.onclose?.({ code } as CloseEvent);
  }
}

/** Point n of the run has revision n. */
export class Platform implements Ways {
  revision = 1;
  pollFails: Error | null = null;
  sockets: FakeSocket[] = [];
  polls: number[] = [];
  told: Updates[] = [];
  refetches = 0;
  statuses: Status[] = [];

  get socket(): FakeSocket {
    const last = this.sockets.at(-1);
    if (!last) throw new Error("no socket was opened");
    return last;
  }

  get points(): number[] {
    return this.told.flatMap((updates) => updates.points.map((point) => point[1]));
  }

  since(cursor: number, reset = false): Updates {
    const fresh = Array.from({ length: Math.max(0, this.revision - cursor) }, (_, n): Point => ["reward", cursor + n + 1, 0.5, ""]);
    return { cursor: this.revision, reset, run: RUN, points: fresh, log: [], more: false };
  }

  open(since: number): Socket {
    this.sockets.push(new FakeSocket(since));
    return this.socket;
  }

  async poll(since: number): Promise<Updates> {
    this.polls.push(since);
    if (this.pollFails) throw this.pollFails;
    return this.since(since);
  }

  news(updates: Updates): void {
    this.told.push(updates);
  }

  refetch(): void {
    this.refetches += 1;
  }

  status(status: Status): void {
    this.statuses.push(status);
  }
}
