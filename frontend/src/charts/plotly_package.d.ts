// The part of Plotly's interface that we use; the package brings no types.

declare module "plotly.js-basic-dist-min" {
  import type { Layout, Trace } from "./chart.ts";

  type Config = Record<string, unknown>;

  const Plotly: {
    react(root: HTMLElement, data: Trace[], layout: Layout, config: Config): Promise<HTMLElement>;
    purge(root: HTMLElement): void;
    Plots: { resize(root: HTMLElement): Promise<void> | undefined };
  };
  export default Plotly;
}
