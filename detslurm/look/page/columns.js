// The columns of the tables: what each is of a row, how it is written, and whether it is shown at first.
import { bytes, counted, moment, number, percent, span, text, toNumber } from "./format.js";
import { ranked, remembered, result, state } from "./state.js";
import { differingHparams, frontMark, hparamNames, nodesOf, queueTime, trainingTime } from "./trials.js";

function column(key, title, get, { show = text, hint = "", shown = true, right = false } = {}) {
  return { key, title, get, show, hint, shown, right };
}

const RIGHT = { show: number, right: true };

export const trialColumns = remembered(() =>
  [...identity(), ...results(), ...hparamColumns(), ...course(), ...figures(), ...metricColumns()]);

function identity() {
  const several = state.experiments.length > 1;
  return [
    column("trial", "Trial", (trial) => trial.id, { right: true, show: String }),
    column("experiment", "Experiment", (trial) => trial.experiment.id, { right: true, show: String, shown: several }),
    column("name", "Name", (trial) => trial.experiment.name, { shown: false, hint: "of the experiment" }),
    column("state", "State", (trial) => trial.state),
  ];
}

function hparamColumns() {
  const differing = new Set(differingHparams());
  return hparamNames().map((name) =>
    column(`hparam ${name}`, name, (trial) => trial.hparams.get(name), {
      show: (value) => (value === undefined ? "" : text(value)),
      right: state.trials.every((trial) => typeof (trial.hparams.get(name) ?? 0) === "number"),
      shown: differing.has(name) && differing.size <= 12,
      hint: "hyperparameter",
    }),
  );
}

function results() {
  return [
    column("result", `Best ${state.metric ?? ""}`, (trial) => result(trial), { ...RIGHT, hint: "the best value of the chosen metric" }),
    column("front", "Pareto", frontMark, { shown: state.experiments.some((one) => one.objectives.length), hint: "whether it is on the front, or breaks a constraint" }),
    column("best_steps", "at batch", (trial) => trial.best_steps, { ...RIGHT, shown: false, hint: "where the searcher's metric was best" }),
    column("latest", "Latest", (trial) => trial.latest == null ? null : toNumber(trial.latest), { ...RIGHT, shown: false, hint: "the newest value of the searcher's metric" }),
    column("steps", "Batches", (trial) => trial.steps, { ...RIGHT, hint: "trained so far" }),
    column("progress", "Progress", (trial) => trial.progress, { show: percent, right: true, shown: false }),
  ];
}

function course() {
  const bracketed = state.trials.some((trial) => trial.bracket > 0);
  return [
    column("rung", "Rung", (trial) => trial.rung, { ...RIGHT, hint: "the highest that it has reached, from 0", shown: state.trials.some((trial) => trial.rung != null) }),
    column("bracket", "Bracket", (trial) => trial.bracket, { ...RIGHT, shown: bracketed }),
    column("runs", "Runs", (trial) => trial.runs.length, { ...RIGHT, hint: "how often it began or went on" }),
    column("restarts", "Restarts", (trial) => trial.restarts, { ...RIGHT, hint: "after errors", shown: state.trials.some((trial) => trial.restarts) }),
    column("training", "Running", trainingTime, { show: span, right: true, hint: "time of all its runs" }),
    column("queue", "Queued", queueTime, { show: span, right: true, hint: "time in the queue, of all its runs", shown: false }),
    column("nodes", "Nodes", (trial) => nodesOf(trial).join(" "), { shown: false }),
    column("started", "Started", (trial) => trial.started, { show: moment, shown: false }),
    column("ended", "Ended", (trial) => trial.ended, { show: moment, shown: false }),
    column("reason", "Why", (trial) => trial.end_reason, { show: (value) => value ?? "", hint: "it is in this state", shown: state.trials.some((trial) => trial.end_reason) }),
    column("checkpoints", "Checkpoints", (trial) => trial.checkpoints.filter((one) => one.state !== "DELETED").length, { ...RIGHT, shown: false, hint: "that are there" }),
  ];
}

function figures() {
  const figure = (key, title, hint, show = number) =>
    column(key, title, (trial) => trial.efficiency[key], { show: (value) => (value == null ? "–" : show(value)), right: true, hint, shown: false });
  return [
    figure("gpu_percent", "GPU %", "mean use of its GPUs"),
    figure("gpu_memory_peak", "GPU memory", "the most of one GPU", bytes),
    figure("memory_peak", "Memory", "the most on a node", bytes),
    figure("cpus_used", "CPUs", "busy on average"),
    column("ettr", "Effective", (trial) => trial.efficiency.training_time?.ettr, { show: (value) => (value == null ? "–" : percent(value)), right: true, hint: "the part of the time since its first start that was training", shown: false }),
    figure("slot_hours", "Slot-hours", "slots times hours"),
    column("energy", "kWh", (trial) => trial.efficiency.energy?.kwh, { show: (value) => (value == null ? "–" : number(value)), right: true, hint: "the known energy of its GPUs and CPUs", shown: false }),
    figure("slot_hours_wasted", "Wasted", "slot-hours whose work was lost or idle"),
  ];
}

function metricColumns() {
  const names = [...new Set(state.trials.flatMap((trial) => [...trial.summary.keys()]))].sort();
  return names.map((name) =>
    column(`metric ${name}`, name, (trial) => toNumber(trial.summary.get(name)), { ...RIGHT, shown: false, hint: "its last value" }),
  );
}

export function experimentColumns() {
  const best = (experiment) => toNumber(result(ranked(experiment.trials.filter((trial) => trial.feasible !== false))[0]));
  return [
    column("experiment", "Experiment", (one) => one.id, { show: String, right: true }),
    column("name", "Name", (one) => one.name),
    column("state", "State", (one) => one.state),
    column("owner", "Owner", (one) => one.owner),
    column("searcher", "Searcher", (one) => one.searcher),
    column("trials", "Trials", (one) => one.trial_count || one.trials.length, RIGHT),
    column("progress", "Progress", (one) => one.progress, { show: percent, right: true }),
    column("result", `Best ${state.metric ?? ""}`, best, RIGHT),
    column("created", "Submitted", (one) => one.created, { show: moment }),
    column("ended", "Ended", (one) => one.ended, { show: moment }),
    column("labels", "Labels", (one) => one.labels.join(" "), { shown: state.experiments.some((one) => one.labels.length) }),
    column("message", "Message", (one) => one.message, { show: (value) => value ?? "", shown: state.experiments.some((one) => one.message) }),
    column("problems", "Problems", (one) => one.problems.length, { show: (count) => (count ? counted(count, "problem") : ""), shown: state.experiments.some((one) => one.problems.length) }),
  ];
}
