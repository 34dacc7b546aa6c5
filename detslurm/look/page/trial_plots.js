// The metrics of one trial, and the figures of its profiler: a small plot for each.
import { button, el } from "./dom.js";
import { events, heights } from "./curve_points.js";
import { draw, lineStyle, palette, plain } from "./plots.js";
import { savePlot } from "./export.js";
import { curveOf } from "./state.js";
import { nodesOf } from "./trials.js";
import { plotlyLoaded, points, unpack } from "./unpacking.js";

const FIRST = 12; // more on request

// Training and validation of a metric over each other, along batches.
export function metricPlots(trial) {
  const lines = [...trial.curves].map(([name, { group, metric }]) =>
    ({ title: metric, name: group, block: name, curve: () => curveOf(trial, name), x: (curve) => curve.steps }));
  return plots(lines, { file: `trial-${trial.id}-metrics`, along: "batches", shapes: marks(trial) });
}

// A figure of all nodes over each other, along time: its steps are seconds.
export function profilePlots(trial) {
  const nodes = nodesOf(trial);
  const block = `profile ${trial.id}`;
  const lines = trial.profile.map(({ group, metric }, place) => {
    const node = nodes.find((one) => metric.startsWith(`${one}.`)) ?? "";
    const title = `${group}: ${node ? metric.slice(node.length + 1) : metric}`;
    return { title, name: node || group, block, curve: () => points(block).get(place), x: (curve) => curve.steps.map((seconds) => seconds / 60) };
  });
  return plots(lines, { file: `trial-${trial.id}-profile`, along: "minutes", shapes: [] });
}

function plots(lines, look) {
  const titles = [...new Set(lines.map((line) => line.title))];
  const holder = el("div", { class: "plots" });
  const show = (from, to) => titles.slice(from, to).forEach((title) => holder.append(onePlot(title, lines.filter((line) => line.title === title), look)));
  show(0, FIRST);
  const more = titles.length > FIRST && button(`Show ${titles.length - FIRST} more plots`, () => { show(FIRST); more.remove(); });
  return el("div", {}, holder, more);
}

function onePlot(title, lines, look) {
  const plot = el("div", { class: "plot", role: "img", "aria-label": title.slice(0, 200) });
  const file = `${look.file}-${title.replace(/[^\w.-]+/g, "-").slice(0, 60)}`;
  const save = ["svg", "png"].map((format) => button(format.toUpperCase(), () => savePlot(plot, file, format), { class: "small", title: `Save this plot as ${format.toUpperCase()}` }));
  Promise.all([plotlyLoaded(), ...lines.map((line) => unpack(line.block))])
    .then(() => plot.isConnected && draw(plot, lines.map((line, place) => trace(line, place, look)), layoutOf(lines, look)));
  return el("figure", {}, el("figcaption", { title: title.slice(0, 1000) }, el("bdi", {}, title.slice(0, 60)), el("span", { class: "save" }, save)), plot);
}

function trace(line, place, { along }) {
  const curve = line.curve();
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
  return { height: 230, margin: { l: 50, r: 10, t: 8, b: 36 }, showlegend: lines.length > 1, legend: { orientation: "h", y: 1.16 }, shapes,
    xaxis: { title: { text: along, standoff: 2 }, nticks: 6 }, yaxis: { nticks: 5 } };
}
