// Which hyperparameters the results depend on, as far as these trials can tell.
import { el } from "./dom.js";
import { shownTrials } from "./filter.js";
import { counted, percent } from "./format.js";
import { FEWEST, importance } from "./importance_measure.js";
import { palette, plain, plotBox } from "./plots.js";
import { metricName, ranked, result, state } from "./state.js";
import { comparable } from "./scatter.js";
import { differingHparams } from "./trials.js";

export function importanceView() {
  const box = plotBox("importance", "How much each hyperparameter explains of the result");
  const element = el("section", { id: "importance" }, el("h2", {}, "Hyperparameter importance"), box.element);
  return { element, plots: true, draw: () => drawImportance(box), has: () => ranked(state.trials).length >= FEWEST && comparable().length > 0 };
}

function drawImportance(box) {
  const trials = shownTrials().filter((trial) => Number.isFinite(result(trial)));
  const results = trials.map((trial) => result(trial));
  if (trials.length < FEWEST) return box.clear(`${counted(trials.length, "trial")} with a result: at least ${FEWEST} are needed to say anything.`);
  const found = differingHparams(trials).map((name) => ({ name, ...importance(trials.map((trial) => trial.hparams.get(name)), results) }))
    .filter((one) => one.share != null).sort((one, other) => one.share - other.share).slice(-20);
  if (!found.length) return box.clear("No hyperparameter has values that repeat often enough to compare.");
  const other = pedAnova(found);
  box.draw([bars(found), noise(found), ...(other ? [other] : [])], {
    height: 100 + 28 * found.length, barmode: "overlay", legend: { orientation: "h", y: 1, yanchor: "bottom" }, margin: { l: 60, r: 20, t: 40, b: 50 },
    xaxis: { title: { text: `part of the differences in ${plain(metricName())} that goes with it` }, range: [0, 1], tickformat: ".0%" },
    yaxis: { type: "category", tickvals: found.map((_, place) => place), ticktext: found.map((one) => plain(one.name)), type: "linear", range: [-0.6, found.length - 0.4] },
  });
  box.say(`From ${counted(trials.length, "trial")}: eta squared of the results' ranks, each hyperparameter alone, among the trials that have it. A bar that ends before its mark may be chance. What depends on several together, and trials stopped early, are not told apart.`);
}

// Optuna's measure beside ours, where the page was asked for it and shows one experiment.
function pedAnova(found) {
  const shares = state.experiments.length === 1 ? state.experiments[0].ped_anova : null;
  const known = shares ? found.filter((one) => one.name in shares) : [];
  return known.length && {
    type: "scatter", mode: "markers", name: "PED-ANOVA (Optuna), a share of all", x: known.map((one) => shares[one.name]), y: known.map((one) => found.indexOf(one)),
    marker: { symbol: "diamond", size: 11, color: palette()[2] }, hovertemplate: "PED-ANOVA: %{x:.0%}<extra></extra>",
  };
}

function bars(found) {
  const sure = found.map((one) => one.share > one.noise);
  return {
    type: "bar", orientation: "h", name: "explained", x: found.map((one) => one.share), y: found.map((_, place) => place), width: 0.6,
    marker: { color: palette()[0], opacity: sure.map((yes) => (yes ? 1 : 0.35)) },
    text: found.map(described), textposition: "none", hovertemplate: "%{text}<extra></extra>",
  };
}

function described(one) {
  const chance = one.share > one.noise ? "more than chance" : "no more than chance";
  const towards = state.smaller === one.direction < 0 ? "larger" : "smaller";
  const direction = one.direction != null && Math.abs(one.direction) >= 0.3 ? `; ${towards} values do better` : "";
  return `${plain(one.name)}: ${percent(one.share)} in ${counted(one.trials, "trial")}, ${chance} (${percent(one.noise)})${direction}`;
}

function noise(found) {
  return {
    type: "scatter", mode: "markers", name: "what chance reaches (1 in 20)", x: found.map((one) => one.noise), y: found.map((_, place) => place),
    marker: { symbol: "line-ns", size: 18, line: { width: 2.5, color: palette()[1] } }, hovertemplate: "chance: %{x:.0%}<extra></extra>",
  };
}
