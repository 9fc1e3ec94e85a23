import assert from "node:assert/strict";
import { test } from "node:test";

import type { Chart } from "../src/charts/chart.ts";
import { MOST_POINTS, grow, isEmpty, isTooLong } from "../src/charts/growth.ts";
import { plain } from "../src/charts/plain.ts";
import { latestWords, tableOf } from "../src/charts/words.ts";

/** Loss over four steps of SFT and the RL stage after it, with a band. */
function chart(): Chart {
  const line = (role?: "band"): Chart["figure"]["data"][number] => ({ x: [], y: [], name: "loss", meta: role ? { slot: 1, role } : { slot: 1 } });
  return {
    id: "optimisation",
    title: "Loss",
    question: "?",
    keys: ["loss"],
    figure: {
      data: [line("band"), line("band"), line(), { x: [], y: [], text: [], name: "not finite", meta: { slot: 8, role: "marks" } }],
      layout: { yaxis: { tickformat: "" } },
    },
    bind: [{ key: "loss", trace: 2, low: 0, high: 1, marks: 3 }],
    x: { name: "step", per: 1 },
    ranges: [[1, 4], [5, 1_000_000]],
    breaks: [4],
    words: "Nothing yet.",
  };
}

const pairs = (made: Chart, trace = 2): unknown[] => {
  const { x, y } = made.figure.data[trace]!;
  return x.map((at, place) => [at, y[place]]);
};

test("points grow the line and its band", () => {
  const made = chart();
  assert.ok(isEmpty(made));
  assert.ok(grow(made, [["loss", 1, 2.5, ""], ["reward", 1, 0.1, ""]]));
  assert.deepEqual([pairs(made, 0), pairs(made, 1), pairs(made, 2)], [[[1, 2.5]], [[1, 2.5]], [[1, 2.5]]]);
  assert.ok(!isEmpty(made));
});

test("the same point again changes nothing, a late one finds its place, a newer value of a step replaces it", () => {
  const made = chart();
  grow(made, [["loss", 1, 3, ""], ["loss", 3, 1, ""]]);
  grow(made, [["loss", 3, 1, ""], ["loss", 2, 2, ""], ["loss", 1, 3.5, ""]]);
  assert.deepEqual(pairs(made), [[1, 3.5], [2, 2], [3, 1]]);
});

test("what is not the chart's is passed over: other keys, other stages", () => {
  const made = chart();
  made.ranges = [[5, 14]];
  assert.ok(!grow(made, [["loss", 4, 1, ""], ["reward", 6, 1, ""]]));
  assert.ok(isEmpty(made));
});

test("a line stops at a stage's end, also when the points come twice or in another order", () => {
  const made = chart();
  const expected = [[3, 1], [4, 0.9], [5, null], [5, 0.01], [6, 0.02]];
  grow(made, [["loss", 3, 1, ""], ["loss", 4, 0.9, ""], ["loss", 5, 0.01, ""], ["loss", 6, 0.02, ""]]);
  assert.deepEqual(pairs(made), expected);
  grow(made, [["loss", 5, 0.01, ""], ["loss", 4, 0.9, ""]]);
  assert.deepEqual(pairs(made), expected);
});

test("F001: a number that was not finite is a gap with one mark", () => {
  const made = chart();
  const points: [string, number, number | null, string][] = [["loss", 1, 0.5, ""], ["loss", 2, null, "nan"], ["loss", 3, null, "inf"], ["loss", 4, 0.4, ""]];
  grow(made, points);
  grow(made, points);
  assert.deepEqual(pairs(made).map(([, y]: any) => y), [0.5, null, null, 0.4]);
  assert.deepEqual(made.figure.data[3]!.text, ["loss at step 2: nan", "loss at step 3: inf"]);
});

test("F077: text that is not ours shows as it is", () => {
  assert.equal(plain("<img src=x onerror=alert(1)> & <b>"), "&lt;img src=x onerror=alert(1)&gt; &amp; &lt;b&gt;");
  const made = chart();
  made.figure.data[2]!.name = "<b>loss</b>";
  grow(made, [["loss", 1, null, "<i>"]]);
  assert.deepEqual(made.figure.data[3]!.text, ["&lt;b&gt;loss&lt;/b&gt; at step 1: &lt;i&gt;"]);
});

test("F073: a chart that has grown too long says so, to be thinned by the platform, and grows no further", () => {
  const made = chart();
  for (let x = 5; x < 4 + MOST_POINTS; x += 1) grow(made, [["loss", x, 1, ""]]);
  assert.ok(!isTooLong(made));
  for (let x = 4 + MOST_POINTS; x < 20_000; x += 1) grow(made, [["loss", x, 1, ""]]);
  assert.ok(isTooLong(made));
  assert.deepEqual(made.figure.data.map((trace) => trace.x.length), [MOST_POINTS, MOST_POINTS, MOST_POINTS, 0]);
  assert.equal(made.figure.data[2]!.x.at(-1), 19_999);
});

test("a chart is also a sentence and a table, without its bands and marks", () => {
  const made = chart();
  assert.equal(latestWords(made), "Nothing yet.");
  grow(made, [["loss", 1, 2.51234, ""], ["loss", 2, null, "nan"]]);
  assert.equal(latestWords(made), "Step 2: loss –.");
  assert.deepEqual(tableOf(made), { head: ["step", "loss"], rows: [["2", "–"], ["1", "2.512"]], left: 0 });
  made.figure.layout.yaxis = { tickformat: ".0%" };
  grow(made, [["loss", 1203, 0.25, ""]]);
  assert.equal(latestWords(made), "Step 1,203: loss 25.0%.");
});

test("a timeline's points come at seconds and stand where its axis counts; one that the chart came with is replaced", () => {
  const made = chart();
  Object.assign(made, { x: { name: "minute", per: 60 }, ranges: [[0, 1_000_000]], breaks: [] });
  made.figure.data[2]!.x.push(0.1667);
  made.figure.data[2]!.y.push(3);
  grow(made, [["loss", 10, 4, ""], ["loss", 90.03, 12, ""]]);
  assert.deepEqual(pairs(made), [[0.1667, 4], [1.5005, 12]]);
  assert.equal(latestWords(made), "Minute 1.501: loss 12.");
  assert.deepEqual(tableOf(made).head, ["minute", "loss"]);
});
