// A chart as the platform draws it: a Plotly figure, and which metric goes on growing which trace.

export interface Trace {
  x: number[];
  y: (number | null)[];
  text?: string[];
  name?: string;
  type?: string;
  line?: Record<string, unknown>;
  marker?: Record<string, unknown>;
  meta?: { slot?: number; role?: "band" | "area" | "marks" };
  [attribute: string]: unknown;
}

export interface Layout {
  yaxis?: { tickformat?: string };
  [attribute: string]: unknown;
}

/** `low` and `high`: the band behind the line; `marks`: where numbers that are not finite are marked. */
export interface Binding {
  key: string;
  trace: number;
  low?: number;
  high?: number;
  marks: number;
}

export interface Chart {
  id: string;
  title: string;
  question: string;
  keys: string[];
  figure: { data: Trace[]; layout: Layout };
  bind: Binding[];
  /** What the x axis counts, and how much of a point's x (a step, or seconds) is one of it. */
  x: { name: string; per: number };
  /** Steps (or seconds) that the chart is about, both ends included. */
  ranges: [number, number][];
  /** Places on the axis after which lines stop. */
  breaks: number[];
  words: string;
}
