// The page as a whole: its bar, its views in their order, and when each of them is drawn.
import { button, choice, el, tick } from "./dom.js";
import { curvesView } from "./curves.js";
import { follow } from "./live.js";
import { moment } from "./format.js";
import { change, load, onChange, state } from "./state.js";
import { followAddress } from "./routing.js";
import { isDark } from "./plots.js";
import { summaryView } from "./summary.js";
import { tableView } from "./table.js";

function begin() {
  load(JSON.parse(document.getElementById("snapshot").textContent));
  const views = [summaryView(), tableView(), curvesView()];
  const bar = el("header", { class: "top" });
  const all = el("div", { id: "all" }, views.map((view) => view.element));
  document.getElementById("page").append(bar, all, foot());
  const drawer = lazily(views);
  const redraw = () => { drawBar(bar, redraw); drawer.dirty(); };
  onChange(redraw);
  redraw();
  listen(drawer, redraw);
  followAddress();
  follow();
}

// Views are drawn when they come near the window: the first ones are there at once.
function lazily(views) {
  const [near, dirty] = [new Set(), new Set()];
  const drawNear = () => {
    for (const view of [...dirty].filter((one) => near.has(one))) {
      dirty.delete(view);
      view.draw();
    }
  };
  const watch = new IntersectionObserver((seen) => {
    for (const { target, isIntersecting } of seen) {
      const view = views.find((one) => one.element === target);
      if (isIntersecting) near.add(view);
      else near.delete(view);
    }
    drawNear();
  }, { rootMargin: "400px" });
  views.forEach((view) => watch.observe(view.element));
  return {
    dirty() { views.forEach((view) => dirty.add(view)); drawNear(); },
    everything() { views.forEach((view) => { view.draw(); view.all?.(); dirty.delete(view); }); },
  };
}

function drawBar(bar, redraw) {
  if (bar.contains(document.activeElement) && document.activeElement.id === "filter") return;
  const field = el("input", { id: "filter", type: "search", placeholder: "Filter: words, lr<0.1, state=error   ( / )",
    "aria-label": "Filter of trials, for all views", value: state.filter, oninput: debounced(() => change({ filter: field.value })) });
  bar.replaceChildren(
    el("h1", {}, el("bdi", {}, heading())),
    el("div", { class: "bar" }, field,
      choice("Metric", state.metrics.map((name) => [name, name.slice(0, 80)]), state.metric, (metric) => change({ metric })),
      tick("smaller is better", state.smaller, (smaller) => change({ smaller })),
      button("◐", () => toggleTheme(redraw), { title: "Light or dark", "aria-label": "Switch between light and dark" })),
  );
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

function toggleTheme(redraw) {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  redraw();
}

function listen(drawer, redraw) {
  document.addEventListener("keydown", onKey);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  let theme;
  addEventListener("beforeprint", () => {
    theme = document.documentElement.dataset.theme;
    document.documentElement.dataset.theme = "light";
    drawer.everything();
  });
  addEventListener("afterprint", () => {
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
    redraw();
  });
}

function onKey(event) {
  const typing = event.target.closest?.("input:not([type=checkbox]), select, textarea");
  if (event.key === "/" && !typing) {
    event.preventDefault();
    document.getElementById("filter")?.focus();
  } else if (event.key === "Escape" && event.target.id === "filter") {
    event.target.value = "";
    event.target.blur();
    change({ filter: "" });
  }
}

function foot() {
  return el("footer", {}, `As of ${moment(state.taken)}, from ${state.store}. Times are in this browser's time zone. / filters, Esc clears and goes back.`);
}

begin();
