// The result against each hyperparameter, and against two of them at once.
import { choice, el, refill } from "./dom.js";
import { shownTrials } from "./filter.js";
import { counted, number, text, written } from "./format.js";
import { colorscale, palette, plain, plotBox } from "./plots.js";
import { metricName, ranked, remembered, result, state } from "./state.js";
import { openPoint } from "./routing.js";
import { axisOf, roundNumbers } from "./scales.js";
import { differingHparams, trialName } from "./trials.js";

const MOST = 12; // small plots
const CELLS = 8; // of the heat map, along a number

export function scatterView() {
  const box = plotBox("scatter", "The result against each hyperparameter");
  const element = el("section", { id: "scatter" }, el("h2", {}, "Scatter"), box.element);
  return { element, plots: true, draw: () => drawScatter(box), has: () => comparable().length > 0 };
}

// The hyperparameters that differ between trials with a result, whichever the filter shows.
export const comparable = remembered(() => differingHparams(ranked(state.trials)));

function withResult() {
  return shownTrials().filter((trial) => Number.isFinite(result(trial)));
}

function drawScatter(box) {
  const trials = withResult();
  const names = differingHparams(trials).slice(0, MOST);
  if (!names.length) return box.clear("No hyperparameter differs between trials with a result.");
  const columns = Math.max(1, Math.min(names.length, Math.floor(box.element.clientWidth / 300), 4));
  const rows = Math.ceil(names.length / columns);
  const layout = { height: 60 + 230 * rows, showlegend: false, grid: { rows, columns, pattern: "independent", xgap: 0.25, ygap: 0.35 } };
  const traces = names.map((name, place) => small(name, place ? String(place + 1) : "", trials, layout));
  box.draw(traces, layout, openPoint);
  box.say(`${counted(trials.length, "trial")}: the best ${metricName().slice(0, 80)} against each hyperparameter that differs. Selected trials are diamonds.`);
}

function small(name, number_, every, layout) {
  const trials = every.filter((trial) => trial.hparams.has(name));
  const axis = axisOf(name, trials.map((trial) => trial.hparams.get(name)));
  const value = (trial) => trial.hparams.get(name);
  const chosen = trials.map((trial) => state.selected.has(trial.id));
  layout[`xaxis${number_}`] = { title: { text: plain(name), standoff: 4 }, type: axis.numeric ? (axis.logarithmic ? "log" : "linear") : "category", nticks: 6,
    ...(axis.numeric && { tickvals: axis.ticks, ticktext: axis.labels.map(([, label]) => label) }) };
  layout[`yaxis${number_}`] = { nticks: 5 };
  return {
    type: "scatter", mode: "markers", xaxis: `x${number_}`, yaxis: `y${number_}`,
    x: trials.map((trial) => (axis.numeric ? value(trial) : plain(text(value(trial))))), y: trials.map((trial) => result(trial)),
    customdata: trials.map((trial) => trial.id), text: trials.map((trial) => plain(trialName(trial))), hovertemplate: "%{text}<br>%{x}: %{y:.6~g}<extra></extra>",
    marker: { size: chosen.map((on) => (on ? 11 : 6)), symbol: chosen.map((on) => (on ? "diamond" : "circle")), color: chosen.map((on) => palette()[on ? 1 : 0]), opacity: 0.75 },
  };
}

export function heatView() {
  const chosen = { x: null, y: null };
  const box = plotBox("heat-map", "The result against two hyperparameters");
  const bar = el("div", { class: "bar" });
  const element = el("section", { id: "heat" }, el("h2", {}, "Heat map"), bar, box.element);
  const redraw = () => drawHeat(chosen, box, bar, redraw);
  return { element, plots: true, draw: redraw, has: () => comparable().length > 1 };
}

function drawHeat(chosen, box, bar, redraw) {
  const trials = withResult();
  const names = differingHparams(trials);
  if (names.length < 2) {
    bar.replaceChildren();
    return box.clear("Two hyperparameters that differ are needed.");
  }
  if (!names.includes(chosen.x)) chosen.x = names[0];
  if (!names.includes(chosen.y) || chosen.y === chosen.x) chosen.y = names.find((name) => name !== chosen.x);
  const pairs = names.map((name) => [name, name.slice(0, 60)]);
  const set = (axis) => (name) => { chosen[axis] = name; redraw(); };
  refill(bar, [choice("Across", pairs, chosen.x, set("x")), choice("Up", pairs, chosen.y, set("y"))]);
  const [x, y] = [cellsOf(chosen.x, trials), cellsOf(chosen.y, trials)];
  const { means, counts } = averages(trials, x, y);
  const along = (name, one) => ({ title: { text: plain(name) }, ...one.axis, showgrid: false, zeroline: false, range: [0, one.names.length] });
  box.draw([{ type: "heatmap", z: means, x: [...x.names.keys(), x.names.length], y: [...y.names.keys(), y.names.length], xgap: 2, ygap: 2, hoverongaps: false, colorscale: colorscale(), reversescale: state.smaller,
    text: y.names.map((up, row) => x.names.map((across, column) => `${across}, ${up}: ${number(means[row][column])}, mean of ${counted(counts[row][column], "trial")}`)), hovertemplate: "%{text}<extra></extra>",
    colorbar: { title: { text: plain(metricName()), side: "right" }, thickness: 14 } }],
  { height: 440, xaxis: along(chosen.x, x), yaxis: along(chosen.y, y) });
  box.say("The mean of the best values in each cell; empty cells have no trial.");
}

// Cells along an axis: the values themselves where there are few, or else between numbers that a
// person would write. `axis` has their names, and `names` those of each cell.
function cellsOf(name, trials) {
  const values = trials.filter((trial) => trial.hparams.has(name)).map((trial) => trial.hparams.get(name));
  const axis = axisOf(name, values);
  const distinct = new Set(values.map((value) => JSON.stringify(value)));
  if (!axis.numeric || distinct.size <= CELLS) {
    const keys = [...distinct].sort((one, other) => axis.place(JSON.parse(one)) - axis.place(JSON.parse(other)));
    const names = keys.map((key) => plain(text(JSON.parse(key))));
    return { names, axis: { tickvals: names.map((_, place) => place + 0.5), ticktext: names }, cell: (trial) => keys.indexOf(JSON.stringify(trial.hparams.get(name))) };
  }
  const edges = roundNumbers(axis.low, axis.high, CELLS, axis.logarithmic);
  const ticktext = edges.map((value) => written(value, 12));
  const names = edges.slice(1).map((_, place) => `${ticktext[place]} to ${ticktext[place + 1]}`);
  const cell = (trial) => {
    const value = trial.hparams.get(name);
    return typeof value === "number" ? Math.min(names.length - 1, edges.findLastIndex((edge) => edge <= value)) : -1;
  };
  return { names, axis: { tickvals: edges.map((_, place) => place), ticktext }, cell };
}

function averages(trials, x, y) {
  const empty = () => y.names.map(() => x.names.map(() => 0));
  const [sums, counts] = [empty(), empty()];
  for (const trial of trials) {
    const [column, row] = [x.cell(trial), y.cell(trial)];
    if (column < 0 || row < 0) continue;
    sums[row][column] += result(trial);
    counts[row][column] += 1;
  }
  return { counts, means: sums.map((line, row) => line.map((sum, column) => (counts[row][column] ? sum / counts[row][column] : null))) };
}
