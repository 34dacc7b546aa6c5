// The page as a whole: its bar, its views in their order, and when each of them is drawn.
import { button, choice, el, refill, tick } from "./dom.js";
import { contentsView } from "./contents.js";
import { compareView } from "./compare.js";
import { curvesView } from "./curves.js";
import { importanceView } from "./importance.js";
import { failuresView } from "./failures.js";
import { frontView } from "./front.js";
import { follow } from "./live.js";
import { keepingFocus, lazily } from "./drawing.js";
import { moment } from "./format.js";
import { parallelView } from "./parallel.js";
import { isDark } from "./plots.js";
import { closeTrial, followAddress } from "./routing.js";
import { rungsView } from "./rungs.js";
import { heatView, scatterView } from "./scatter.js";
import { change, load, onChange, state } from "./state.js";
import { summaryView } from "./summary.js";
import { tableView } from "./table.js";
import { timelineView } from "./timeline.js";
import { pageTrial } from "./trials.js";
import { trialView } from "./trial.js";

function begin() {
  load(JSON.parse(document.getElementById("snapshot").textContent));
  const views = [failuresView(), summaryView(), tableView(), curvesView(), compareView(), parallelView(), scatterView(), heatView(), importanceView(), frontView(), rungsView(), timelineView()];
  const [bar, trial, foot] = [el("header", { class: "top" }), trialView(), el("footer")];
  const all = el("div", { id: "all" }, views.map((view) => view.element));
  const page = document.getElementById("page");
  const contents = contentsView(page);
  page.append(bar, contents.element, trial.element, all, foot);
  const drawer = lazily(views);
  if (typeof DecompressionStream === "undefined") bar.after(el("p", { class: "warning" }, "This browser is too old to unpack curves and plots: its tables are all there is. Firefox 113, Chromium 80 and Safari 16.4 know how."));
  const redraw = () => keepingFocus(() => {
    drawBar(bar, redraw);
    foot.textContent = `As of ${moment(state.taken)}, from ${state.store}. Times are in this browser's time zone. / goes to the filter, Esc clears it and leaves a trial's page.`;
    trial.draw();
    all.hidden = pageTrial() != null;
    if (!all.hidden) drawer.dirty();
    contents.draw();
  });
  onChange(redraw);
  redraw();
  listen(drawer, redraw);
  followAddress();
  follow();
}

function drawBar(bar, redraw) {
  if (!bar.firstChild) bar.append(el("h1"), el("div", { class: "bar" }, filterField(), el("span", { class: "bar" }), themeButton(redraw)));
  bar.querySelectorAll("#filter, span.bar").forEach((one) => { one.hidden = pageTrial() != null; }); // of the list of trials
  bar.querySelector("#theme").textContent = isDark() ? "Light" : "Dark";
  bar.querySelector("h1").replaceChildren(el("bdi", {}, heading()));
  bar.querySelector("#filter").value ||= state.filter;
  refill(bar.querySelector("span.bar"), [
    choice("Metric", state.metrics.map((name) => [name, name.slice(0, 80)]), state.metric, (metric) => change({ metric })),
    tick("smaller is better", state.smaller, (smaller) => change({ smaller }), "decides which trials are the best")]);
}

function filterField() {
  const field = el("input", { id: "filter", type: "search", placeholder: "Filter: words, lr<0.1, state=error   ( / )",
    title: "Words that a row has somewhere, and comparisons: lr<0.1 layers>=3 state=error. All must hold, in all views.",
    "aria-label": "Filter of trials, for all views", oninput: debounced(() => change({ filter: field.value })) });
  return field;
}

function themeButton(redraw) {
  return button("", () => { setTheme(isDark() ? "light" : "dark"); redraw(); }, { id: "theme", title: "Light or dark" });
}

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
}

function heading() {
  if (state.experiments.length !== 1) return `${state.experiments.length} experiments`;
  const [only] = state.experiments;
  return `Experiment ${only.id}${only.name ? `: ${only.name.slice(0, 100)}` : ""}`;
}

function debounced(act) {
  let timer = 0;
  return () => { clearTimeout(timer); timer = setTimeout(act, 150); };
}

function listen(drawer, redraw) {
  document.addEventListener("keydown", onKey);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  let theme;
  addEventListener("beforeprint", () => {
    theme = document.documentElement.dataset.theme;
    setTheme("light");
    if (pageTrial() == null) drawer.everything();
  });
  addEventListener("afterprint", () => { setTheme(theme); redraw(); });
}

function onKey(event) {
  const typing = event.target.closest?.("input:not([type=checkbox]), select, textarea");
  if (event.key === "/" && !typing) {
    event.preventDefault();
    if (state.trial != null) closeTrial();
    document.getElementById("filter").focus();
  } else if (event.key === "Escape" && event.target.id === "filter") {
    event.target.value = "";
    event.target.blur();
    change({ filter: "" });
  } else if (event.key === "Escape" && state.trial != null) closeTrial();
}

begin();
