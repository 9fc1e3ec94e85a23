// Keyboard shortcuts: `data-hotkey="n"` or `data-hotkey="g r"` (one after the other) clicks a link or button and focuses
// a field. `?` lists them; single keys can be switched off there (WCAG 2.1.4), which this browser remembers.

const STORED = "starloom.hotkeys";
const SEQUENCE_MS = 1000;

let typed: string[] = [];
let typedAt = 0;

export function startHotkeys(): void {
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
    if (event.key === "?") {
      event.preventDefault();
      openList();
    } else if (switchedOn() && document.querySelector("dialog[open]") === null && press(event.key)) {
      event.preventDefault();
    }
  });
  for (const opener of document.querySelectorAll("[data-hotkey-list]")) opener.addEventListener("click", openList);
}

function isTyping(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && (target.isContentEditable || target.closest("input, textarea, select") !== null);
}

function switchedOn(): boolean {
  return localStorage.getItem(STORED) !== "off";
}

function press(key: string): boolean {
  const now = Date.now();
  typed = now - typedAt > SEQUENCE_MS ? [key] : [...typed.slice(-2), key];
  typedAt = now;
  for (const element of document.querySelectorAll<HTMLElement>("[data-hotkey]")) {
    const wanted = (element.dataset["hotkey"] ?? "").split(" ");
    if (wanted.join(" ") !== typed.slice(-wanted.length).join(" ") || isOff(element)) continue;
    typed = [];
    if (element.matches("input, textarea, select")) element.focus();
    else element.click();
    return true;
  }
  return false;
}

function isOff(element: HTMLElement): boolean {
  return element.matches(":disabled") || element.getClientRects().length === 0;
}

function openList(): void {
  document.querySelector("dialog[data-hotkey-dialog]")?.remove();
  const dialog = make("dialog", "sl-dialog");
  dialog.dataset["hotkeyDialog"] = "";
  dialog.setAttribute("aria-labelledby", "hotkey-title");
  const title = make("h2", "h3", "Keyboard shortcuts");
  title.id = "hotkey-title";
  const close = make("button", "btn", "Close");
  close.addEventListener("click", () => dialog.close());
  dialog.append(title, listed(), onOff(), close);
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

function listed(): HTMLElement {
  const list = make("dl", "sl-hotkeys");
  const told = new Set<string>();
  for (const element of document.querySelectorAll<HTMLElement>("[data-hotkey]")) {
    if (told.has(element.dataset["hotkey"] ?? "")) continue; // the same step from another place of the page
    told.add(element.dataset["hotkey"] ?? "");
    const name = element.dataset["hotkeyLabel"] ?? element.getAttribute("aria-label") ?? element.textContent.trim();
    const key = make("dt");
    key.append(make("kbd", "", element.dataset["hotkey"] ?? ""));
    list.append(key, make("dd", "", name));
  }
  const help = make("dt");
  help.append(make("kbd", "", "?"));
  list.append(help, make("dd", "", "this list"));
  return list;
}

function onOff(): HTMLElement {
  const label = make("label", "form-check");
  const box = document.createElement("input");
  box.type = "checkbox";
  box.className = "form-check-input";
  box.checked = switchedOn();
  box.addEventListener("change", () => localStorage.setItem(STORED, box.checked ? "on" : "off"));
  label.append(box, make("span", "form-check-label", "single-key shortcuts are on"));
  return label;
}

function make<K extends keyof HTMLElementTagNameMap>(tag: K, className = "", text = ""): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text) element.textContent = text;
  return element;
}
