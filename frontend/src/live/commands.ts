// The buttons that pause, resume, stop, checkpoint and kill a run. A command that ends something asks first, for a reason.

import type { CommandResource, RunApi } from "./rest.ts";

const SAID: Record<string, string> = {
  pause: "the run pauses at the end of its step",
  resume: "the run goes on",
  stop: "the run saves a checkpoint and stops",
  checkpoint: "a checkpoint is saved at the end of the step",
  kill: "the engine is killed",
};

export function startCommands(root: HTMLElement, api: RunApi): void {
  root.addEventListener("click", (event) => {
    const target = event.target instanceof Element ? event.target : null;
    const button = target?.closest<HTMLButtonElement>("button[data-command]");
    if (button) void ask(root, api, button);
  });
}

async function ask(root: HTMLElement, api: RunApi, button: HTMLButtonElement): Promise<void> {
  const kind = button.dataset["command"] ?? "";
  const dialog = root.querySelector<HTMLDialogElement>(`dialog[data-dialog="${CSS.escape(kind)}"]`);
  const reason = dialog ? await confirmed(dialog) : "";
  if (reason === null) return;
  button.dataset["busy"] = "";
  button.disabled = true; // a double click asks once
  try {
    say(root, wordsFor(await api.command(kind, reason)), false);
  } catch (error) {
    button.disabled = false;
    say(root, `${kind}: ${error instanceof Error ? error.message : String(error)}`, true);
  } finally {
    delete button.dataset["busy"];
  }
}

/** The reason given, possibly empty; null when it was not meant. */
function confirmed(dialog: HTMLDialogElement): Promise<string | null> {
  const field = dialog.querySelector<HTMLInputElement>("[name=reason]");
  if (field) field.value = "";
  dialog.returnValue = "";
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "confirm" ? (field?.value ?? "") : null), {
      once: true,
    });
    dialog.showModal();
  });
}

function wordsFor(command: CommandResource): string {
  if (command.status === "rejected") return `${command.kind} was rejected: ${command.note}`;
  const said = SAID[command.kind] ?? "";
  return `${command.kind} ${command.status === "applied" ? "done" : "asked"}: ${said}`;
}

function say(root: HTMLElement, text: string, wrong: boolean): void {
  const place = root.querySelector<HTMLElement>("[data-role=command-message]");
  if (!place) return;
  place.textContent = text;
  place.toggleAttribute("data-wrong", wrong);
}
