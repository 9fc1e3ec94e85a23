// Live points into a chart's traces: sorted by x, a point that comes again changes nothing. Pure.

import type { Point } from "../live/messages.ts";
import type { Binding, Chart, Trace } from "./chart.ts";
import { plain, unplain } from "./plain.ts";

/** With so many points in a trace the chart is fetched again, thinned by the platform; until then the oldest go. */
export const MOST_POINTS = 5000;

const MARK_AT = 0.04;

/** Add the points that are the chart's; whether there were any. */
export function grow(chart: Chart, points: readonly Point[]): boolean {
  let grown = false;
  for (const point of points) {
    const binding = chart.bind.find((each) => each.key === point[0]);
    if (!binding || !chart.ranges.some(([first, last]) => first <= point[1] && point[1] <= last)) continue;
    put(chart, binding, point);
    grown = true;
  }
  return grown;
}

function put(chart: Chart, binding: Binding, [, told, value, nonFinite]: Point): void {
  const x = onAxis(chart, told);
  for (const index of [binding.trace, binding.low, binding.high]) {
    const trace = index === undefined ? undefined : chart.figure.data[index];
    if (trace) insert(trace, x, value, chart.breaks);
  }
  const marks = chart.figure.data[binding.marks];
  if (!nonFinite || !marks) return;
  const name = unplain(chart.figure.data[binding.trace]?.name ?? plain(binding.key));
  mark(marks, x, `${name} at ${chart.x.name} ${x.toLocaleString("en")}: ${nonFinite}`);
}

/** Where on the axis a point's x lies; to four digits, as the platform places the points that a chart comes with. */
function onAxis(chart: Chart, x: number): number {
  return Math.floor((x / chart.x.per) * 1e4 + 0.5) / 1e4;
}

/** Where `x` belongs: the index after the last entry that is not greater. */
function placeOf(trace: Trace, x: number): number {
  let [low, high] = [0, trace.x.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((trace.x[middle] ?? Infinity) <= x) low = middle + 1;
    else high = middle;
  }
  return low;
}

function insert(trace: Trace, x: number, value: number | null, breaks: readonly number[]): void {
  const place = placeOf(trace, x);
  const before = trace.x[place - 1];
  if (before === x) {
    trace.y[place - 1] = value; // the last of equal places is the point; one before it would be a break
    return;
  }
  const stops = before !== undefined && breaks.some((end) => before <= end && end < x);
  trace.x.splice(place, 0, ...(stops ? [x, x] : [x]));
  trace.y.splice(place, 0, ...(stops ? [null, value] : [value]));
  const over = Math.max(0, trace.x.length - MOST_POINTS);
  trace.x.splice(0, over);
  trace.y.splice(0, over);
}

function mark(marks: Trace, x: number, words: string): void {
  const text = plain(words);
  marks.text ??= [];
  for (let place = placeOf(marks, x); place > 0 && marks.x[place - 1] === x; place -= 1) {
    if (marks.text[place - 1] === text) return;
  }
  const place = placeOf(marks, x);
  marks.x.splice(place, 0, x);
  marks.y.splice(place, 0, MARK_AT);
  marks.text.splice(place, 0, text);
  if (marks.x.length > MOST_POINTS) for (const column of [marks.x, marks.y, marks.text]) column.shift();
  marks["showlegend"] = true;
}

export function isTooLong(chart: Chart): boolean {
  return chart.figure.data.some((trace) => trace.x.length >= MOST_POINTS);
}

export function isEmpty(chart: Chart): boolean {
  return chart.figure.data.every((trace) => trace.x.length === 0);
}
