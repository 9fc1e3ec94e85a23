// Keeps a run's page up to date: a WebSocket with a cursor, and polling while the socket is away.
//
// Whatever way news come, the cursor moves on with them, and whoever comes next asks for what follows it: so nothing is
// fetched twice and nothing is missed. Leaves out what is done with the news (follower.ts) and how the state is shown
// (connection_element.ts).

import { delayAfter } from "./backoff.ts";
import { type Message, type Updates, parsed } from "./messages.ts";

export const POLL_MS = 3000;
export const SILENCE_MS = 40_000;
export const OPENING_MS = 12_000;

export const NOT_LOGGED_IN = 4401;
export const NOT_VISIBLE = 4404;

/** `at`: when the next try is due, in Unix milliseconds; `dataOf`: when we last heard something. */
export type Status =
  | { kind: "connecting" }
  | { kind: "live" }
  | { kind: "trouble"; detail: string }
  | { kind: "reconnecting"; at: number }
  | { kind: "polling"; at: number }
  | { kind: "offline"; at: number; dataOf: number | null }
  | { kind: "asleep" }
  | { kind: "refused"; code: number };

/** What we use of a WebSocket. */
export interface Socket {
  onmessage: ((event: MessageEvent) => void) | null;
  onclose: ((event: CloseEvent) => void) | null;
  close(): void;
}

/** The platform answered, and the answer is that there is nothing for us. */
export class Refusal extends Error {
  readonly code: number;

  constructor(code: number) {
    super(`refused: ${code}`);
    this.code = code;
  }
}

export interface Ways {
  open(since: number): Socket;
  poll(since: number): Promise<Updates>;
  news(updates: Updates): void;
  refetch(): void;
  status(status: Status): void;
}

type Timer = ReturnType<typeof setTimeout>;

export class Connection {
  cursor: number;
  readonly #ways: Ways;
  readonly #random: () => number;
  #socket: Socket | null = null;
  #live = false;
  #running = false;
  #failures = 0;
  #heardAt: number | null = null;
  #nextTryAt = 0;
  #pollFailed: boolean | null = null;
  #polling = false;
  #retryTimer: Timer | undefined;
  #pollTimer: Timer | undefined;
  #silenceTimer: Timer | undefined;

  constructor(cursor: number, ways: Ways, random: () => number = Math.random) {
    this.cursor = cursor;
    this.#ways = ways;
    this.#random = random;
  }

  start(): void {
    if (this.#running) return;
    this.#running = true;
    this.#failures = 0;
    this.#ways.status({ kind: "connecting" });
    this.#connect();
  }

  /** Close and wait for `start`, which goes on from the cursor. */
  stop(status: Status = { kind: "asleep" }): void {
    if (!this.#running) return;
    this.#running = false;
    this.#live = false;
    this.#drop();
    clearTimeout(this.#retryTimer);
    this.#stopPolling();
    this.#ways.status(status);
  }

  #connect(): void {
    const socket = this.#ways.open(this.cursor);
    this.#socket = socket;
    socket.onmessage = (event) => {
      if (socket === this.#socket && typeof event.data === "string") this.#heard(event.data);
    };
    socket.onclose = (event) => {
      if (socket === this.#socket) this.#lost(event.code);
    };
    this.#expectWithin(OPENING_MS);
  }

  /** A socket that says nothing for so long is dead, whatever the browser thinks. */
  #expectWithin(milliseconds: number): void {
    clearTimeout(this.#silenceTimer);
    this.#silenceTimer = setTimeout(() => this.#lost(0), milliseconds);
  }

  #drop(): void {
    clearTimeout(this.#silenceTimer);
    const socket = this.#socket;
    this.#socket = null;
    socket?.close();
  }

  #heard(text: string): void {
    const message = parsed(text);
    if (message === null) return;
    this.#expectWithin(SILENCE_MS);
    this.#heardAt = Date.now();
    if (message.type === "trouble") {
      this.#live = false;
      this.#ways.status({ kind: "trouble", detail: message.detail });
      return;
    }
    if (!this.#live) {
      this.#live = true;
      this.#failures = 0;
      this.#stopPolling();
      this.#ways.status({ kind: "live" });
    }
    this.#take(message);
  }

  #take(message: Message): void {
    if (message.type === "snapshot" || message.type === "delta") {
      this.#news(message);
    } else if (message.type === "refetch") {
      this.cursor = message.cursor;
      this.#ways.refetch();
    }
  }

  #news(updates: Updates): void {
    const first = this.cursor === 0;
    this.cursor = updates.cursor;
    this.#ways.news(updates);
    // From 0 on nothing but the cursor is told, and charts that were fetched meanwhile may be older than it.
    if (first && updates.cursor > 0) this.#ways.refetch();
  }

  #lost(code: number): void {
    this.#live = false;
    this.#drop();
    if (code === NOT_LOGGED_IN || code === NOT_VISIBLE) return this.stop({ kind: "refused", code });
    this.#failures += 1;
    const delay = delayAfter(this.#failures, this.#random);
    this.#nextTryAt = Date.now() + delay;
    clearTimeout(this.#retryTimer);
    this.#retryTimer = setTimeout(() => this.#connect(), delay);
    this.#pollTimer ??= setTimeout(() => void this.#poll(), POLL_MS);
    this.#tellAway();
  }

  #tellAway(): void {
    const at = this.#nextTryAt;
    if (this.#pollFailed === null) this.#ways.status({ kind: "reconnecting", at });
    else if (this.#pollFailed) this.#ways.status({ kind: "offline", at, dataOf: this.#heardAt });
    else this.#ways.status({ kind: "polling", at });
  }

  #stopPolling(): void {
    clearTimeout(this.#pollTimer);
    this.#pollTimer = undefined;
    this.#pollFailed = null;
  }

  async #poll(): Promise<void> {
    if (this.#polling) return;
    this.#polling = true;
    try {
      const found = await this.#ways.poll(this.cursor);
      if (!this.#running || this.#live) return; // the socket came back meanwhile and is ahead of this
      this.#heardAt = Date.now();
      this.#pollFailed = false;
      this.#news(found);
    } catch (error) {
      if (!this.#running || this.#live) return;
      if (error instanceof Refusal) return this.stop({ kind: "refused", code: error.code });
      this.#pollFailed = true;
    } finally {
      this.#polling = false;
    }
    this.#tellAway();
    this.#pollTimer = setTimeout(() => void this.#poll(), POLL_MS);
  }
}
