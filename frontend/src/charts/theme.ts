// A figure in the page's colours: the platform names hues by number, the style sheet says what they are in light and dark.

import type { Layout, Trace } from "./chart.ts";

const BAND_ALPHA = 0.2;

interface Colours {
  text: string;
  grid: string;
  mark: string;
  surface: string;
  font: string;
  series: (slot: number) => string;
}

export function currentColours(): Colours {
  const style = getComputedStyle(document.documentElement);
  const value = (name: string): string => style.getPropertyValue(name).trim();
  return {
    text: value("--sl-chart-text"),
    grid: value("--sl-chart-grid"),
    mark: value("--sl-chart-mark"),
    surface: value("--sl-chart-surface"),
    font: getComputedStyle(document.body).fontFamily,
    series: (slot) => value(`--sl-series-${slot}`),
  };
}

/** The trace in colours of the theme; its data are the same arrays. */
export function colouredTrace(trace: Trace, colours: Colours): Trace {
  const slot = trace.meta?.slot;
  if (slot === undefined) return trace;
  const colour = colours.series(slot);
  const made: Trace = { ...trace };
  if (trace.line) made.line = { ...trace.line, color: colour };
  if (trace.marker) made.marker = { ...trace.marker, color: colour };
  if (trace["fillcolor"] !== undefined) {
    made["fillcolor"] = trace.meta?.role === "band" ? seeThrough(colour, BAND_ALPHA) : colour;
  }
  if (trace["error_y"] !== undefined) made["error_y"] = { ...(trace["error_y"] as object), color: colour };
  return made;
}

export function colouredLayout(layout: Layout, colours: Colours): Layout {
  const made: Layout = {
    ...layout,
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: colours.font, size: 12, color: colours.text },
    hoverlabel: { ...(layout["hoverlabel"] as object), bgcolor: colours.surface, bordercolor: colours.grid, font: { color: colours.text } },
    shapes: ((layout["shapes"] ?? []) as Record<string, unknown>[]).map((shape) => ({
      ...shape,
      line: { ...(shape["line"] as object), color: colours.mark },
    })),
    annotations: ((layout["annotations"] ?? []) as Record<string, unknown>[]).map((note) => ({
      ...note,
      font: { ...(note["font"] as object), color: colours.mark },
    })),
  };
  for (const [name, axis] of Object.entries(layout)) {
    if (!/^[xy]axis\d*$/.test(name)) continue;
    made[name] = { ...(axis as object), gridcolor: colours.grid, linecolor: colours.grid, automargin: true };
  }
  return made;
}

function seeThrough(colour: string, alpha: number): string {
  const [red, green, blue] = [1, 3, 5].map((start) => Number.parseInt(colour.slice(start, start + 2), 16));
  return `rgba(${red},${green},${blue},${alpha})`;
}
