// The metrics of one trial, and the figures of its profiler: a small plot for each.
import { button, el } from "./dom.js";
import { events, heights } from "./curve_points.js";
import { draw, lineStyle, palette, plain } from "./plots.js";
import { savePlot } from "./export.js";

const FIRST = 12; // more on request

// Plots of curves by what they measure: training and validation of a metric over each other.
export function curvePlots(trial, curves, name) {
  const metrics = [...new Set(curves.map((curve) => curve.metric))];
  const holder = el("div", { class: "plots" });
  const show = (from, to) => metrics.slice(from, to).forEach((metric) => holder.append(onePlot(trial, curves, metric, name)));
  show(0, FIRST);
  const more = metrics.length > FIRST && button(`Show ${metrics.length - FIRST} more plots`, () => { show(FIRST); more.remove(); });
  return el("div", {}, holder, more);
}

function onePlot(trial, curves, metric, name) {
  const plot = el("div", { class: "plot small", role: "img", "aria-label": metric.slice(0, 200) });
  const file = `trial-${trial.id}-${name}-${metric.replace(/[^\w.-]+/g, "-").slice(0, 60)}`;
  const save = ["svg", "png"].map((format) => button(format.toUpperCase(), () => savePlot(plot, file, format), { class: "small", title: `Save this plot as ${format.toUpperCase()}` }));
  const these = curves.filter((curve) => curve.metric === metric);
  requestAnimationFrame(() => plot.isConnected && draw(plot, these.map(lineOf), layoutOf(trial, these.length > 1)));
  return el("figure", {}, el("figcaption", { title: metric.slice(0, 1000) }, el("bdi", {}, metric.slice(0, 60)), el("span", { class: "save" }, save)), plot);
}

function lineOf(curve, place) {
  return { x: curve.steps, y: heights(curve, false), name: plain(curve.group), type: "scatter", mode: curve.steps.length > 1 ? "lines" : "markers",
    line: { ...lineStyle(place), width: 1.6 }, hovertemplate: "%{y:.6~g} at batch %{x}" };
}

const EVENT_DASH = { resumed: "dot", preempted: "dash", failed: "solid" };

function layoutOf(trial, several) {
  const shapes = events(trial).map((one) => ({ type: "line", x0: one.steps, x1: one.steps, yref: "paper", y0: 0, y1: 1, line: { width: 1, dash: EVENT_DASH[one.kind], color: palette()[one.kind === "failed" ? 1 : 4] } }));
  return { height: 230, margin: { l: 50, r: 10, t: 8, b: 36 }, showlegend: several, legend: { orientation: "h", y: 1.16 }, shapes, xaxis: { title: { text: "batches", standoff: 2 }, nticks: 6 }, yaxis: { nticks: 5 } };
}
