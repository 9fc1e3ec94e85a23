import assert from "node:assert/strict";
import { type TestContext, test } from "node:test";

import { Connection, NOT_LOGGED_IN, NOT_VISIBLE, OPENING_MS, POLL_MS, Refusal, SILENCE_MS } from "../src/live/connection.ts";
import { Platform } from "./platform.ts";

/** Half a second after every loss: the random number is 0. */
const RETRY_MS = 500;

function opened(t: TestContext): { platform: Platform; connection: Connection } {
  t.mock.timers.enable({ apis: ["setTimeout", "Date"] });
  const platform = new Platform();
  const connection = new Connection(1, platform, () => 0);
  connection.start();
  platform.socket.say({ type: "snapshot", ...platform.since(1) });
  return { platform, connection };
}

/** Let time pass, and what it set off finish. */
async function pass(t: TestContext, milliseconds: number): Promise<void> {
  for (let left = milliseconds; left > 0; left -= 100) {
    t.mock.timers.tick(Math.min(100, left));
    for (let turn = 0; turn < 5; turn += 1) await Promise.resolve();
  }
}

const last = (platform: Platform): string | undefined => platform.statuses.at(-1)?.kind;

test("it is live with the first message, and the cursor moves on with every one", (t) => {
  const { platform, connection } = opened(t);
  assert.deepEqual(platform.statuses, [{ kind: "connecting" }, { kind: "live" }]);
  platform.revision = 3;
  platform.socket.say({ type: "delta", ...platform.since(1) });
  assert.equal(connection.cursor, 3);
  assert.deepEqual(platform.points, [2, 3]);
  connection.stop();
});

test("after a loss the next socket asks for what follows, and no point is missed or doubled", async (t) => {
  const { platform, connection } = opened(t);
  platform.revision = 3;
  platform.socket.say({ type: "delta", ...platform.since(1) });
  platform.revision = 5;
  platform.socket.lose();
  assert.equal(last(platform), "reconnecting");
  await pass(t, RETRY_MS);
  assert.equal(platform.sockets.length, 2);
  assert.equal(platform.socket.since, 3);
  platform.socket.say({ type: "snapshot", ...platform.since(platform.socket.since) });
  assert.deepEqual(platform.points, [2, 3, 4, 5]);
  assert.equal(last(platform), "live");
  connection.stop();
});

test("while sockets fail it polls, each time from the cursor; then the socket goes on from there", async (t) => {
  const { platform, connection } = opened(t);
  platform.socket.lose();
  for (platform.revision = 2; platform.revision <= 4; platform.revision += 1) {
    await pass(t, POLL_MS);
    platform.socket.lose();
  }
  platform.revision = 4;
  assert.deepEqual(platform.polls, [1, 2, 3]);
  assert.equal(last(platform), "polling");
  await pass(t, 900); // less than a poll away
  platform.socket.say({ type: "snapshot", ...platform.since(platform.socket.since) });
  assert.deepEqual(platform.points, [2, 3, 4]);
  await pass(t, 3 * POLL_MS);
  assert.equal(platform.polls.length, 3, "no polling once it is live");
  connection.stop();
});

test("a poll that answers after the socket is back counts for nothing", async (t) => {
  const { platform, connection } = opened(t);
  let answer = (): void => undefined;
  platform.poll = (since) => {
    const found = platform.since(since);
    return new Promise((resolve) => (answer = () => resolve(found)));
  };
  platform.revision = 2;
  platform.socket.lose();
  await pass(t, POLL_MS);
  platform.revision = 3;
  platform.socket.say({ type: "snapshot", ...platform.since(platform.socket.since) });
  answer();
  await pass(t, 100);
  assert.deepEqual(platform.points, [2, 3]);
  assert.equal(connection.cursor, 3);
  connection.stop();
});

test("when nothing answers it says so, with the time of its data, and goes on trying", async (t) => {
  const { platform, connection } = opened(t);
  platform.pollFails = new TypeError("Failed to fetch");
  await pass(t, 1000);
  const heardAt = Date.now() - 1000;
  platform.socket.lose();
  await pass(t, POLL_MS);
  const status = platform.statuses.at(-1);
  assert.equal(status?.kind, "offline");
  assert.equal(status?.kind === "offline" && status.dataOf, heardAt);
  const before = platform.polls.length;
  await pass(t, 2 * POLL_MS);
  assert.ok(platform.polls.length > before);
  connection.stop();
});

