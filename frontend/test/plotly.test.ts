// What charts/plotly.ts and plotly.css take for granted of the bundle that we pin.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { STYLE_IDS } from "../src/charts/plotly.ts";

const read = (path: string): string => readFileSync(new URL(path, import.meta.url), "utf8");
const bundle = read("../node_modules/plotly.js-basic-dist-min/plotly-basic.min.js");

test("the styles that Plotly would put into a page are those whose ids we take", () => {
  assert.equal(bundle.split('createElement("style")').length - 1, 2);
  assert.ok(bundle.includes(`getElementById("${STYLE_IDS[1]}")`));
  assert.ok(bundle.includes('var a="plotly.js-style-"+e') && bundle.includes(".no-inline-styles"));
});

test("it asks for no eval", () => {
  assert.ok(!/new Function\(|[^.\w]eval\(/.test(bundle));
});

test("our style sheet has the rules that lay a figure out", () => {
  const rules = read("../src/plotly.css");
  for (const [, selector] of bundle.matchAll(/"X (\.(?:main-svg|crisp|user-select-none|cursor-[a-z-]+)(?: \.draglayer)?)":/g)) {
    assert.ok(rules.includes(`.js-plotly-plot .plotly ${selector} {`), selector);
  }
});
