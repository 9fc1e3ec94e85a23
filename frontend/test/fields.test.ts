import assert from "node:assert/strict";
import { test } from "node:test";

import { valueAt } from "../src/live/fields.ts";

const run = { state: "running", latest: { "pass@1": 0.5, "eval.kl": 2 }, stages: [{ trained_steps: 3 }, null] };

test("a field of a run is found by its path", () => {
  assert.equal(valueAt(run, "state"), "running");
  assert.equal(valueAt(run, "latest.pass@1"), 0.5);
  assert.equal(valueAt(run, "latest.eval.kl"), 2, "a key with a dot of its own");
  assert.equal(valueAt(run, "stages.0.trained_steps"), 3);
});

test("what is not there is undefined, however deep", () => {
  for (const path of ["nothing", "state.length.x", "stages.1.trained_steps", "stages.7.trained_steps", "latest.", ".x"]) {
    assert.equal(valueAt(run, path), undefined, path);
  }
});
