// The theme switch: `[data-theme-switch]` with `data-url`. A <select> or radio buttons set their value, an element with
// `data-theme-value` sets that, a plain button goes round auto, light, dark. The wish is saved on the user.

import { csrfToken } from "./csrf.ts";

const WISHES = ["auto", "light", "dark"] as const;
type Wish = (typeof WISHES)[number];

const root = document.documentElement;

function isWish(value: string | undefined): value is Wish {
  return WISHES.some((wish) => wish === value);
}

function current(): Wish {
  const wish = root.dataset["theme"];
  return isWish(wish) ? wish : "auto";
}

export function startThemeSwitch(): void {
  show();
  document.addEventListener("click", (event) => {
    const target = event.target instanceof Element ? event.target : null;
    const box = target?.closest<HTMLElement>("[data-theme-switch]");
    if (!target || !box || target.closest("select, input, label")) return;
    const value = target.closest<HTMLElement>("[data-theme-value]")?.dataset["themeValue"];
    if (isWish(value)) choose(value, box);
    else if (box instanceof HTMLButtonElement) choose(WISHES[(WISHES.indexOf(current()) + 1) % 3] ?? "auto", box);
  });
  document.addEventListener("change", (event) => {
    const target = event.target;
    if (!(target instanceof HTMLSelectElement || target instanceof HTMLInputElement)) return;
    const box = target.closest<HTMLElement>("[data-theme-switch]");
    if (box && isWish(target.value)) choose(target.value, box);
  });
}

function choose(wish: Wish, box: HTMLElement): void {
  root.dataset["theme"] = wish;
  show();
  void save(wish, box.dataset["url"]);
}

/** Mark what is chosen, for eyes and for screen readers. */
function show(): void {
  const wish = current();
  for (const box of document.querySelectorAll<HTMLElement>("[data-theme-switch]")) {
    if (box instanceof HTMLSelectElement) box.value = wish;
    for (const part of [box, ...box.querySelectorAll<HTMLElement>("[data-theme-value], input[type=radio], select")]) {
      if (part instanceof HTMLInputElement) part.checked = part.value === wish;
      else if (part instanceof HTMLSelectElement) part.value = wish;
      else if (part.dataset["themeValue"]) part.setAttribute("aria-pressed", String(part.dataset["themeValue"] === wish));
    }
    const label = box.querySelector<HTMLElement>("[data-theme-label]");
    if (label) label.textContent = wish;
  }
}

async function save(wish: Wish, url: string | undefined): Promise<void> {
  if (!url) return;
  const body = new URLSearchParams({ theme: wish });
  const answer = await fetch(url, { method: "POST", headers: { "X-CSRFToken": csrfToken() }, body });
  if (!answer.ok) console.warn(`the theme was not saved: ${answer.status}`);
}
