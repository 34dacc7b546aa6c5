// The search's brackets and rungs: how far trials came, who ended where, who is still on the way.
import { trialLink } from "./failures.js";
import { el, grid } from "./dom.js";
import { counted, number, toNumber } from "./format.js";
import { hatched, palette, plain, plotBox } from "./plots.js";
import { state } from "./state.js";
import { trialById } from "./trials.js";

const NAMED = 12; // trials of a rung

export function rungsView() {
  const element = el("section", { id: "rungs" }, el("h2", {}, "Rungs of the search"));
  const boxes = new Map();
  function draw() {
    const searches = state.experiments.filter((one) => one.rungs.length);
    element.replaceChildren(element.firstChild, ...searches.flatMap((one) => part(one, boxes)));
    for (const one of searches) drawBars(boxes.get(one.id), one);
  }
  return { element, plots: true, draw, has: () => state.experiments.some((one) => one.rungs.length > 0) };
}

function part(experiment, boxes) {
  if (!boxes.has(experiment.id)) boxes.set(experiment.id, plotBox(`rungs-${experiment.id}`, "Trials at each rung"));
  const unit = experiment.unit ?? "units";
  const rows = experiment.rungs.map((rung) => [
    String(rung.bracket), String(rung.rung), `${number(rung.units)} ${unit}`, number(rung.trials), number(rung.outstanding), best(rung), names(atRung(experiment, rung)),
  ]);
  return [
    state.experiments.length > 1 && el("h3", {}, `Experiment ${experiment.id}`),
    boxes.get(experiment.id).element,
    grid(["Bracket", "Rung", "Length", "Have a result", "On their way", "Best", "Highest rung of"], rows),
  ].filter(Boolean);
}

// The trials that have come to this rung and no further.
function atRung(experiment, rung) {
  return experiment.trials.filter((trial) => trial.rung === rung.rung && (trial.bracket ?? 0) === rung.bracket);
}

const UNFINISHED = new Set(["RUNNING", "QUEUED", "PAUSED", "ACTIVE", "STARTING", "PULLING"]);
const GROUPS = {
  "ended here": (trial) => trial.state === "COMPLETED",
  "failed here": (trial) => trial.state === "ERROR" || trial.state === "CANCELED",
  "may go on": (trial) => UNFINISHED.has(trial.state),
};

function drawBars(box, experiment) {
  const labels = experiment.rungs.map((rung) => `bracket ${rung.bracket}, rung ${rung.rung}<br>${number(rung.units)} ${plain(experiment.unit ?? "units")}`);
  const ended = experiment.rungs.map((rung) => atRung(experiment, rung));
  const traces = Object.entries(GROUPS).map(([name, test], place) => bar(name, labels, ended.map((trials) => trials.filter(test).length), place));
  const passed = experiment.rungs.map((rung, place) => Math.max(0, rung.trials - ended[place].length));
  box.draw([...traces, bar("went on", labels, passed, 4)], {
    height: 320, barmode: "stack", legend: { orientation: "h", y: 1.15 }, xaxis: { type: "category" }, yaxis: { title: { text: "trials" }, rangemode: "tozero" },
  });
}

const PATTERNS = ["", "x", "/", "", "."];

function bar(name, x, y, place) {
  return { type: "bar", name, x, y, hovertemplate: `%{y} ${name}<extra></extra>`, marker: { color: palette()[place], pattern: hatched(PATTERNS[place]) } };
}

function best(rung) {
  if (rung.best == null) return "–";
  const value = number(toNumber(rung.best));
  return rung.best_trial == null ? value : el("span", {}, `${value} (`, link(rung.best_trial), ")");
}

function names(trials) {
  const shown = trials.slice(0, NAMED).flatMap((trial) => [link(trial.id), " "]);
  return el("span", {}, shown, trials.length > NAMED && `and ${counted(trials.length - NAMED, "more trial")}`, !trials.length && "–");
}

function link(id) {
  if (!trialById(id)) return String(id);
  return trialLink(trialById(id));
}
