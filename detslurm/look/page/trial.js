// The page of one trial: its course, curves, checkpoints, configuration, code, log and profile.
import { artifactsView } from "./artifacts.js";
import { firstLooks, looksBar } from "./curve_looks.js";
import { badge, button, el, facts, grid } from "./dom.js";
import { keepingPlaces } from "./drawing.js";
import { bytes, counted, energy, exact, moment, number, percent, span, text, toNumber } from "./format.js";
import { shownTrials } from "./filter.js";
import { discardPlots } from "./plots.js";
import { select, state } from "./state.js";
import { ending } from "./outcomes.js";
import { closeTrial, openTrial } from "./routing.js";
import { card } from "./summary.js";
import { metricPlots, plotGrid, profilePlots } from "./plot_grid.js";
import { pageTrial, queueTime, trainingTime } from "./trials.js";
import { yaml } from "./yaml.js";

export function trialView() {
  const element = el("div", { id: "trial" });
  let [drawn, parts] = [null, []];
  return {
    element,
    draw() {
      const trial = pageTrial();
      element.hidden = !trial;
      if (drawn !== trial?.id) { // another one begins as it should
        discardPlots(element);
        parts = trial ? panels() : [];
        element.replaceChildren(...parts.map((part) => part.element));
      }
      drawn = trial?.id;
      parts.forEach((part) => part.draw(trial));
    },
  };
}

function panels() {
  const looks = firstLooks();
  return [
    panel("head", () => state.version, (trial) => [head(trial), warnings(trial), facts(factsOf(trial))]),
    panel("log", (trial) => trial.log_tail, (trial) => trial.log_tail.length > 0 &&
      [el("h2", {}, "Last lines of the log"), el("pre", {}, trial.log_tail.join("\n")), command(`detslurm trial logs ${trial.id}`)]),
    plotPanel("metrics", "Metrics", (trial) => metricPlots(trial, looks), (draw) => looksBar(looks, draw)),
    plotPanel("profile", "Use over time", profilePlots),
    panel("artifacts", (trial) => trial.artifacts, (trial) => trial.artifacts.length > 0 && [el("h2", {}, "Artifacts"), artifactsView(trial)]),
    panel("hyperparameters", (trial) => [...trial.hparams], (trial) => trial.hparams.size > 0 &&
      [el("h2", {}, "Hyperparameters"), facts([...trial.hparams].map(([name, value]) => [name, exact(value)]))]),
    panel("use", (trial) => trial.efficiency, figures),
    panel("runs", (trial) => [trial.runs, state.taken], (trial) => trial.runs.length > 0 && [el("h2", {}, "Runs"), runs(trial)]),
    panel("checkpoints", (trial) => trial.checkpoints, (trial) => trial.checkpoints.length > 0 && [el("h2", {}, "Checkpoints"), checkpoints(trial)]),
    panel("experiment", () => state.version, (trial) => state.trial == null && [el("h2", {}, "Experiment"), card(trial.experiment)]),
    panel("configuration", (trial) => trial.experiment.config, (trial) => [el("h2", {}, "Configuration"),
      folded("configuration", `Configuration of experiment ${trial.experiment.id}`, el("pre", {}, yaml(trial.experiment.config)))]),
    panel("code", (trial) => trial.experiment.code, (trial) => Object.keys(trial.experiment.code).length > 0 && [el("h2", {}, "Code"), code(trial.experiment.code)]),
  ];
}

// A part that is made anew when what `shown` gives has changed: news of others leave it as its reader
// has it. It is hidden where there are no `contents`.
function panel(name, shown, contents) {
  const element = el("section", { class: `part-${name}` });
  let before;
  return {
    element,
    draw(trial) {
      const now = JSON.stringify(shown(trial));
      if (now === before) return;
      before = now;
      const made = contents(trial);
      element.hidden = !made;
      keepingPlaces(element, () => element.replaceChildren(...el("div", {}, [made || []].flat(2)).childNodes));
    },
  };
}

function plotPanel(name, title, linesOf, bar = () => null) {
  const plots = plotGrid(linesOf);
  let shown;
  const element = el("section", { class: `part-${name}` }, el("h2", {}, title), bar(() => plots.draw(shown)), plots.element);
  return {
    element,
    draw(trial) {
      shown = trial;
      element.hidden = !plots.draw(trial);
    },
  };
}

function head(trial) {
  const all = shownTrials();
  const place = all.indexOf(trial);
  const step = (by, label) => {
    const other = place < 0 ? null : all[place + by];
    return button(label, () => openTrial(other.id), { disabled: !other, class: "small" });
  };
  const selected = state.selected.has(trial.id);
  const title = [el("h2", {}, `Trial ${trial.id}`), badge(trial.state)];
  if (state.trial == null) return el("div", { class: "bar" }, title); // the only one
  return el("div", { class: "bar" },
    button("← All trials", closeTrial, { title: "Esc" }), step(-1, "‹ previous"), step(1, "next ›"), title, el("bdi", { class: "note" }, `of experiment ${trial.experiment.id} ${trial.experiment.name.slice(0, 200)}`),
    button(selected ? "Don't compare" : "Compare", () => select(trial, !selected), { class: "small" }));
}

// What is wrong with it, and with its experiment if it is the only one there.
function warnings(trial) {
  const texts = [trial.end_reason, state.trial == null && trial.experiment.message].filter(Boolean);
  return [...new Set(texts)].map((text) => el("p", { class: trial.state === "COMPLETED" ? "note" : "warning" }, text));
}

