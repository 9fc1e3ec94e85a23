// Between the connection and the page: applies news, or loads everything anew when news are not enough.
//
// News that come while a load is under way wait for it; those from before it began are in what it loads. Applying the same
// point or line twice changes nothing, so the seam shows nowhere.

import { delayAfter } from "./backoff.ts";
import type { LogLine, Point, RunSummary, Updates } from "./messages.ts";

export interface View {
  showRun(run: RunSummary): void;
  add(points: readonly Point[], log: readonly LogLine[]): void;
  /** Fetch charts and log and show them in place of what is there. */
  load(): Promise<void>;
}

export class Follower {
  readonly #view: View;
  #loading = false;
  #again = false;
  #waiting: Updates[] = [];

  constructor(view: View) {
    this.#view = view;
  }

  take(updates: Updates): void {
    this.#view.showRun(updates.run);
    if (updates.reset || updates.more) {
      this.reload();
      return;
    }
    if (this.#loading) this.#waiting.push(updates);
    else this.#view.add(updates.points, updates.log);
  }

  /** Load everything anew, once more if that is asked during a load. */
  reload(): void {
    this.#again = true;
    if (!this.#loading) void this.#load();
  }

  async #load(): Promise<void> {
    this.#loading = true;
    let failures = 0;
    while (this.#again) {
      this.#again = false;
      this.#waiting = [];
      try {
        await this.#view.load();
        failures = 0;
      } catch (error) {
        failures += 1;
        this.#again = true;
        console.warn("charts and log could not be loaded; trying again", error);
        await new Promise((resolve) => setTimeout(resolve, delayAfter(failures)));
      }
    }
    this.#loading = false;
    for (const updates of this.#waiting) this.#view.add(updates.points, updates.log);
    this.#waiting = [];
  }
}
