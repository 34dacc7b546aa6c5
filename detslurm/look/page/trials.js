// Plain questions about trials.
import { number } from "./format.js";
import { state } from "./state.js";

export function hparamNames() {
  return [...new Set(state.trials.flatMap((trial) => [...trial.hparams.keys()]))];
}

// The hyperparameters that differ among the trials that have them.
export function differingHparams(trials = state.trials) {
  const seen = (name) => new Set(trials.filter((trial) => trial.hparams.has(name)).map((trial) => JSON.stringify(trial.hparams.get(name))));
  return hparamNames().filter((name) => seen(name).size > 1);
}

function sum(parts) {
  return parts.reduce((one, other) => one + other, 0);
}

// Seconds of all runs; one that goes on counts to the moment of the document.
export function trainingTime(trial) {
  const begun = trial.runs.filter((run) => run.started != null);
  return begun.length ? sum(begun.map((run) => (run.ended ?? state.taken) - run.started)) : null;
}

export function queueTime(trial) {
  const waited = trial.runs.filter((run) => run.queued != null);
  return waited.length ? sum(waited.map((run) => (run.started ?? state.taken) - run.queued)) : null;
}

export function nodesOf(trial) {
  return [...new Set(trial.runs.flatMap((run) => run.nodes))];
}

export function trialName(trial) {
  return state.experiments.length > 1 ? `trial ${trial.id} (exp. ${trial.experiment.id})` : `trial ${trial.id}`;
}

// A trial as a legend names it: by the first of the hyperparameters that differ.
export function trialLabel(trial, names) {
  const values = names.filter((name) => trial.hparams.has(name)).slice(0, 3).map((name) => labelled(name, trial.hparams.get(name)));
  return [trialName(trial), ...values].join(", ");
}

function labelled(name, value) {
  const last = name.split(".").at(-1);
  if (typeof value === "string") return value;
  return `${last} ${typeof value === "number" ? number(Number(value.toPrecision(3))) : JSON.stringify(value)}`;
}

// Where a trial of a search with several objectives stands.
export function frontMark(trial) {
  if (trial.front) return "front";
  return trial.feasible === false ? "infeasible" : "";
}

export function trialById(id) {
  return state.trials.find((trial) => trial.id === id);
}

// The trial whose page is shown: the one that was opened, or the only one that there is.
export function pageTrial() {
  return trialById(state.trial) ?? (state.trials.length === 1 && state.experiments.length === 1 ? state.trials[0] : null);
}
