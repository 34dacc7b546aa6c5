// The head of the page: which experiments these are, how they are, and what is wrong with them.
import { badge, el, facts } from "./dom.js";
import { keepingFolds } from "./drawing.js";
import { counted, moment, number, percent, span } from "./format.js";
import { state } from "./state.js";

export function summaryView() {
  const element = el("section", { id: "summary" });
  return { element, draw: () => keepingFolds(element, () => element.replaceChildren(...state.experiments.map(card))) };
}

function card(experiment) {
  const several = state.experiments.length > 1;
  return el("details", { class: "card", open: !several, "data-part": `experiment-${experiment.id}` },
    el("summary", {}, badge(experiment.state), " ", el("strong", {}, `Experiment ${experiment.id}`), " ", el("bdi", {}, experiment.name.slice(0, 300)),
      several && el("span", { class: "note" }, ` ${brief(experiment)}`)),
    experiment.message && el("p", { class: "warning" }, experiment.message),
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
    ["Metric", one.metric && `${one.metric}, ${one.smaller_is_better ? "smaller" : "larger"} is better`],
    ["Trials", trialCounts(one)],
    ["Progress", percent(one.progress)],
    ["Submitted", one.created && moment(one.created)],
    ["Took", one.started && `${span(ended - one.started)}${one.ended ? "" : " so far"}`],
    ["Labels", one.labels.join(", ")],
    ["Best", bestOf(one)],
  ];
}

function trialCounts(one) {
  const counts = new Map();
  for (const trial of one.trials) counts.set(trial.state, (counts.get(trial.state) ?? 0) + 1);
  const parts = [...counts].map(([name, count]) => `${count} ${name.toLowerCase()}`);
  const part = one.trial_count > one.trials.length ? `${one.trials.length} of ${counted(one.trial_count, "trial")} here: ` : "";
  return part + (parts.join(", ") || "none yet");
}

function bestOf(one) {
  const having = one.trials.filter((trial) => typeof trial.best === "number");
  if (!having.length) return null;
  const better = (a, b) => (one.smaller_is_better ? a.best < b.best : a.best > b.best);
  const best = having.reduce((a, b) => (better(b, a) ? b : a)); // the first of equals
  return `${number(best.best)} (trial ${best.id})`;
}

function problems({ id, problems: texts }) {
  return el("details", { class: "warning", "data-part": `problems-${id}` }, el("summary", {}, `${counted(texts.length, "problem")} in reading it`),
    el("ul", {}, texts.map((text) => el("li", {}, text))));
}
