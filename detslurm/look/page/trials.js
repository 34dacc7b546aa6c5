// Plain questions about trials.
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

export function trialById(id) {
  return state.trials.find((trial) => trial.id === id);
}
