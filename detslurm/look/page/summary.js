// The head of the page: which experiments these are, how they are, and what is wrong with them.
import { badge, el, facts } from "./dom.js";
import { keepingFolds } from "./drawing.js";
import { trialLink } from "./failures.js";
import { frontOf, objectiveText } from "./front.js";
import { counted, exact, moment, number, percent, span } from "./format.js";
import { state } from "./state.js";
import { differingHparams } from "./trials.js";

const FIRST = 12; // hyperparameters of the best trial

export function summaryView() {
  const element = el("section", { id: "summary", "aria-label": "Overview" });
  return { element, draw: () => keepingFolds(element, () => element.replaceChildren(...state.experiments.map(card))) };
}

export function card(experiment) {
  const several = state.experiments.length > 1;
  return el("details", { class: "card", open: !several, "data-part": `experiment-${experiment.id}` },
    el("summary", {}, badge(experiment.state), " ", el("strong", {}, `Experiment ${experiment.id}`), " ", el("bdi", {}, experiment.name.slice(0, 300)),
      several && el("span", { class: "note" }, ` ${brief(experiment)}`)),
    experiment.message && el("p", { class: experiment.state === "COMPLETED" ? "note" : "warning" }, experiment.message),
    experiment.trials.length > 1 && best(experiment),
    experiment.description && el("p", {}, experiment.description),
    facts(factsOf(experiment)),
    experiment.notes && el("pre", { class: "notes" }, experiment.notes),
    experiment.problems.length > 0 && problems(experiment),
  );
}

// What is seen of it while its facts are folded.
function brief(one) {
  const parts = [one.searcher, trialCounts(one), bestOf(one) && `best ${bestOf(one)}`, one.message, unread(one)];
  return parts.filter(Boolean).join(" · ").slice(0, 300);
}

// A single problem in its own words: an experiment that can't be read has nothing but that.
function unread({ problems: texts }) {
  return texts.length > 1 ? counted(texts.length, "problem") : texts[0];
}

function factsOf(one) {
  const ended = one.ended ?? state.taken;
  return [
    ["Owner", one.owner],
    ["Searcher", one.searcher],
    ...(one.objectives.length ? several(one) : [["Metric", one.metric && `${one.metric}, ${one.smaller_is_better ? "smaller" : "larger"} is better`]]),
    ["Trials", trialCounts(one)],
    ["Progress", percent(one.progress)],
    ["Submitted", one.created && moment(one.created)],
    ["Took", one.started && `${span(ended - one.started)}${one.ended ? "" : " so far"}`],
    ["Code", one.code_version],
    ["Software", one.software],
    ["Labels", one.labels.join(", ")],
  ];
}

function several(one) {
  const front = frontOf(one);
  const shown = front.slice(0, FIRST).flatMap((trial) => [trialLink(trial, `trial ${trial.id}`), " "]);
  return [
    ["Objectives", one.objectives.map(objectiveText).join(", ")],
    ["Pareto front", front.length > 0 && el("span", {}, shown, front.length > FIRST && `and ${front.length - FIRST} more`)],
  ];
}

function trialCounts(one) {
  const counts = new Map();
  for (const trial of one.trials) counts.set(trial.state, (counts.get(trial.state) ?? 0) + 1);
  const parts = [...counts].map(([name, count]) => `${count} ${name.toLowerCase()}`);
  const part = one.trial_count > one.trials.length ? `${one.trials.length} of ${counted(one.trial_count, "trial")} here: ` : "";
  return part + (parts.join(", ") || "none yet");
}

// The best trial with its hyperparameters, first those that differ.
function best(experiment) {
  const trial = bestTrial(experiment);
  if (!trial) return null;
  const differing = new Set(differingHparams(experiment.trials));
  const names = [...trial.hparams.keys()].sort((one, other) => differing.has(other) - differing.has(one));
  const show = (some) => facts(some.map((name) => [name, exact(trial.hparams.get(name))]));
  return el("div", { class: "best" },
    el("p", {}, `Best ${experiment.metric ?? "result"} `, el("strong", {}, number(trial.best)), " by ", trialLink(trial, `trial ${trial.id}`)),
    show(names.slice(0, FIRST)),
    names.length > FIRST && el("details", { "data-part": `best-${experiment.id}` }, el("summary", {}, `${names.length - FIRST} more hyperparameters`), show(names.slice(FIRST))));
}

function bestOf(one) {
  const trial = bestTrial(one);
  return trial && `${number(trial.best)} (trial ${trial.id})`;
}

function bestTrial(one) {
  const wanted = one.objectives.length ? frontOf(one) : one.trials;
  const having = wanted.filter((trial) => typeof trial.best === "number");
  if (!having.length) return null;
  const better = (a, b) => (one.smaller_is_better ? a.best < b.best : a.best > b.best);
  return having.reduce((a, b) => (better(b, a) ? b : a)); // the first of equals
}

function problems({ id, problems: texts }) {
  return el("details", { class: "warning", "data-part": `problems-${id}` }, el("summary", {}, `${counted(texts.length, "problem")} in reading it`),
    el("ul", {}, texts.map((text) => el("li", {}, text))));
}
