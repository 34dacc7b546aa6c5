// Learning curves over each other, of the best trials or of the selected ones.
import { ALONG, events, heights, nearest, places, smoothed } from "./curve_points.js";
import { choice, el, tick } from "./dom.js";
import { shownTrials } from "./filter.js";
import { counted, number, text } from "./format.js";
import { lineStyle, plain, plotBox } from "./plots.js";
import { change, curveOf, metricName, ranked, state } from "./state.js";
import { points, unpack } from "./unpacking.js";
import { openTrial } from "./routing.js";
import { differingHparams, trialName } from "./trials.js";

const TOPS = [5, 10, 20, 50, 100];
const SYMBOLS = { resumed: "triangle-right", preempted: "square", "time limit": "diamond", paused: "hourglass", failed: "x" };

export function curvesView() {
  const chosen = { along: "batches", logX: false, logY: false, weight: 0, marks: true };
  const box = plotBox("curves", "Learning curves");
  const draw = () => {
    if (state.metric && !points(state.metric)) return unpack(state.metric).then(draw);
    drawCurves(box, chosen);
  };
  const set = (name) => (value) => { chosen[name] = value; draw(); };
  const bar = el("div", { class: "bar" },
    choice("Best", TOPS.map((top) => [top, `${top} trials`]), state.topN, (top) => change({ topN: Number(top) })),
    choice("Along", ALONG, chosen.along, set("along")),
    slider(chosen, draw),
    tick("log x", chosen.logX, set("logX")),
    tick("log y", chosen.logY, set("logY")),
    tick("marks", chosen.marks, set("marks"), "resumes, preemptions, time limits, pauses and failures on the curves"));
  const element = el("section", { id: "curves" }, el("h2", {}, "Learning curves"), bar, box.element);
  return { element, plots: true, draw };
}

function slider(chosen, redraw) {
  const shown = el("output", {}, chosen.weight || "off");
  const input = el("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: chosen.weight, oninput: () => {
    chosen.weight = Number(input.value);
    shown.textContent = chosen.weight || "off";
    redraw();
  } });
  return el("label", { class: "field", title: "weight of an exponential moving average" }, el("span", {}, "Smoothing"), input, shown);
}

// Of the trials that the filter lets through, the best; the selected ones are always among them.
export function curveTrials() {
  const having = shownTrials().filter((trial) => trial.curves.has(state.metric));
  const ticked = having.filter((trial) => state.selected.has(trial.id)); // first: they get the clearest colours
  const others = having.filter((trial) => !state.selected.has(trial.id));
  const best = ranked(others);
  const known = new Set(best);
  const rest = others.filter((trial) => !known.has(trial)); // whose values are all infinite
  return { trials: [...ticked, ...[...best, ...rest].slice(0, state.topN)], of: having.length };
}

function drawCurves(box, chosen) {
  const { trials, of } = curveTrials();
  if (!trials.length) return box.clear(emptiness());
  const names = differingHparams().slice(0, 6);
  const traces = trials.flatMap((trial, place) => tracesOf(trial, lineStyle(place), chosen, names));
  if (chosen.marks) traces.push(...Object.keys(SYMBOLS).map((kind) => markTrace(trials, kind, chosen)).filter(Boolean));
  box.draw(traces, layoutOf(chosen, trials.length));
  box.plot.removeAllListeners("plotly_click");
  box.plot.on("plotly_click", ({ points }) => openTrial(points[0].data.meta ?? points[0].customdata));
  box.say(remarks(trials, of, chosen));
}

function emptiness() {
  if (!state.metrics.length) return "No trial has reported a metric yet.";
  return state.filter ? "No trial that matches the filter has reported this metric." : "No trial has reported this metric.";
}

function tracesOf(trial, style, chosen, names) {
  const curve = curveOf(trial, state.metric);
  const raw = heights(curve, chosen.logY);
  const faded = selectedElsewhere(trial) ? 0.25 : 1;
  const shown = chosen.weight ? smoothedCurve(curve, chosen) : { curve, y: raw };
  const line = { x: places(shown.curve, trial, chosen.along), y: shown.y, type: "scatter", mode: modeOf(shown.y),
    name: plain(trialName(trial)), meta: trial.id, line: { ...style, width: state.selected.has(trial.id) ? 3 : 1.6 },
    marker: { size: 5 }, opacity: faded, hovertemplate: "%{y:.6~g} at %{x}<br>%{text}", text: hover(trial, names) };
  if (!chosen.weight) return [line];
  const behind = { x: places(curve, trial, chosen.along), y: raw, type: "scatter", mode: "lines", hoverinfo: "skip", showlegend: false, meta: trial.id,
    line: { ...style, width: 1 }, opacity: 0.2 * faded };
  return [behind, line];
}

