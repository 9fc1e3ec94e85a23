// Copy buttons: `data-copy="text"`, or `data-copy-from="#selector"` for the text of another element.

const SAID_MS = 2000;

const saying = new WeakSet<HTMLElement>();

export function startCopyButtons(): void {
  document.addEventListener("click", (event) => {
    const target = event.target instanceof Element ? event.target : null;
    const button = target?.closest<HTMLElement>("[data-copy], [data-copy-from]");
    if (button) void copyOf(button);
  });
}

async function copyOf(button: HTMLElement): Promise<void> {
  if (saying.has(button)) return;
  const copied = await copy(wanted(button));
  const before = [...button.childNodes];
  saying.add(button);
  button.setAttribute("aria-live", "polite");
  button.replaceChildren(copied ? "Copied" : "Copying failed: select the text");
  setTimeout(() => {
    button.replaceChildren(...before);
    saying.delete(button);
  }, SAID_MS);
}

function wanted(button: HTMLElement): string {
  const from = button.dataset["copyFrom"];
  if (from === undefined) return button.dataset["copy"] ?? "";
  const source = document.querySelector(from);
  return source instanceof HTMLInputElement || source instanceof HTMLTextAreaElement
    ? source.value
    : (source?.textContent ?? "");
}

async function copy(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyTheOldWay(text); // no clipboard without HTTPS or localhost, or it was not permitted
  }
}

function copyTheOldWay(text: string): boolean {
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "visually-hidden";
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}
