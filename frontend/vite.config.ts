// Builds the bundle that django-vite finds by its manifest. Every file name carries a hash, so that browsers may
// keep it for ever; nothing is fetched from anywhere but the platform itself.

import { appendFileSync, readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

import { type Plugin, defineConfig } from "vite";

const here = (path: string): string => fileURLToPath(new URL(path, import.meta.url));
const bundle = here("../platform/webapp/ui/static/ui/bundle");
const licenses = "licenses.md";

/** Minifying takes the notice out of the style sheet, and Vite's list of licences knows scripts only. */
const noticeOfStyles: Plugin = {
  name: "notice-of-styles",
  closeBundle() {
    const style = readFileSync(here("node_modules/@tabler/core/dist/css/tabler.min.css"), "utf8");
    const notice = /\/\*!([\s\S]*?)\*\//.exec(style)?.[1];
    if (notice === undefined) throw new Error("Tabler's style sheet has no notice any more: see to its licence");
    appendFileSync(`${bundle}/${licenses}`, `\n## @tabler/core\n\n${notice.replaceAll(" * ", "")}\n`);
  },
};

export default defineConfig({
  root: here("."),
  // Relative, so that a chunk finds its fellows wherever STATIC_URL puts them.
  base: "./",
  publicDir: false,
  plugins: [noticeOfStyles],
  build: {
    outDir: bundle,
    emptyOutDir: true,
    manifest: "manifest.json",
    license: { fileName: licenses },
    target: "es2023",
    // No preload helper: it would add styles by itself.
    modulePreload: false,
    assetsInlineLimit: 0,
    chunkSizeWarningLimit: 1300,
    rolldownOptions: {
      input: [here("src/app.ts"), here("src/run.ts"), here("src/theme.ts")],
      // htmx has an eval, which allowEval = false (app/htmx.ts) keeps from being reached, as does our policy.
      checks: { eval: false, pluginTimings: false },
    },
  },
});
