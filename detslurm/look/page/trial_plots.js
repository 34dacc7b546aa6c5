// The metrics of one trial, and the figures of its profiler: a small plot for each.
import { button, el } from "./dom.js";
import { events, heights } from "./curve_points.js";
import { discardPlots, draw, lineStyle, palette, plain } from "./plots.js";
import { savePlot } from "./export.js";
import { curveOf } from "./state.js";
import { nodesOf } from "./trials.js";
import { plotlyLoaded, unpack } from "./unpacking.js";

const FIRST = 12; // more on request

// Training and validation of a metric over each other, along batches.
export function metricPlots(trial) {
  const lines = [...trial.curves].map(([name, { group, metric }]) =>
    ({ title: metric, name: group, block: name, curve: (known) => curveOf(trial, name, known), x: (curve) => curve.steps }));
  return { lines, file: `trial-${trial.id}-metrics`, along: "batches", shapes: () => marks(trial) };
}

// A figure of all nodes over each other, along time: its steps are seconds.
export function profilePlots(trial) {
  const nodes = nodesOf(trial);
  const block = `profile ${trial.id}`;
  const lines = trial.profile.map(({ group, metric }, place) => {
    const node = nodes.find((one) => metric.startsWith(`${one}.`)) ?? "";
    const title = `${group}: ${node ? metric.slice(node.length + 1) : metric}`;
    return { title, name: node || group, block, curve: (known) => known.get(place), x: (curve) => curve.steps.map((seconds) => seconds / 60) };
  });
  return { lines, file: `trial-${trial.id}-profile`, along: "minutes", shapes: () => [] };
}

// Small plots of what `plotsOf` says of a trial: {element, draw}. News draw into the plots that there
// are, so that what was zoomed stays so; `draw` tells whether there is any.
export function plotGrid(plotsOf) {
  const holder = el("div", { class: "plots" });
  const found = new Map();
  let [most, trial] = [FIRST, null];
  const more = button("", () => { most = Infinity; draw(trial); });
  function draw(of) {
    trial = of;
    const { lines, ...look } = plotsOf(trial);
    const titles = [...new Set(lines.map((line) => line.title))];
    [...found.keys()].filter((title) => !titles.includes(title)).forEach((title) => { // it began anew
      discardPlots(found.get(title).element);
      found.get(title).element.remove();
      found.delete(title);
    });
    const shown = titles.filter((title, place) => place < most || found.has(title));
    shown.forEach((title, place) => {
      if (!found.has(title)) found.set(title, onePlot(title, look.file));
      const one = found.get(title);
      if (holder.children[place] !== one.element) holder.insertBefore(one.element, holder.children[place] ?? null);
      one.draw(lines.filter((line) => line.title === title), look);
    });
    more.textContent = `Show ${titles.length - shown.length} more plots`;
    more.hidden = titles.length <= shown.length;
    return titles.length > 0;
  }
  return { element: el("div", {}, holder, more), draw };
}

function onePlot(title, file) {
  const plot = el("div", { class: "plot", role: "img", "aria-label": title.slice(0, 200) });
  const name = `${file}-${title.replace(/[^\w.-]+/g, "-").slice(0, 60)}`;
  const save = ["svg", "png"].map((format) => button(format.toUpperCase(), () => savePlot(plot, name, format), { class: "small", title: `Save this plot as ${format.toUpperCase()}` }));
  const element = el("figure", {}, el("figcaption", { title: title.slice(0, 1000) }, el("bdi", {}, title.slice(0, 60)), el("span", { class: "save" }, save)), plot);
  let [asked, drawn] = [0, 0];
  return {
    element,
    draw(lines, look) {
      const turn = ++asked;
      Promise.all([plotlyLoaded(), ...lines.map((line) => unpack(line.block))]).then(([, ...known]) => {
        if (turn < drawn || !plot.isConnected) return; // newer points were unpacked sooner
        drawn = turn;
        draw(plot, lines.map((line, place) => trace(line, line.curve(known[place]), place, look)), layoutOf(lines, look));
      });
    },
  };
}

function trace(line, curve, place, { along }) {
  const [name, x] = [line.name, line.x(curve)];
  return { x, y: heights(curve, false), name: plain(name), type: "scatter", mode: x.length > 1 ? "lines" : "markers",
    line: { ...lineStyle(place), width: 1.6 }, hovertemplate: `%{y:.6~g} at %{x:.6~g} ${along}` };
}

const EVENT_DASH = { resumed: "dot", failed: "solid" };

function marks(trial) {
  return events(trial).map((one) => ({ type: "line", x0: one.steps, x1: one.steps, yref: "paper", y0: 0, y1: 1,
    line: { width: 1, dash: EVENT_DASH[one.kind] ?? "dash", color: palette()[one.kind === "failed" ? 1 : 4] } }));
}

function layoutOf(lines, { along, shapes }) {
  return { height: 230, margin: { l: 50, r: 10, t: 8, b: 36 }, showlegend: lines.length > 1, legend: { orientation: "h", y: 1.16 }, shapes: shapes(),
    uirevision: "news keep what was zoomed",
    xaxis: { title: { text: along, standoff: 2 }, nticks: 6 }, yaxis: { nticks: 5 } };
}
