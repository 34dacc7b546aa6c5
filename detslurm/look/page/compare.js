// The selected trials side by side, whichever experiments they are of: first what differs.
import { badge, button, el, tick } from "./dom.js";
import { csv, download } from "./export.js";
import { trialLink } from "./failures.js";
import { number, span, text, toNumber } from "./format.js";
import { change, result, state } from "./state.js";
import { hparamNames, trainingTime, trialById } from "./trials.js";

export function compareView() {
  const chosen = { differing: true };
  const content = el("div");
  const element = el("section", { id: "compare" }, el("h2", {}, "Compare"), content);
  const redraw = () => content.replaceChildren(...comparison(chosen, redraw));
  return { element, draw: redraw, has: () => compared().length > 1 };
}

function compared() {
  return [...state.selected].map(trialById).filter(Boolean);
}

function comparison(chosen, redraw) {
  const trials = compared();
  const all = parts(trials);
  const rows = chosen.differing ? all.filter((row) => row.always || differs(row)) : all;
  const columns = [{ title: "", get: (row) => row.name }, ...trials.map((trial, place) => ({ title: `trial ${trial.id}`, get: (row) => row.values[place] }))];
  return [
    el("div", { class: "bar" },
      tick("only what differs", chosen.differing, (on) => { chosen.differing = on; redraw(); }),
      tick("only these in all views", state.only, (only) => change({ only })),
      button("CSV", () => download("comparison.csv", "text/csv", csv(columns, rows)), { class: "small", title: "Save this comparison as CSV" }),
      button("Clear", () => change({ selected: new Set(), only: false }), { class: "small" })),
    el("div", { class: "scroll" }, el("table", { class: "grid compared" },
      el("thead", {}, el("tr", {}, el("th", {}), trials.map(heading))),
      el("tbody", {}, rows.map((row) => el("tr", {}, el("th", { scope: "row", title: row.name.slice(0, 300) }, row.name.slice(0, 100)), cells(row)))))),
  ];
}

function heading(trial) {
  return el("th", { scope: "col" }, trialLink(trial, `trial ${trial.id}`), " ", badge(trial.state),
    state.experiments.length > 1 && el("div", { class: "note" }, `experiment ${trial.experiment.id}`));
}

function parts(trials) {
  const of = (name, get, show = text, always = false) => ({ name, values: trials.map(get), show, always });
  const metrics = [...new Set(trials.flatMap((trial) => [...trial.summary.keys()]))].sort();
  return [
    ...hparamNames().map((name) => of(name, (trial) => trial.hparams.get(name))),
    ...configNames(trials).map(([name, values]) => ({ name: `configuration: ${name}`, values, show: text })),
    of(`best ${state.metric ?? "metric"}`, (trial) => result(trial), number, true),
    ...metrics.map((name) => of(`last ${name}`, (trial) => toNumber(trial.summary.get(name)), number)),
    of("batches", (trial) => trial.steps, number, true),
    of("running", trainingTime, span, true),
    of("runs", (trial) => trial.runs.length, number),
    of("restarts", (trial) => trial.restarts, number),
    of("GPU %", (trial) => trial.efficiency.gpu_percent, text),
  ];
}

// Of the configurations of several experiments all values by dotted name.
function configNames(trials) {
  if (new Set(trials.map((trial) => trial.experiment)).size < 2) return [];
  const flat = trials.map((trial) => new Map(flattened(trial.experiment.config, "")));
  const names = [...new Set(flat.flatMap((one) => [...one.keys()]))];
  return names.map((name) => [name, flat.map((one) => one.get(name))]);
}

function flattened(value, name) {
  if (value === null || typeof value !== "object" || Array.isArray(value)) return [[name, value]];
  return Object.entries(value).flatMap(([key, inner]) => flattened(inner, name ? `${name}.${key}` : key));
}

function differs(row) {
  return new Set(row.values.map((value) => JSON.stringify(value))).size > 1;
}

function cells(row) {
  return row.values.map((value) => {
    const shown = row.show(value);
    return el("td", { title: shown.length > 30 && shown.slice(0, 1000) }, shown.slice(0, 300));
  });
}