function factsOf(trial) {
  const metric = trial.experiment.metric ?? "metric";
  return [
    [`Best ${metric}`, trial.best != null && `${number(toNumber(trial.best))}${trial.best_steps == null ? "" : ` at batch ${number(trial.best_steps)}`}`],
    [`Latest ${metric}`, trial.latest != null && number(toNumber(trial.latest))],
    ["Batches", number(trial.steps)],
    ["Epochs", trial.batches_per_epoch && number(trial.steps / trial.batches_per_epoch)],
    ["Progress", percent(trial.progress)],
    ["Started", trial.started && moment(trial.started)],
    ["Ended", trial.ended && moment(trial.ended)],
    ["Running", span(trainingTime(trial))],
    ["Queued", span(queueTime(trial))],
    ["Restarts", number(trial.restarts)],
    ["Rung", trial.rung != null && `${trial.rung} of bracket ${trial.bracket ?? 0}`],
  ].map(([name, value]) => [name, value === false || value === 0 ? null : value]);
}

function runs(trial) {
  const titles = ["Run", "Queued", "Waited", "Started", "Ran", "Batches", "Outcome", "Why", "Nodes", "Job"];
  return grid(titles, trial.runs.map((run) => [
    String(run.number), moment(run.queued), run.queued == null ? "–" : span((run.started ?? state.taken) - run.queued), moment(run.started),
    run.started == null ? "–" : span((run.ended ?? state.taken) - run.started), `${number(run.resumed_steps)} to ${number(run.steps)}`,
    run.started == null && run.outcome == null ? "waiting" : ending(run), cut(run.reason), cut(run.nodes.join(" ")), cut(run.job),
  ]));
}

function cut(value) {
  const whole = value ?? "–";
  return whole.length > 40 ? el("span", { title: whole.slice(0, 2000) }, `${whole.slice(0, 39)}…`) : whole;
}

function checkpoints(trial) {
  const titles = ["Batches", "Saved", "State", "Size", "Metrics", "Path", "Get it"];
  return grid(titles, [...trial.checkpoints].reverse().map((one) => [
    number(one.steps), moment(one.time), (one.state ?? "COMPLETED").toLowerCase().replaceAll("_", " "), bytes(one.size ?? 0),
    cut(Object.entries(one.metrics ?? {}).map(([name, value]) => `${name} ${number(toNumber(value))}`).join(", ")),
    one.path && one.state !== "DELETED" ? el("span", {}, copier(one.path), " ", el("span", { class: "path", title: one.path.slice(0, 2000) }, one.path.slice(0, 1000))) : "–",
    // Only what is an id is offered as part of a command.
    one.state !== "DELETED" && /^[\w-]+$/.test(one.uuid) ? command(`detslurm checkpoint download ${one.uuid}`) : "–",
  ]));
}

function command(line) {
  return el("span", { class: "command" }, copier(line), " ", el("code", {}, line));
}

function copier(line) {
  const copy = button("Copy", async () => {
    copy.textContent = (await copied(line)) ? "Copied" : "Not copied";
    setTimeout(() => (copy.textContent = "Copy"), 1500);
  }, { class: "small no-print" });
  return copy;
}

// Browsers give the clipboard to some pages only; the older way works in the others.
async function copied(line) {
  try {
    await navigator.clipboard.writeText(line);
    return true;
  } catch {
    const field = el("textarea");
    field.value = line;
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    return done;
  }
}

function figures(trial) {
  const one = trial.efficiency;
  const known = (value, show = number) => (value == null ? null : show(value));
  const of = (value, whole, show) => (value == null ? null : whole == null ? show(value) : `${show(value)} of ${show(whole)}`);
  const wasted = known(one.slot_hours_wasted, (value) => `, ${number(value)} of them wasted`) ?? "";
  const rows = [
    ["GPUs busy", known(one.gpu_percent, (value) => `${number(value)} % on average`)],
    ["GPUs, a tenth of the time below", known(one.gpu_percent_p10, (value) => `${number(value)} %`)],
    ["GPU memory, most of one", known(one.gpu_memory_peak, bytes)],
    ["CPUs busy", of(one.cpus_used, one.cpus_requested, number)],
    ["Memory on a node, most", of(one.memory_peak, one.memory_requested, bytes)],
    ["Nodes", known(one.nodes)], ["Slots", known(one.slots)],
    ["Slot-hours", known(one.slot_hours, (value) => number(value) + wasted)],
    ["Energy", known(one.energy, energy)],
    ["Batches trained in vain", known(one.steps_lost)],
    ...effective(one.training_time),
  ];
  return rows.some(([, value]) => value != null) && [el("h2", {}, "Use of its slots"), facts(rows)];
}

const LOST = {
  queue: "queue", start_slurm: "Slurm's start", start_detslurm: "detslurm's start", start_code: "the code's start",
  save: "saves", repeated: "training done again", restart: "restarts", idle: "idle",
};

// The part of a trial's time that was training, and the causes of the rest.
function effective(time) {
  if (time?.ettr == null) return [];
  const parts = time.parts ?? {};
  const lost = Object.keys(LOST).filter((name) => parts[name] >= 0.5).sort((a, b) => parts[b] - parts[a]);
  const best = time.checkpoint;
  return [
    ["Effective training", `${percent(time.ettr)} of ${span(time.since_start)}`],
    ["Lost time", lost.map((name) => `${LOST[name]} ${span(parts[name])}`).join(", ") || null],
    ["Validation", parts.validation ? span(parts.validation) : null],
    ["Best interval of saves", best && `${span(best.seconds)}, for about ${percent(time.ettr_best)} (now ${span(best.current)})`],
  ];
}

function folded(name, title, content) {
  return el("details", { "data-part": name }, el("summary", {}, title), content);
}

function code(files) {
  const entries = Object.entries(files);
  return el("div", {}, el("p", { class: "note" }, counted(entries.length, "file")),
    entries.map(([path, source]) => folded(`code ${path}`, path.slice(0, 300), el("pre", {}, source))));
}