// The highest and the lowest of each part have another mean than all of them: the means do.
function smoothedCurve(curve, chosen) {
  const base = curve.means ?? curve;
  return { curve: base, y: smoothed(heights(base, false), chosen.weight).map((value) => (chosen.logY && value <= 0 ? null : value)) };
}

function isThinned(curve) {
  return curve.count > curve.values.length;
}

// A point between two gaps is no line: it is shown as a marker.
function modeOf(values) {
  const alone = values.some((value, place) => value != null && values[place - 1] == null && values[place + 1] == null);
  return alone ? "lines+markers" : "lines";
}

function selectedElsewhere(trial) {
  return state.selected.size > 0 && !state.selected.has(trial.id);
}

function hover(trial, names) {
  const values = names.map((name) => `${plain(name)}: ${plain(text(trial.hparams.get(name)))}`);
  return [plain(trial.state.toLowerCase()), ...values].join("<br>");
}

function markTrace(trials, kind, chosen) {
  const marks = trials.flatMap((trial, place) => marksOf(trial, kind, chosen, lineStyle(place).color));
  if (!marks.length) return null;
  return { x: marks.map((one) => one.x), y: marks.map((one) => one.y), text: marks.map((one) => one.text),
    customdata: marks.map((one) => one.trial), type: "scatter", mode: "markers", name: kind,
    hovertemplate: "%{text}<extra></extra>",
    marker: { symbol: SYMBOLS[kind], size: 9, color: marks.map((one) => one.color), line: { width: 1, color: "#888" } } };
}

function marksOf(trial, kind, chosen, color) {
  if (selectedElsewhere(trial)) return [];
  const whole = curveOf(trial, state.metric);
  const { curve, y } = chosen.weight ? smoothedCurve(whole, chosen) : { curve: whole, y: heights(whole, chosen.logY) };
  const x = places(curve, trial, chosen.along);
  return events(trial).filter((one) => one.kind === kind).flatMap((one) => {
    const place = nearest(curve, y, one.steps);
    return place < 0 ? [] : [{ x: x[place], y: y[place], color, trial: trial.id, text: plain(`${trialName(trial)}, ${one.text}`) }];
  });
}

function layoutOf(chosen, count) {
  const along = ALONG.find(([name]) => name === chosen.along)[1];
  const dated = chosen.along === "date";
  return {
    height: 480, showlegend: count <= 60, uirevision: `${state.metric} ${chosen.along} ${chosen.logX} ${chosen.logY}`,
    xaxis: { title: { text: along }, type: dated ? "date" : chosen.logX ? "log" : "linear" },
    yaxis: { title: { text: plain(metricName()) }, type: chosen.logY ? "log" : "linear" },
  };
}

function remarks(trials, of, chosen) {
  const curves = trials.map((trial) => curveOf(trial, state.metric));
  const values = curves.flatMap((curve) => heights(curve, chosen.logY));
  const gaps = values.filter((value) => value == null).length;
  const thinned = curves.filter(isThinned).length;
  const timeless = chosen.along === "epochs" ? trials.filter((trial) => !trial.batches_per_epoch).length : 0;
  return [
    trials.length < of ? `${number(trials.length)} of ${counted(of, "trial")} with this metric: the best${state.selected.size ? ", and those that are ticked" : ""}.` : "",
    timeless ? `${counted(timeless, "trial")} not drawn along epochs: records_per_epoch and hyperparameters.global_batch_size say how long one is.` : "",
    gaps ? `${counted(gaps, "value")} not finite${chosen.logY ? ", or not above 0," : ""} shown as gaps.` : "",
    thinned ? "Long curves are thinned; their highest and lowest values are kept." : "",
    thinned && chosen.weight ? `${counted(thinned, "thinned curve")} smoothed by the means of all values in each part.` : "",
    "Click a curve to open its trial.",
  ].filter(Boolean).join(" ");
}
