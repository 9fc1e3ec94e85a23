// Relative ages: `<time data-age datetime="2026-11-02T10:00:00Z">` shows "3 min ago" and keeps the exact time as title.

import { ageOf, exactTime } from "../format.ts";

const EVERY_MS = 5000;

export function startAges(): void {
  showAges(document);
  setInterval(() => {
    if (!document.hidden) showAges(document);
  }, EVERY_MS);
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) showAges(document);
  });
  document.addEventListener("htmx:load", (event) => {
    if (event.target instanceof Element) showAges(event.target);
  });
}

export function showAges(within: ParentNode): void {
  for (const element of within.querySelectorAll<HTMLElement>("[data-age]")) showAge(element);
}

export function showAge(element: HTMLElement): void {
  const at = element.getAttribute("datetime") ?? element.dataset["age"] ?? "";
  const time = Date.parse(at);
  if (Number.isNaN(time)) return;
  const text = ageOf(time, Date.now());
  if (element.textContent !== text) element.textContent = text;
  element.title = exactTime(at);
}
