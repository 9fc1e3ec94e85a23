import assert from "node:assert/strict";
import { test } from "node:test";

import { ageOf, formatted } from "../src/format.ts";

test("ages", () => {
  const now = Date.parse("2026-11-02T12:00:00Z");
  const ages = [0, 4, 42, 60, 3599, 3600, 47 * 3600, 72 * 3600].map((seconds) => ageOf(now - seconds * 1000, now));
  assert.deepEqual(ages, ["just now", "just now", "42 s ago", "1 min ago", "59 min ago", "1 h ago", "47 h ago", "3 days ago"]);
  assert.equal(ageOf(now + 5000, now), "just now", "a clock that is ahead");
});

test("values of the API", () => {
  assert.equal(formatted(0.12345, "percent"), "12.3%");
  assert.equal(formatted(1234567, "number"), "1,234,567");
  assert.equal(formatted(0.000123456, "number"), "0.0001235");
  assert.equal(formatted(3725, "duration"), "1 h 2 min");
  assert.equal(formatted(null, "number"), "");
  assert.equal(formatted("<b>", "text"), "<b>");
  assert.equal(formatted("yesterday", "age"), "yesterday");
});
