// What the page shows and what its reader has chosen; views draw again when it changes.
import { toNumber } from "./format.js";
import { points, takePacked } from "./unpacking.js";

export const state = {
  experiments: [],
  trials: [],
  metrics: [],
  metric: null, // "group/metric"
  offered: null, // the metric that the page has chosen itself
  smaller: true,
  filter: "",
  topN: 20,
  selected: new Set(), // ids of trials
  only: false, // whether the views show only these
  trial: null, // whose page is open
  taken: 0,
  version: 0, // counts the changes
};

const listeners = [];

// Call `act` after every change.
export function onChange(act) {
  listeners.push(act);
}

// Change what was chosen, and draw again.
export function change(values) {
  Object.assign(state, values);
  state.version += 1;
  if ("metric" in values) state.smaller = smallerIsBetter(state.metric);
  listeners.forEach((act) => act());
}

// Take a trial into the comparison, or out of it.
export function select(trial, on) {
  const selected = new Set(state.selected);
  if (on) selected.add(trial.id);
  else selected.delete(trial.id);
  change({ selected, only: state.only && selected.size > 0 });
}

// A function that finds something out again only after a change.
export function remembered(find) {
  let [found, version] = [null, -1];
  return () => {
    if (version !== state.version) [found, version] = [find(), state.version];
    return found;
  };
}

// Take a document in; choices stay as far as they still have a meaning.
export function load(snapshot) {
  takePacked(snapshot.packed);
  const experiments = snapshot.experiments.map(experimentOf);
  const trials = experiments.flatMap((experiment) => experiment.trials);
  const metrics = [...new Set(trials.flatMap((trial) => [...trial.curves.keys()]))].sort();
  Object.assign(state, { experiments, trials, metrics, taken: snapshot.taken });
  state.store = snapshot.store;
  const first = firstMetric(experiments, metrics);
  const untouched = state.metric === state.offered; // by the reader
  state.offered = first;
  if (!metrics.includes(state.metric) || (untouched && first !== state.metric)) change({ metric: first });
  else change({});
}

function experimentOf(part) {
  const experiment = { name: "", state: "ACTIVE", labels: [], rungs: [], problems: [], config: {},
    code: {}, objectives: [], smaller_is_better: true, trial_count: 0, ...part };
  experiment.trials = (part.trials ?? []).map((trial) => trialOf(trial, experiment));
  return experiment;
}

function trialOf(part, experiment) {
  const trial = { steps: 0, progress: 0, restarts: 0, runs: [], checkpoints: [], artifacts: [], profile: [],
    log_tail: [], efficiency: {}, objectives: {}, front: false, feasible: null, ...part, experiment };
  trial.hparams = new Map(Object.entries(part.hparams ?? {}));
  trial.summary = new Map(Object.entries(part.summary ?? {}));
  trial.curves = new Map((part.curves ?? []).map((curve) => [`${curve.group}/${curve.metric}`, curve]));
  trial.runs = trial.runs.map((run) => ({ nodes: [], resumed_steps: 0, steps: 0, ...run }));
  return trial;
}

function firstMetric(experiments, metrics) {
  const wanted = experiments.map((experiment) => experiment.metric).filter(Boolean);
  const named = (group) => metrics.find((name) => wanted.some((metric) => name === group + metric));
  return named("validation/") ?? metrics.find((name) => wanted.some((metric) => name.endsWith(`/${metric}`)))
    ?? metrics.find((name) => name.startsWith("validation/")) ?? metrics[0] ?? null;
}

const LARGER = /acc|auc|f1|precision|recall|score|reward|return|bleu|rouge|iou|dice|r2|map\b|top/i;

// As the searcher says of its own metric; of others by their names, which the reader can correct.
function smallerIsBetter(name) {
  const searched = state.experiments.find((one) => one.metric && name?.endsWith(`/${one.metric}`));
  return searched ? searched.smaller_is_better : !LARGER.test(name ?? "");
}

const results = remembered(() => new Map(state.trials.map((trial) => [trial, bestOf(trial, state.metric)])));

// The best value of the chosen metric that a trial has had; NaN without one.
export function result(trial) {
  return results().get(trial);
}

function bestOf(trial, name) {
  const { metric, smaller_is_better: smaller } = trial.experiment;
  const searched = metric && name === `validation/${metric}` && smaller === state.smaller;
  if (searched && trial.best != null) return toNumber(trial.best);
  const curve = trial.curves.get(name);
  return (state.smaller ? curve?.smallest : curve?.largest) ?? toNumber(trial.summary.get(name));
}

// A metric of a trial with its points; undefined while they are still packed.
export function curveOf(trial, name, known = points(name)) {
  const found = known?.get(trial.id);
  return found && { ...trial.curves.get(name), ...found };
}

// The trials by their result, the best first; those without one last.
export function ranked(trials) {
  const withResult = trials.map((trial) => [result(trial), trial]).filter(([value]) => Number.isFinite(value));
  return withResult.sort(([one], [other]) => (state.smaller ? one - other : other - one)).map(([, trial]) => trial);
}

export function metricName(name = state.metric) {
  return name ?? "no metric";
}
