// On a run's page: the custom elements that keep it live. Parts first, so that <sl-run> finds them ready.

import { ChartsElement } from "./charts/charts_element.ts";
import { ConnectionElement } from "./live/connection_element.ts";
import { LogElement } from "./live/log_element.ts";
import { RunElement } from "./live/run_element.ts";

customElements.define("sl-connection", ConnectionElement);
customElements.define("sl-charts", ChartsElement);
customElements.define("sl-log", LogElement);
customElements.define("sl-run", RunElement);
