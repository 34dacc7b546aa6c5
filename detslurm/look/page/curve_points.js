// Curves as points to draw: along steps, epochs or time, smoothed, with what happened on the way.
import { toNumber } from "./format.js";
import { ending } from "./outcomes.js";

export const ALONG = [["steps", "steps"], ["epochs", "epochs"], ["hours", "hours since the start"], ["date", "date and time"]];

// Where each point of a curve lies on the x axis; null where that is not known.
export function places(curve, trial, along) {
  if (along === "steps") return curve.steps;
  if (along === "epochs") return curve.steps.map((step) => (trial.batches_per_epoch ? step / trial.batches_per_epoch : null));
  const times = curve.times ?? [];
  const begin = trial.started ?? times[0];
  return curve.steps.map((_, place) => placeInTime(times[place], begin, along));
}

function placeInTime(time, begin, along) {
  if (time == null) return null;
  return along === "date" ? new Date(time * 1000) : (time - begin) / 3600;
}

// The values as plotly takes them: what is not finite, or not above 0 on a log axis, is a gap.
export function heights(curve, logarithmic) {
  return curve.values.map(toNumber).map((value) =>
    (Number.isFinite(value) && (!logarithmic || value > 0) ? value : null));
}

// An exponential moving average without the bias of its beginning; gaps stay gaps.
export function smoothed(values, weight) {
  let [sum, share] = [0, 0];
  return values.map((value) => {
    if (value == null) return null;
    sum = weight * sum + (1 - weight) * value;
    share = weight * share + (1 - weight);
    return sum / share;
  });
}

// A curve of a trial as it is drawn: {curve, x, y}. A thinned curve is smoothed by its means: the highest
// and the lowest of each part have another mean than all of them.
export function drawnCurve(whole, trial, { along, logY, weight }) {
  const curve = (weight && whole.means) || whole;
  const y = weight ? smoothed(heights(curve, false), weight).map((value) => (logY && value <= 0 ? null : value)) : heights(curve, logY);
  return { curve, x: places(curve, trial, along), y };
}

// What happened to a trial: {kind, steps, text} of each resume and each interruption.
export function events(trial) {
  return trial.runs.flatMap((run) => [...begun(run), ...ended(run)]);
}

function begun(run) {
  if (run.number === 1 || !run.resumed_steps) return []; // it began, or began again
  return [{ kind: "resumed", steps: run.resumed_steps, text: `run ${run.number} resumed at batch ${run.resumed_steps}` }];
}

export const INTERRUPTIONS = ["preempted", "time limit", "paused", "failed"];

function ended(run) {
  const word = ending(run);
  const kind = word === "job lost" || word === "hyperparameters refused" ? "failed" : word;
  return INTERRUPTIONS.includes(kind) ? [{ kind, steps: run.steps, text: `run ${run.number}: ${run.reason ?? run.outcome}` }] : [];
}

// The place on a curve at so many batches: the nearest point that has a value; -1 without one.
export function nearest(curve, values, steps) {
  let found = -1;
  for (let place = 0; place < values.length; place++) {
    if (values[place] == null) continue;
    if (found < 0 || Math.abs(curve.steps[place] - steps) < Math.abs(curve.steps[found] - steps)) found = place;
  }
  return found;
}
