// <sl-charts>: all charts of a run. Draws at most twice a second, only what is in view, and nothing in a hidden tab.

import type { Point } from "../live/messages.ts";
import type { Chart } from "./chart.ts";
import { ChartCard } from "./chart_card.ts";
import { loadPlotly } from "./plotly.ts";

const GAP_MS = 500;
/** On a slow machine drawing takes about this share of the time, but never waits longer than this. */
const SHARE = 0.2;
const LONGEST_GAP_MS = 3000;

export class ChartsElement extends HTMLElement {
  readonly #cards = new Map<string, ChartCard>();
  readonly #cardOf = new WeakMap<Element, ChartCard>();
  #observer: IntersectionObserver | null = null;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #notBefore = 0;
  #tooLong: () => void = () => undefined;
  #askedForShorter = false;

  connectedCallback(): void {
    this.#observer = new IntersectionObserver((entries) => this.#seen(entries), { rootMargin: "120px" });
    for (const card of this.#cards.values()) this.#observer.observe(card.element);
    document.addEventListener("visibilitychange", this.#schedule);
    document.addEventListener("sl-theme", this.#retheme);
  }

  disconnectedCallback(): void {
    this.#observer?.disconnect();
    clearTimeout(this.#timer);
    document.removeEventListener("visibilitychange", this.#schedule);
    document.removeEventListener("sl-theme", this.#retheme);
  }

  /** Call when a chart has grown too long to be kept here. */
  whenTooLong(call: () => void): void {
    this.#tooLong = call;
  }

  /** Show these charts; those that are there keep their place, zoom and open table. */
  show(charts: readonly Chart[]): void {
    this.#askedForShorter = false;
    const wanted = new Set(charts.map((chart) => chart.id));
    for (const [id, card] of this.#cards) if (!wanted.has(id)) this.#remove(id, card);
    for (const chart of charts) {
      const card = this.#cards.get(chart.id);
      if (card) card.show(chart);
      else this.#create(chart);
    }
    this.#schedule();
  }

  add(points: readonly Point[]): void {
    if (points.length === 0) return;
    for (const card of this.#cards.values()) card.add(points);
    if (!this.#askedForShorter && [...this.#cards.values()].some((card) => card.tooLong)) {
      this.#askedForShorter = true;
      this.#tooLong();
    }
    this.#schedule();
  }

  #create(chart: Chart): void {
    const card = new ChartCard(chart);
    this.#cards.set(chart.id, card);
    this.#cardOf.set(card.element, card);
    this.append(card.element);
    this.#observer?.observe(card.element);
  }

  #remove(id: string, card: ChartCard): void {
    this.#observer?.unobserve(card.element);
    this.#cards.delete(id);
    card.remove();
  }

  #seen(entries: IntersectionObserverEntry[]): void {
    for (const entry of entries) {
      const card = this.#cardOf.get(entry.target);
      if (card) card.visible = entry.isIntersecting;
    }
    this.#schedule();
  }

  readonly #schedule = (): void => {
    if (this.#timer !== undefined || document.hidden) return;
    this.#timer = setTimeout(() => requestAnimationFrame(() => void this.#draw()), this.#notBefore - performance.now());
  };

  async #draw(): Promise<void> {
    try {
      await loadPlotly();
      const began = performance.now();
      for (const card of this.#cards.values()) await card.draw();
      const took = performance.now() - began;
      this.#notBefore = began + Math.min(LONGEST_GAP_MS, Math.max(GAP_MS, took / SHARE));
    } finally {
      this.#timer = undefined;
    }
    if ([...this.#cards.values()].some((card) => card.waits)) this.#schedule();
  }

  readonly #retheme = (): void => {
    for (const card of this.#cards.values()) card.markDirty();
    this.#notBefore = 0;
    this.#schedule();
  };
}
