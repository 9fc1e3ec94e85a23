// A chart in a sentence and as a table: for screen readers, and for who wants the numbers. Pure.

import { formatted } from "../format.ts";
import type { Chart, Trace } from "./chart.ts";

export interface Table {
  head: string[];
  rows: string[][];
  /** Rows that are not shown: older ones. */
  left: number;
}

const ROWS = 200;

/** Traces that people read: no bands, no marks. */
function shown(chart: Chart): Trace[] {
  return chart.figure.data.filter((trace) => trace.meta?.role !== "band" && trace.meta?.role !== "marks");
}

function written(chart: Chart, value: number | null | undefined): string {
  const percent = chart.figure.layout.yaxis?.tickformat?.includes("%") ?? false;
  return value === null || value === undefined ? "–" : formatted(value, percent ? "percent" : "number");
}

/** What the chart says at its last step, once live points have come in. */
export function latestWords(chart: Chart): string {
  const step = Math.max(...shown(chart).map((trace) => trace.x.at(-1) ?? -Infinity));
  if (!Number.isFinite(step)) return chart.words;
  const parts = shown(chart)
    .filter((trace) => trace.x.at(-1) === step)
    .map((trace) => `${trace.name ?? "value"} ${written(chart, trace.y.at(-1))}`);
  return `Step ${step.toLocaleString("en")}: ${parts.join(", ")}.`;
}

/** The newest steps first, a column a trace. */
export function tableOf(chart: Chart): Table {
  const traces = shown(chart);
  const columns = traces.map((trace) => new Map(trace.x.map((x, place) => [x, trace.y[place]])));
  const steps = [...new Set(traces.flatMap((trace) => trace.x))].sort((a, b) => b - a);
  return {
    head: ["step", ...traces.map((trace) => trace.name ?? "")],
    rows: steps.slice(0, ROWS).map((x) => [x.toLocaleString("en"), ...columns.map((of) => written(chart, of.get(x)))]),
    left: Math.max(0, steps.length - ROWS),
  };
}
