// The Pareto front of a search with several objectives: a plot of two of them, and the front as a table.
import { el, grid } from "./dom.js";
import { trialLink } from "./failures.js";
import { counted, number, toNumber } from "./format.js";
import { palette, plain, plotBox } from "./plots.js";
import { openPoint } from "./routing.js";
import { state } from "./state.js";
import { trialName } from "./trials.js";

export function frontView() {
  const element = el("section", { id: "front" }, el("h2", {}, "Pareto front"));
  const boxes = new Map();
  function draw() {
    const searches = withObjectives();
    element.replaceChildren(element.firstChild, ...searches.flatMap((one) => part(one, boxes)));
    for (const one of searches) drawFront(boxes.get(one.id), one);
  }
  return { element, plots: true, draw, has: () => withObjectives().length > 0 };
}

function withObjectives() {
  return state.experiments.filter((one) => one.objectives.length > 0);
}

// The trials that no other one beats, the best by the first objective first.
export function frontOf(experiment) {
  const [first] = experiment.objectives;
  const place = (trial) => (first.smaller_is_better ? 1 : -1) * valueOf(trial, first);
  return experiment.trials.filter((trial) => trial.front).sort((one, other) => place(one) - place(other));
}

function valueOf(trial, objective) {
  return toNumber(trial.objectives[objective.name] ?? null);
}

export function objectiveText({ name, smaller_is_better: smaller, bound }) {
  const order = smaller == null ? "" : smaller ? "smaller is better" : "larger is better";
  return `${name.slice(0, 60)} (${[order, bound].filter(Boolean).join(", ")})`;
}

function part(experiment, boxes) {
  if (!boxes.has(experiment.id)) boxes.set(experiment.id, plotBox(`front-${experiment.id}`, "Two objectives of all trials, with the Pareto front"));
  const front = frontOf(experiment);
  const rows = front.map((trial) => [trialLink(trial), ...experiment.objectives.map((one) => number(valueOf(trial, one)))]);
  return [
    state.experiments.length > 1 && el("h3", {}, `Experiment ${experiment.id}`),
    boxes.get(experiment.id).element,
    front.length ? grid(["Trial", ...experiment.objectives.map(objectiveText)], rows) : el("p", { class: "nothing" }, "No trial keeps all constraints."),
  ].filter(Boolean);
}

const GROUPS = [
  ["on the front", (trial) => trial.front, "diamond", 10],
  ["beaten by another", (trial) => !trial.front && trial.feasible, "circle", 6],
  ["breaks a constraint", (trial) => trial.feasible === false, "x", 7],
];

function drawFront(box, experiment) {
  const [across, up] = experiment.objectives;
  if (!up) return box.clear("There is one objective alone: see the table.");
  const there = experiment.trials.filter((trial) => [across, up].every((one) => Number.isFinite(valueOf(trial, one))));
  const traces = GROUPS.map(([name, test, symbol, size], place) => {
    const trials = there.filter(test).sort((one, other) => valueOf(one, across) - valueOf(other, across));
    const values = (objective) => trials.map((trial) => valueOf(trial, objective));
    return { type: "scatter", mode: place || experiment.objectives.length > 2 ? "markers" : "lines+markers", name, x: values(across), y: values(up), customdata: trials.map((trial) => trial.id),
      text: trials.map((trial) => plain(trialName(trial))), hovertemplate: "%{text}<br>%{x:.6~g}, %{y:.6~g}<extra></extra>",
      line: { dash: "dot", width: 1 }, marker: { symbol, size, color: palette()[place] } };
  }).filter((trace) => trace.x.length);
  if (!traces.length) return box.clear("No trial has reported all objectives.");
  box.draw(traces, { height: 380, legend: { orientation: "h", y: 1.12 }, xaxis: { title: { text: plain(objectiveText(across)) } }, yaxis: { title: { text: plain(objectiveText(up)) } } }, openPoint);
  const more = experiment.objectives.length > 2 ? ` The plot has two of ${experiment.objectives.length} objectives, the table all.` : "";
  box.say(`${counted(frontOf(experiment).length, "trial")} of ${there.length} on the front: no other trial is better in one objective without being worse in another.${more}`);
}
