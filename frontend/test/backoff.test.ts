import assert from "node:assert/strict";
import { test } from "node:test";

import { LEAST_MS, MOST_MS, delayAfter } from "../src/live/backoff.ts";

test("F065: browsers that lost the same server come back spread out, not together", () => {
  const first = Array.from({ length: 200 }, () => delayAfter(1));
  assert.ok(new Set(first).size > 100, "random");
  assert.ok(Math.min(...first) >= LEAST_MS && Math.max(...first) <= 2000);
  const busiest = Math.max(...Array.from({ length: 15 }, (_, slot) => first.filter((ms) => ms >= 500 + slot * 100 && ms < 600 + slot * 100).length));
  assert.ok(busiest < 40, `${busiest} of 200 within a tenth of a second`);
});

test("every failure makes the wait longer, up to a limit", () => {
  const longest = Array.from({ length: 12 }, (_, failures) => delayAfter(failures + 1, () => 1));
  assert.deepEqual(longest.slice(0, 5), [2000, 4000, 8000, MOST_MS, MOST_MS]);
  assert.ok(longest.every((ms) => ms <= MOST_MS));
  assert.equal(delayAfter(1000, () => 0), LEAST_MS);
});
