import assert from "node:assert/strict";
import { test } from "node:test";

import { KEPT, LogLines } from "../src/live/log_lines.ts";
import type { LogLine } from "../src/live/messages.ts";

const line = (seq: number, attempt = 1): LogLine => ({ attempt, seq, at: "2026-11-02T10:00:00Z", level: "info", message: `${seq}` });
const order = (kept: LogLines): string => kept.lines.map((each) => `${each.attempt}/${each.seq}`).join(" ");

test("each line once, in the order of its events, attempts one after the other", () => {
  const kept = new LogLines();
  kept.add([line(3), line(1, 2)]);
  assert.deepEqual(kept.add([line(3), line(1)]), [line(1)]);
  assert.equal(order(kept), "1/1 1/3 2/1");
});

test("only the last lines are kept", () => {
  const kept = new LogLines();
  for (let seq = 1; seq <= KEPT + 50; seq += 1) kept.add([line(seq)]);
  assert.equal(kept.lines.length, KEPT);
  assert.equal(kept.lines[0]?.seq, 51);
  kept.clear();
  assert.deepEqual(kept.add([line(60)]), [line(60)]);
});
