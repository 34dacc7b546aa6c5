// Learning curves over each other, of the best trials or of the selected ones: the chosen metric large,
// all others small below it.
import { axesOf, firstLooks, looksBar } from "./curve_looks.js";
import { drawnCurve, events, heights, nearest, places } from "./curve_points.js";
import { choice, el } from "./dom.js";
import { shownTrials } from "./filter.js";
import { counted, number, text } from "./format.js";
import { plotGrid } from "./plot_grid.js";
import { lineStyle, modeOf, plain, plotBox } from "./plots.js";
import { change, curveOf, metricName, ranked, state } from "./state.js";
import { points, unpack } from "./unpacking.js";
import { openTrial } from "./routing.js";
import { differingHparams, trialLabel, trialName } from "./trials.js";

const TOPS = [5, 10, 20, 50, 100];
const NARROW = 640; // pixels: the legend stands below the plot
const SYMBOLS = { resumed: "triangle-right", preempted: "square", "time limit": "diamond", paused: "hourglass", failed: "x" };

export function curvesView() {
  const looks = firstLooks();
  const box = plotBox("curves", "Learning curves");
  const others = plotGrid(() => smallPlots(looks), (metric) => change({ metric }));
  const draw = () => {
    if (state.metric && !points(state.metric)) return unpack(state.metric).then(draw);
    drawCurves(box, looks);
    others.draw();
  };
  const bar = looksBar(looks, draw, choice("Best", TOPS.map((top) => [top, `${top} trials`]), state.topN, (top) => change({ topN: Number(top) })));
  const element = el("section", { id: "curves" }, el("h2", {}, "Learning curves"), bar, box.element, others.element);
  return { element, plots: true, draw, has: () => state.metrics.length > 0 };
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

// The same trials in the same colours, by every other metric.
function smallPlots(looks) {
  const { trials } = curveTrials();
  const names = differingHparams(trials);
  const lines = state.metrics.filter((name) => name !== state.metric).flatMap((metric) => trials.flatMap((trial, place) =>
    (trial.curves.has(metric) ? [{ title: metric, name: trialLabel(trial, names), block: metric, place, faded: selectedElsewhere(trial),
      drawn: (known) => drawnCurve(curveOf(trial, metric, known), trial, looks) }] : [])));
  return { lines, file: "curves", legend: false, axes: axesOf(looks), later: true, shapes: () => [] };
}

function drawCurves(box, looks) {
  const { trials, of } = curveTrials();
  if (!trials.length) return box.clear("No trial that matches the filter has reported this metric.");
  const names = differingHparams(trials);
  const traces = trials.flatMap((trial, place) => tracesOf(trial, lineStyle(place), looks, names));
  if (looks.marks) traces.push(...Object.keys(SYMBOLS).map((kind) => markTrace(trials, kind, looks)).filter(Boolean));
  const layout = layoutOf(looks, trials.length, box.element.clientWidth < NARROW);
  box.draw(traces, layout, (point) => openTrial(point.data.meta ?? point.customdata));
  box.say(remarks(trials, of, looks));
}

function tracesOf(trial, style, looks, names) {
  const curve = curveOf(trial, state.metric);
  const faded = selectedElsewhere(trial) ? 0.25 : 1;
  const { x, y } = drawnCurve(curve, trial, looks);
  const line = { x, y, type: "scatter", mode: modeOf(y),
    name: plain(trialLabel(trial, names)), meta: trial.id, line: { ...style, width: state.selected.has(trial.id) ? 3 : 1.6 },
    marker: { size: 5 }, opacity: faded, hovertemplate: "%{y:.6~g} at %{x}<br>%{text}<extra></extra>", text: hover(trial, names.slice(0, 6)) };
  if (!looks.weight) return [line];
  const behind = { x: places(curve, trial, looks.along), y: heights(curve, looks.logY), type: "scatter", mode: "lines", hoverinfo: "skip", showlegend: false, meta: trial.id,
    line: { ...style, width: 1 }, opacity: 0.2 * faded };
  return [behind, line];
}

function isThinned(curve) {
  return curve.count > curve.values.length;
}

function selectedElsewhere(trial) {
  return state.selected.size > 0 && !state.selected.has(trial.id);
}

function hover(trial, names) {
  const values = names.filter((name) => trial.hparams.has(name)).map((name) => `${plain(name)}: ${plain(text(trial.hparams.get(name)))}`);
  return [`${plain(trialName(trial))}, ${plain(trial.state.toLowerCase())}`, ...values].join("<br>");
}

function markTrace(trials, kind, looks) {
  const marks = trials.flatMap((trial, place) => marksOf(trial, kind, looks, lineStyle(place).color));
  if (!marks.length) return null;
  return { x: marks.map((one) => one.x), y: marks.map((one) => one.y), text: marks.map((one) => one.text),
    customdata: marks.map((one) => one.trial), type: "scatter", mode: "markers", name: kind,
    hovertemplate: "%{text}<extra></extra>",
    marker: { symbol: SYMBOLS[kind], size: 9, color: marks.map((one) => one.color), line: { width: 1, color: "#888" } } };
}

function marksOf(trial, kind, looks, color) {
  if (selectedElsewhere(trial)) return [];
  const { curve, x, y } = drawnCurve(curveOf(trial, state.metric), trial, looks);
  return events(trial).filter((one) => one.kind === kind).flatMap((one) => {
    const place = nearest(curve, y, one.steps);
    return place < 0 ? [] : [{ x: x[place], y: y[place], color, trial: trial.id, text: plain(`${trialName(trial)}, ${one.text}`) }];
  });
}

function layoutOf(looks, count, narrow) {
  const { xaxis, yaxis } = axesOf(looks);
  return {
    height: narrow ? 340 + 20 * Math.min(count, 60) : 480, showlegend: count <= 60, uirevision: `${state.metric} ${looks.along} ${looks.logX} ${looks.logY}`,
    legend: narrow ? { orientation: "h", x: 0, y: -0.2, yanchor: "top" } : {},
    xaxis, yaxis: { ...yaxis, title: { text: plain(metricName()) } },
  };
}

function remarks(trials, of, looks) {
  const curves = trials.map((trial) => curveOf(trial, state.metric));
  const values = curves.flatMap((curve) => heights(curve, looks.logY));
  const gaps = values.filter((value) => value == null).length;
  const thinned = curves.filter(isThinned).length;
  const timeless = looks.along === "epochs" ? trials.filter((trial) => !trial.batches_per_epoch).length : 0;
  return [
    trials.length < of ? `${number(trials.length)} of ${counted(of, "trial")} with this metric: the best${state.selected.size ? ", and those that are ticked" : ""}.` : "",
    timeless ? `${counted(timeless, "trial")} not drawn along epochs: records_per_epoch and hyperparameters.global_batch_size say how long one is.` : "",
    gaps ? `${counted(gaps, "value")} not finite${looks.logY ? ", or not above 0," : ""} shown as gaps.` : "",
    thinned ? "Long curves are thinned; their highest and lowest values are kept." : "",
    thinned && looks.weight ? `${counted(thinned, "thinned curve")} smoothed by the means of all values in each part.` : "",
    "Click a curve to open its trial.",
  ].filter(Boolean).join(" ");
}
