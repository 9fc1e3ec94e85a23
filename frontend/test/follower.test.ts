import assert from "node:assert/strict";
import { test } from "node:test";

import { Follower, type View } from "../src/live/follower.ts";
import type { LogLine, Point, RunSummary, Updates } from "../src/live/messages.ts";
import { RUN } from "./platform.ts";

class FakeView implements View {
  added: number[] = [];
  runs: RunSummary[] = [];
  loads = 0;
  failures = 0;
  #finish: (() => void)[] = [];

  showRun(run: RunSummary): void {
    this.runs.push(run);
  }

  add(points: readonly Point[], _log: readonly LogLine[]): void {
    this.added.push(...points.map((point) => point[1]));
  }

  load(): Promise<void> {
    this.loads += 1;
    if (this.failures > 0) {
      this.failures -= 1;
      return Promise.reject(new Error("503"));
    }
    return new Promise((resolve) => this.#finish.push(resolve));
  }

  async finish(): Promise<void> {
    this.#finish.shift()?.();
    for (let turn = 0; turn < 5; turn += 1) await Promise.resolve();
  }
}

function news(x: number, more: Partial<Updates> = {}): Updates {
  return { cursor: x, reset: false, run: RUN, points: [["reward", x, 0.5, ""]], log: [], more: false, ...more };
}

test("news are added as they come", () => {
  const view = new FakeView();
  const follower = new Follower(view);
  follower.take(news(2));
  follower.take(news(3));
  assert.deepEqual([view.added, view.runs.length, view.loads], [[2, 3], 2, 0]);
});

test("news that come during a load wait for it", async () => {
  const view = new FakeView();
  const follower = new Follower(view);
  follower.reload();
  follower.take(news(2));
  assert.deepEqual(view.added, []);
  assert.equal(view.runs.length, 1, "the run's state does not wait");
  await view.finish();
  assert.deepEqual(view.added, [2]);
});

test("a reset and a delta that was cut load everything anew, in place of their points", async () => {
  for (const how of [{ reset: true }, { more: true }]) {
    const view = new FakeView();
    const follower = new Follower(view);
    follower.take(news(2, how));
    assert.deepEqual([view.loads, view.added], [1, []]);
    await view.finish();
    follower.take(news(3));
    assert.deepEqual(view.added, [3]);
  }
});

test("what asks during a load is loaded once more, not once each", async () => {
  const view = new FakeView();
  const follower = new Follower(view);
  follower.reload();
  follower.take(news(2));
  follower.reload();
  follower.reload();
  await view.finish();
  assert.equal(view.loads, 2);
  follower.take(news(3));
  await view.finish();
  assert.equal(view.loads, 2);
  assert.deepEqual(view.added, [3], "what was told before the second load is in it");
});

test("a load that fails is tried again", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  t.mock.method(console, "warn", () => undefined);
  const view = new FakeView();
  view.failures = 2;
  new Follower(view).reload();
  for (let turn = 0; turn < 20; turn += 1) {
    t.mock.timers.tick(4000);
    await Promise.resolve();
  }
  assert.equal(view.loads, 3);
  await view.finish();
});
