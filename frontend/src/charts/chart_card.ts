// One chart on the page: title, question, figure, its words, and the same as a table.

import { html, nothing, render } from "lit";
import type Plotly from "plotly.js-basic-dist-min";

import type { Point } from "../live/messages.ts";
import type { Chart, Layout } from "./chart.ts";
import { grow, isEmpty, isTooLong } from "./growth.ts";
import { loadPlotly } from "./plotly.ts";
import { colouredLayout, colouredTrace, currentColours } from "./theme.ts";
import { latestWords, tableOf } from "./words.ts";

const CONFIG = { displayModeBar: false, displaylogo: false, responsive: true, doubleClick: "reset+autosize" };

export class ChartCard {
  readonly element = document.createElement("section");
  visible = false;
  #chart: Chart;
  #plotly: typeof Plotly | null = null;
  #dirty = true;
  #drawing = false;
  #revision = 0;

  constructor(chart: Chart) {
    this.#chart = chart;
    this.element.className = "card sl-chart";
    this.element.dataset["chart"] = chart.id;
    this.element.setAttribute("aria-labelledby", `chart-${chart.id}`);
    this.#frame();
  }

  get tooLong(): boolean {
    return isTooLong(this.#chart);
  }

  /** Whether there is something to draw that can be seen. */
  get waits(): boolean {
    return this.#dirty && this.visible;
  }

  /** Another figure of the same chart. */
  show(chart: Chart): void {
    this.#chart = chart;
    this.markDirty();
  }

  add(points: readonly Point[]): void {
    if (!grow(this.#chart, points)) return;
    this.#chart.words = latestWords(this.#chart);
    this.markDirty();
  }

  markDirty(): void {
    this.#dirty = true;
  }

  /** Draw what is new, if anybody can see it. */
  async draw(): Promise<void> {
    if (!this.waits || this.#drawing) return;
    this.#drawing = true;
    this.#dirty = false;
    try {
      this.#frame();
      if (!isEmpty(this.#chart)) await this.#plot();
    } finally {
      this.#drawing = false;
    }
  }

  async #plot(): Promise<void> {
    this.#plotly ??= await loadPlotly();
    const colours = currentColours();
    const { data, layout } = this.#chart.figure;
    this.#revision += 1;
    const drawn: Layout = { ...colouredLayout(layout, colours), datarevision: this.#revision, autosize: true };
    const traces = data.map((trace) => colouredTrace(trace, colours));
    if (hasFewSteps(this.#chart)) drawn["xaxis"] = { ...(drawn["xaxis"] as object), dtick: 1 };
    await this.#plotly.react(this.#figure, traces, { ...drawn, dragmode: dragMode() }, CONFIG);
  }

  get #figure(): HTMLElement {
    return this.element.querySelector<HTMLElement>(".sl-chart-figure")!;
  }

  remove(): void {
    this.#plotly?.purge(this.#figure);
    this.element.remove();
  }

  #frame(): void {
    const chart = this.#chart;
    const empty = isEmpty(chart);
    render(
      html`<div class="card-header">
          <h3 class="card-title" id="chart-${chart.id}">${chart.title}</h3>
          <p class="sl-chart-question">${chart.question}</p>
        </div>
        <div class="sl-chart-figure" role="img" aria-label="${chart.title}: ${chart.words}" ?hidden=${empty}></div>
        <p class="sl-chart-words">${chart.words}</p>
        <details class="sl-chart-table" ?hidden=${empty} @toggle=${() => this.#frame()}>
          <summary>View as table</summary>
          ${this.#tableIsOpen ? this.#table() : nothing}
        </details>`,
      this.element,
    );
  }

  get #tableIsOpen(): boolean {
    return this.element.querySelector("details")?.open ?? false;
  }

  #table(): unknown {
    const table = tableOf(this.#chart);
    return html`<div class="sl-chart-rows" tabindex="0" role="region" aria-label="${this.#chart.title} as a table">
        <table class="table table-sm">
          <thead>
            <tr>${table.head.map((name) => html`<th scope="col">${name}</th>`)}</tr>
          </thead>
          <tbody>${table.rows.map((row) => html`<tr>${row.map((cell) => html`<td>${cell}</td>`)}</tr>`)}</tbody>
        </table>
      </div>
      ${table.left > 0 ? html`<p>${table.left} older rows are not listed: the API has them all.</p>` : nothing}`;
  }
}

/** Whether it shows so few steps that each has a tick: there is no step and a half. */
function hasFewSteps(chart: Chart): boolean {
  if (chart.x.name !== "step") return false;
  const steps = chart.figure.data.flatMap((trace) => [trace.x[0], trace.x.at(-1)]).filter((x) => x !== undefined);
  return chart.bind.length > 0 && Math.max(...steps) - Math.min(...steps) < 8;
}

/** Dragging zooms with a mouse; with a finger it scrolls the page. */
function dragMode(): string | false {
  return matchMedia("(pointer: fine)").matches ? "zoom" : false;
}
