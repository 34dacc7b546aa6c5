// Parallel coordinates: each trial a line through its hyperparameters to its result.
// Plotly's own ones need WebGL, and code made of texts, which the page forbids.
import { brushing } from "./brushes.js";
import { button, el } from "./dom.js";
import { shownTrials } from "./filter.js";
import { counted, number, text } from "./format.js";
import { isDark, modeOf, plain, plotBox, shade } from "./plots.js";
import { change, metricName, ranked, result, state } from "./state.js";
import { axisOf } from "./scales.js";
import { comparable } from "./scatter.js";
import { differingHparams, trialName } from "./trials.js";

const MARGINS = { l: 50, r: 70, t: 60, b: 24 };
const BINS = 9; // lines are drawn in so many colours: a trace for each
const MOST_AXES = 10;

export function parallelView() {
  const view = { brushes: new Map(), axes: [], trials: [] };
  const box = plotBox("parallel-coordinates", "Hyperparameters and result of each trial as a line");
  const bar = el("div", { class: "bar" });
  const element = el("section", { id: "parallel" }, el("h2", {}, "Parallel coordinates"), bar, box.element);
  const redraw = () => drawParallel(view, box, bar, redraw);
  brushing(box.plot, MARGINS, () => view.axes.length, (place, span) => {
    const { name } = view.axes[place];
    if (span) view.brushes.set(name, span);
    else if (!view.brushes.delete(name)) return;
    redraw();
  });
  return { element, plots: true, draw: redraw, has: () => comparable().length > 0 };
}

function drawParallel(view, box, bar, redraw) {
  view.trials = ranked(shownTrials());
  view.axes = axesOf(view.trials);
  bar.replaceChildren();
  if (view.axes.length < 2) {
    return box.clear(view.trials.length < 2 ? "Two or more trials with a result are needed." : "No hyperparameter differs between these trials.");
  }
  const kept = view.trials.filter((trial) => isKept(view, trial));
  bar.replaceChildren(...controls(view, kept, redraw));
  box.draw([grey(view, kept), ...bins(view, kept), bold(view, kept)].filter(Boolean), layoutOf(view, box.element.clientWidth));
  box.say(`Drag along an axis to keep a part of it, click it to let go. From the best result (${isDark() ? "light" : "dark"}) to the worst (${isDark() ? "dark" : "light"}).`);
}

function axesOf(trials) {
  const names = differingHparams(trials).slice(0, MOST_AXES);
  const axes = names.map((name) => ({ ...axisOf(name, trials.map((trial) => trial.hparams.get(name))), get: (trial) => trial.hparams.get(name) }));
  return axes.length ? [...axes, { ...axisOf(metricName(), trials.map((trial) => result(trial))), get: (trial) => result(trial) }] : [];
}

function isKept(view, trial) {
  return view.axes.every((axis) => {
    const span = view.brushes.get(axis.name);
    const place = axis.place(axis.get(trial));
    return !span || (place != null && place >= span[0] && place <= span[1]);
  });
}

function controls(view, kept, redraw) {
  const brushed = view.axes.some((axis) => view.brushes.has(axis.name));
  const ids = kept.slice(0, 100).map((trial) => trial.id);
  return [
    el("span", { class: "count", role: "status" }, brushed ? `${number(kept.length)} of ${counted(view.trials.length, "trial")}` : counted(kept.length, "trial")),
    brushed && button("Select these to compare", () => change({ selected: new Set(ids) }), { class: "small" }),
    brushed && button("Clear brushes", () => { view.brushes.clear(); redraw(); }, { class: "small" }),
  ].filter(Boolean);
}

// Lines of several trials in one trace, with a gap after each.
function lines(view, trials) {
  const [x, y, texts] = [[], [], []];
  for (const trial of trials) {
    view.axes.forEach((axis, place) => {
      x.push(place);
      y.push(axis.place(axis.get(trial)));
      texts.push(`${plain(trialName(trial))}<br>${plain(axis.name)}: ${plain(text(axis.get(trial)))}`);
    });
    x.push(null);
    y.push(null);
    texts.push("");
  }
  return { x, y, text: texts, type: "scatter", mode: modeOf(y), marker: { size: 5 }, hoverinfo: "text", showlegend: false };
}

function grey(view, kept) {
  const known = new Set(kept);
  const rest = view.trials.filter((trial) => !known.has(trial));
  return { ...lines(view, rest), hoverinfo: "skip", opacity: 0.25, line: { width: 1, color: "#888888" } };
}

// By rank, the best drawn last, over the others.
function bins(view, kept) {
  const places = new Map(view.trials.map((trial, place) => [trial, Math.min(BINS - 1, Math.floor((place * BINS) / view.trials.length))]));
  return Array.from({ length: BINS }, (_, bin) => BINS - 1 - bin).map((bin) => {
    const these = kept.filter((trial) => places.get(trial) === bin);
    return { ...lines(view, these), line: { width: bin ? 1.2 : 2, color: shade(1 - bin / (BINS - 1)) } };
  });
}

function bold(view, kept) {
  const these = kept.filter((trial) => state.selected.has(trial.id));
  return these.length ? { ...lines(view, these), mode: "lines+markers", line: { width: 3.5, color: "#d55e00" }, marker: { size: 7 } } : null;
}

function layoutOf(view, width) {
  const last = view.axes.length - 1;
  const uprights = view.axes.map((_, place) => ({ type: "line", x0: place, x1: place, y0: 0, y1: 1, line: { width: 1, color: "#8a94a0" } }));
  const brushes = view.axes.flatMap((axis, place) => brushShape(view.brushes.get(axis.name), place, last));
  return {
    height: 440, margin: MARGINS, dragmode: false, shapes: [...uprights, ...brushes],
    annotations: view.axes.flatMap((axis, place) => labelsOf(axis, place, Math.floor((1.7 * (width - 120)) / Math.max(1, last) / 7))),
    xaxis: { visible: false, range: [0, last], fixedrange: true, automargin: false },
    yaxis: { visible: false, range: [0, 1], fixedrange: true, automargin: false },
  };
}

function brushShape(span, place, last) {
  if (!span) return [];
  const half = 0.012 * Math.max(last, 1);
  return [{ type: "rect", x0: place - half, x1: place + half, y0: span[0], y1: span[1], fillcolor: "#d55e00", opacity: 0.35, line: { width: 1, color: "#d55e00" } }];
}

// Titles take turns in two lines, and have so many letters.
function labelsOf(axis, place, letters) {
  const whole = axis.logarithmic ? `${axis.name} (log)` : axis.name;
  const short = whole.length > letters ? `…${whole.slice(1 - letters)}` : whole;
  const title = { x: place, y: 1, yshift: place % 2 ? 26 : 40, text: `<b>${plain(short)}</b>`, showarrow: false, hovertext: plain(whole) };
  return [title, ...axis.labels.map(([y, label]) =>
    ({ x: place, y, xanchor: "left", xshift: 3, text: plain(label.slice(0, 16)), showarrow: false, font: { size: 10 }, bgcolor: isDark() ? "rgba(27,31,36,.7)" : "rgba(255,255,255,.7)" }))];
}
