/** The console, begun. */
import { render } from "preact";
import { App } from "./app.tsx";
import { lookForSession } from "./kit/session.ts";
import { showTheme } from "./kit/theme.ts";
import "uplot/dist/uPlot.min.css";
import "./style/base.css";
import "./style/parts.css";
import "./style/chart.css";
import "./style/frame.css";
import "./style/pages.css";
import "./style/traces.css";

showTheme();
void lookForSession();
const root = document.getElementById("app");
if (root !== null) render(<App />, root);
