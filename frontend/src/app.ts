// On every page: styles, htmx, theme switch, copy buttons, shortcuts, ages. What only a run's page needs is in run.ts.

import "./style.css";

import { startAges } from "./app/ages.ts";
import { startCopyButtons } from "./app/copy.ts";
import { startHotkeys } from "./app/hotkeys.ts";
import { startHtmx } from "./app/htmx.ts";
import { startThemeSwitch } from "./app/theme_switch.ts";

startHtmx();
startThemeSwitch();
startCopyButtons();
startHotkeys();
startAges();