test("a socket that stays silent, or never opens, is dead", async (t) => {
  const { platform, connection } = opened(t);
  const first = platform.socket;
  await pass(t, SILENCE_MS - 1000);
  first.say({ type: "ping" });
  await pass(t, SILENCE_MS - 1000);
  assert.ok(!first.closed, "a ping is a sign of life");
  await pass(t, 1000);
  assert.ok(first.closed);
  await pass(t, RETRY_MS);
  const second = platform.socket;
  assert.notEqual(second, first);
  await pass(t, OPENING_MS);
  assert.ok(second.closed);
  const told = platform.told.length;
  first.say({ type: "delta", ...platform.since(1) });
  assert.equal(platform.told.length, told, "what a dead socket still says is not heard");
  connection.stop();
});

test("it stops for good when the reader is logged out or the run is gone", async (t) => {
  for (const code of [NOT_LOGGED_IN, NOT_VISIBLE]) {
    t.mock.timers.reset();
    const { platform } = opened(t);
    platform.socket.lose(code);
    await pass(t, 10 * POLL_MS);
    assert.deepEqual(platform.statuses.at(-1), { kind: "refused", code });
    assert.equal(platform.sockets.length, 1);
    assert.equal(platform.polls.length, 0);
  }
  t.mock.timers.reset();
  const { platform } = opened(t);
  platform.pollFails = new Refusal(NOT_LOGGED_IN);
  platform.socket.lose();
  await pass(t, 10 * POLL_MS);
  assert.deepEqual(platform.statuses.at(-1), { kind: "refused", code: NOT_LOGGED_IN });
  assert.equal(platform.polls.length, 1);
});

test("a hidden tab gives its socket back and asks nobody; seen again it catches up from its cursor", async (t) => {
  const { platform, connection } = opened(t);
  connection.stop();
  assert.ok(platform.socket.closed);
  assert.equal(last(platform), "asleep");
  platform.revision = 40;
  await pass(t, 60_000);
  assert.deepEqual([platform.sockets.length, platform.polls.length], [1, 0]);
  connection.start();
  assert.equal(platform.socket.since, 1);
  platform.socket.say({ type: "snapshot", ...platform.since(platform.socket.since) });
  assert.equal(platform.points.length, 39);
  connection.stop();
});

test("trouble of the database is shown until it is over", (t) => {
  const { platform, connection } = opened(t);
  platform.socket.say({ type: "trouble", detail: "the database does not answer" });
  assert.deepEqual(platform.statuses.at(-1), { kind: "trouble", detail: "the database does not answer" });
  platform.socket.say({ type: "ping" });
  assert.equal(last(platform), "live");
  connection.stop();
});

test("F069: what is too long for a message is fetched from the API, and the cursor goes on", (t) => {
  const { platform, connection } = opened(t);
  platform.socket.say({ type: "refetch", cursor: 9, reset: false });
  assert.equal(platform.refetches, 1);
  assert.equal(connection.cursor, 9);
  connection.stop();
});

test("a reader without a cursor has charts that may be older than its first cursor: it fetches them again", (t) => {
  t.mock.timers.enable({ apis: ["setTimeout", "Date"] });
  const platform = new Platform();
  platform.revision = 4;
  const connection = new Connection(0, platform, () => 0);
  connection.start();
  platform.socket.say({ type: "snapshot", ...platform.since(4) });
  assert.equal(platform.refetches, 1);
  platform.socket.say({ type: "delta", ...platform.since(4) });
  assert.equal(platform.refetches, 1);
  connection.stop();
});

test("what is no message of ours is passed over", (t) => {
  const { platform, connection } = opened(t);
  for (const data of ['{"type":"hello"}', "[]", "null", "3"]) platform.socket.onmessage?.({ data } as MessageEvent);
  platform.socket.onmessage?.({ data: new ArrayBuffer(2) } as MessageEvent);
  assert.equal(platform.told.length, 1);
  connection.stop();
});
