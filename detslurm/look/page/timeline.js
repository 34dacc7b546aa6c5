// When runs waited and ran: a row for each trial, or for each node.
import { choice, el } from "./dom.js";
import { shownTrials } from "./filter.js";
import { counted, moment, span } from "./format.js";
import { hatched, palette, plain, plotBox } from "./plots.js";
import { state } from "./state.js";
import { ending } from "./outcomes.js";
import { openPoint } from "./routing.js";
import { trialName } from "./trials.js";

const MOST = 120; // rows

const KINDS = {
  waiting: { color: null, pattern: "/" },
  running: { color: 5, pattern: "" },
  completed: { color: 2, pattern: "" },
  "left to the search": { color: 0, pattern: "" },
  preempted: { color: 4, pattern: "\\" },
  "time limit": { color: 4, pattern: "-" },
  paused: { color: 3, pattern: "|" },
  failed: { color: 1, pattern: "x" },
  "job lost": { color: 1, pattern: "/" },
  "hyperparameters refused": { color: 1, pattern: "." },
  canceled: { color: 6, pattern: "/" },
  "ended by Slurm": { color: 3, pattern: "+" },
  "ended otherwise": { color: 3, pattern: "." },
};

export function timelineView() {
  const chosen = { by: "trial" };
  const box = plotBox("timeline", "When runs waited and ran");
  const draw = () => drawTimeline(chosen, box);
  const bar = el("div", { class: "bar" }, choice("A row for each", [["trial", "trial"], ["node", "node"]], chosen.by, (by) => { chosen.by = by; draw(); }));
  const element = el("section", { id: "timeline" }, el("h2", {}, "Timeline of runs"), bar, box.element);
  return { element, plots: true, draw, has: () => state.trials.some((trial) => trial.runs.length > 0) };
}

function drawTimeline(chosen, box) {
  const { rows, spans } = chosen.by === "trial" ? byTrial() : byNode();
  if (!spans.length) return box.clear("Nothing has been queued or has run yet.");
  const shown = spans.filter((one) => one.row < MOST);
  const traces = Object.keys(KINDS).map((kind) => trace(kind, shown.filter((one) => one.kind === kind))).filter(Boolean);
  const count = Math.min(rows.length, MOST);
  box.draw(traces, {
    height: 110 + 20 * Math.max(count, 4), barmode: "overlay", legend: { orientation: "h", y: 0, yanchor: "top" }, margin: { l: 80, r: 20, t: 50, b: 50 },
    xaxis: { type: "date", side: "top" }, yaxis: { range: [count - 0.4, -0.6], tickvals: rows.slice(0, MOST).map((_, place) => place), ticktext: rows.slice(0, MOST).map(plain) },
  }, openPoint);
  box.say(rows.length > MOST ? `The first ${MOST} of ${counted(rows.length, "row")}: the filter chooses others.` : "");
}

function byTrial() {
  const trials = shownTrials().filter((trial) => trial.runs.length);
  return { rows: trials.map(trialName), spans: trials.flatMap((trial, row) => trial.runs.flatMap((run) => spansOf(trial, run, row))) };
}

// Runs that share a node at one time lie in rows of their own.
function byNode() {
  const runs = shownTrials().flatMap((trial) => trial.runs.filter((run) => run.started != null).map((run) => ({ trial, run })));
  runs.sort((one, other) => one.run.started - other.run.started);
  const nodes = [...new Set(runs.flatMap(({ run }) => run.nodes))].sort((one, other) => one.localeCompare(other, undefined, { numeric: true }));
  const [rows, spans] = [[], []];
  for (const node of nodes) {
    const first = rows.length;
    const lanes = []; // when each of them is free again
    for (const { trial, run } of runs.filter((one) => one.run.nodes.includes(node))) {
      const free = lanes.findIndex((until) => until <= run.started);
      const lane = free < 0 ? lanes.length : free;
      lanes[lane] = run.ended ?? state.taken;
      spans.push(running(trial, run, first + lane));
    }
    lanes.forEach((_, lane) => rows.push(lane ? `${node} (${lane + 1})` : node));
  }
  return { rows, spans };
}

function spansOf(trial, run, row) {
  const waited = run.queued == null ? [] : [{ trial, run, row, kind: "waiting", begin: run.queued, end: run.started ?? run.ended ?? state.taken }];
  return run.started == null ? waited : [...waited, running(trial, run, row)];
}

function running(trial, run, row) {
  return { trial, run, row, kind: ending(run), begin: run.started, end: run.ended ?? state.taken };
}

function trace(kind, spans) {
  if (!spans.length) return null;
  const { color, pattern } = KINDS[kind];
  return {
    type: "bar", orientation: "h", name: kind, width: 0.72, y: spans.map((one) => one.row), base: spans.map((one) => new Date(one.begin * 1000)),
    x: spans.map((one) => Math.max(0, one.end - one.begin) * 1000), customdata: spans.map((one) => one.trial.id),
    text: spans.map(described), textposition: "none", hovertemplate: "%{text}<extra></extra>",
    marker: { color: color == null ? "#a8b0ba" : palette()[color], pattern: hatched(pattern) },
  };
}

function described({ trial, run, kind, begin, end }) {
  const nodes = run.nodes.length ? ` on ${run.nodes.slice(0, 4).join(" ")}${run.nodes.length > 4 ? ` and ${run.nodes.length - 4} more` : ""}` : "";
  const parts = [`${trialName(trial)}, run ${run.number}: ${kind} ${span(end - begin)}${nodes}`, moment(begin), run.job && `job ${run.job}`, run.reason];
  return parts.filter(Boolean).map(plain).join("<br>");
}
