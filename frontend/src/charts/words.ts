// A chart in a sentence and as a table: for screen readers, and for who wants the numbers. Pure.

import { formatted } from "../format.ts";
import type { Chart, Trace } from "./chart.ts";
import { unplain } from "./plain.ts";

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

/** As text: a trace's own name is escaped for Plotly. */
function nameOf(trace: Trace): string {
  return unplain(trace.name ?? "value");
}

function written(chart: Chart, value: number | null | undefined): string {
  const percent = chart.figure.layout.yaxis?.tickformat?.includes("%") ?? false;
  return value === null || value === undefined ? "–" : formatted(value, percent ? "percent" : "number");
}

/** What the chart says at its last step or time, once live points have come in. */
export function latestWords(chart: Chart): string {
  const last = Math.max(...shown(chart).map((trace) => trace.x.at(-1) ?? -Infinity));
  if (!Number.isFinite(last)) return chart.words;
  const parts = shown(chart)
    .filter((trace) => trace.x.at(-1) === last)
    .map((trace) => `${nameOf(trace)} ${written(chart, trace.y.at(-1))}`);
  const { name } = chart.x;
  return `${name.charAt(0).toUpperCase()}${name.slice(1)} ${last.toLocaleString("en")}: ${parts.join(", ")}.`;
}

/** The newest first, a column a trace. */
export function tableOf(chart: Chart): Table {
  const traces = shown(chart);
  const columns = traces.map((trace) => new Map(trace.x.map((x, place) => [x, trace.y[place]])));
  const places = [...new Set(traces.flatMap((trace) => trace.x))].sort((a, b) => b - a);
  return {
    head: [chart.x.name, ...traces.map(nameOf)],
    rows: places.slice(0, ROWS).map((x) => [x.toLocaleString("en"), ...columns.map((of) => written(chart, of.get(x)))]),
    left: Math.max(0, places.length - ROWS),
  };
}
