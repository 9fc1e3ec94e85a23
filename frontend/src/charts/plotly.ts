// Plotly under our content security policy, loaded when the first chart comes into view.
//
// It would put <style> elements into the page, which `style-src 'self'` refuses with an error on the console. It leaves that
// be where an element of the style's id is there already, so we put placeholders there; the rules are in plotly.css.

import type Plotly from "plotly.js-basic-dist-min";

/** The second is the id of MapLibre's style, which is in the bundle without MapLibre: a digest, fixed by our lock. */
export const STYLE_IDS = [
  "plotly.js-style-global",
  "9f215cf04c5486422605d13261cb87401f4e7763b6296af81e98efbc0130da53",
] as const;

let loading: Promise<typeof Plotly> | undefined;

export function loadPlotly(): Promise<typeof Plotly> {
  loading ??= load();
  return loading;
}

async function load(): Promise<typeof Plotly> {
  for (const id of STYLE_IDS) {
    if (document.getElementById(id)) continue;
    const placeholder = document.createElement("meta");
    placeholder.id = id;
    placeholder.className = "no-inline-styles";
    document.head.append(placeholder);
  }
  return (await import("plotly.js-basic-dist-min")).default;
}
