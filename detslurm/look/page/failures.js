// Why trials failed: each reason once, the most frequent first.
import { el } from "./dom.js";
import { counted } from "./format.js";
import { openTrial } from "./routing.js";
import { state } from "./state.js";

const NAMED = 12; // trials of a reason

export function failuresView() {
  const list = el("ul");
  const element = el("section", { id: "failures" }, el("h2", {}, "Failures"), list);
  return { element, has: () => state.trials.some(hasFailed), draw: () => list.replaceChildren(...reasons(state.trials).map(line)) };
}

function hasFailed(trial) {
  return trial.state === "ERROR";
}

// {reason, trials} of those that failed. Reasons that differ in numbers alone, such as sizes, are one.
export function reasons(trials) {
  const found = new Map();
  for (const trial of trials.filter(hasFailed)) {
    const reason = trial.end_reason ?? "no reason is recorded";
    const key = reason.replace(/\d+/g, "#");
    if (!found.has(key)) found.set(key, { reason, trials: [] });
    found.get(key).trials.push(trial);
  }
  return [...found.values()].sort((one, other) => other.trials.length - one.trials.length);
}

function line({ reason, trials }) {
  return el("li", {}, el("strong", {}, counted(trials.length, "trial")), ": ", el("bdi", {}, reason.slice(0, 600)), " ",
    el("span", { class: "note" }, trials.length > 1 ? "trials " : "trial ", trials.slice(0, NAMED).flatMap((trial) => [trialLink(trial), " "]), trials.length > NAMED && `and ${counted(trials.length - NAMED, "more trial")}`));
}

// A link to the page of a trial.
export function trialLink(trial, text = String(trial.id)) {
  const open = (event) => { event.preventDefault(); openTrial(trial.id); };
  return el("a", { href: `#trial-${trial.id}`, onclick: open, title: "Open the page of this trial" }, text);
}
