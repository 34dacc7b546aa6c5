// Small plots beside each other, one for each title that its lines have.
import { axesOf } from "./curve_looks.js";
import { drawnCurve, events, heights } from "./curve_points.js";
import { button, el } from "./dom.js";
import { discardPlots, draw, lineStyle, palette, plain, saveButtons } from "./plots.js";
import { curveOf } from "./state.js";
import { nodesOf } from "./trials.js";
import { plotlyLoaded, unpack } from "./unpacking.js";

const FIRST = 12; // more on request

// Training and validation of a metric of a trial over each other.
export function metricPlots(trial, looks) {
  const lines = [...trial.curves].map(([name, { group, metric }]) =>
    ({ title: metric, name: group, block: name, drawn: (known) => drawnCurve(curveOf(trial, name, known), trial, looks) }));
  return { lines, file: `trial-${trial.id}-metrics`, axes: axesOf(looks), shapes: () => (looks.marks && looks.along === "steps" ? marks(trial) : []) };
}

const FIGURES = {
  gpu_util: { title: "GPU busy (%)", top: 100 },
  gpu_free_memory: { title: "GPU memory free (GiB)", size: 2 ** 30 },
  cpu_util_simple: { title: "CPU busy (%)", top: 100 },
  memory_free: { title: "Memory free (GB)" },
};

// A figure of all nodes and devices over each other, along time: its steps are seconds.
export function profilePlots(trial) {
  const nodes = nodesOf(trial);
  const block = `profile ${trial.id}`;
  const lines = trial.profile.map(({ group, metric }, place) => {
    const [figure] = metric.match(/[^.]*$/);
    const { title = `${group}: ${figure}`, size = 1 } = FIGURES[figure] ?? {};
    const node = nodes.find((one) => metric.startsWith(`${one}.`)) ?? "";
    const device = metric.slice(node && node.length + 1, -figure.length - 1);
    return { title, name: [nodes.length > 1 && node, device.slice(0, 12)].filter(Boolean).join(" ") || node || group, block, drawn: (known) => {
      const curve = known.get(place);
      return { x: curve.steps.map((seconds) => seconds / 60), y: heights(curve, false).map((value) => value && value / size) };
    } };
  });
  const order = [...Object.values(FIGURES).map((one) => one.title), ...lines.map((line) => line.title)];
  lines.sort((one, other) => order.indexOf(one.title) - order.indexOf(other.title));
  return { lines, first: Object.keys(FIGURES).length, file: `trial-${trial.id}-profile`, axes: { xaxis: { title: { text: "minutes", standoff: 4 } }, yaxis: { rangemode: "tozero" } }, shapes: () => [] };
}

// Small plots of what `plotsOf` gives: {element, draw}. News draw into the plots that there are, so
// that what was zoomed stays so; `draw` returns whether there is any. `choose` gets a title on a click.
export function plotGrid(plotsOf, choose) {
  const holder = el("div", { class: "plots" });
  const found = new Map();
  let [all, given] = [false, null];
  const more = button("", () => { all = true; redraw(given); });
  function redraw(trial) {
    given = trial;
    const { lines, first = FIRST, ...look } = plotsOf(trial);
    const titles = [...new Set(lines.map((line) => line.title))];
    [...found.keys()].filter((title) => !titles.includes(title)).forEach((title) => { // it began anew
      discardPlots(found.get(title).element);
      found.get(title).element.remove();
      found.delete(title);
    });
    const shown = titles.filter((title, place) => all || place < first || found.has(title));
    shown.forEach((title, place) => {
      if (!found.has(title)) found.set(title, onePlot(title, look.file, choose));
      const one = found.get(title);
      if (holder.children[place] !== one.element) holder.insertBefore(one.element, holder.children[place] ?? null);
      one.draw(lines.filter((line) => line.title === title), look);
    });
    more.textContent = `Show ${titles.length - shown.length} more plots`;
    more.hidden = titles.length <= shown.length;
    return titles.length > 0;
  }
  return { element: el("div", {}, holder, more), draw: redraw };
}

let turns = Promise.resolve();

// Wait until the page has nothing else to do. Callers get their turns one by one, so that clicks
// and keys come between. A short rest means that a frame is due.
function quiet() {
  const idle = globalThis.requestIdleCallback ?? ((act) => setTimeout(act, 50, { didTimeout: true })); // Safari has none
  const wait = (done) => idle((rest) => (rest.didTimeout || rest.timeRemaining() > 20 ? done() : wait(done)), { timeout: 1000 });
  turns = turns.then(() => new Promise(wait));
  return turns;
}

function onePlot(title, file, choose) {
  const plot = el("div", { class: "plot", role: "img", "aria-label": title.slice(0, 200) });
  const name = `${file}-${title.replace(/[^\w.-]+/g, "-").slice(0, 60)}`;
  const shown = el("bdi", {}, title.slice(0, 60));
  const caption = choose ? button(shown, () => choose(title), { class: "link", title: "Show this metric in all views" }) : shown;
  const element = el("figure", {}, el("figcaption", { title: title.slice(0, 1000) }, caption, el("span", { class: "save" }, saveButtons(plot, name))), plot);
  let [asked, drawn] = [0, 0];
  return {
    element,
    async draw(lines, look) {
      const turn = ++asked;
      if (look.later) await quiet(); // unpacking is work, too
      if (look.later && turn < asked) return;
      const [, ...known] = await Promise.all([plotlyLoaded(), ...lines.map((line) => unpack(line.block))]);
      if (look.later) await quiet();
      if (turn < (look.later ? asked : drawn) || !plot.isConnected) return; // newer points were unpacked sooner
      drawn = turn;
      draw(plot, lines.map((line, place) => trace(line, line.drawn(known[place]), place)), layoutOf(lines, look));
    },
  };
}

function trace(line, { x, y }, place) {
  return { x, y, name: plain(line.name), type: "scatter", mode: x.length > 1 ? "lines" : "markers", opacity: line.faded ? 0.25 : 1,
    line: { ...lineStyle(line.place ?? place), width: 1.6 }, hovertemplate: "%{y:.6~g} at %{x:.6~g}" };
}

const EVENT_DASH = { resumed: "dot", failed: "solid" };

function marks(trial) {
  return events(trial).map((one) => ({ type: "line", x0: one.steps, x1: one.steps, yref: "paper", y0: 0, y1: 1,
    line: { width: 1, dash: EVENT_DASH[one.kind] ?? "dash", color: palette()[one.kind === "failed" ? 1 : 4] } }));
}

function layoutOf(lines, { axes, shapes, legend = lines.length > 1 }) {
  return { height: 230, margin: { l: 50, r: 10, t: 8, b: 36 }, showlegend: legend, legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 }, shapes: shapes(),
    uirevision: `${axes.xaxis.type} ${axes.yaxis.type} ${axes.xaxis.title.text}`, // news keep what was zoomed
    xaxis: { nticks: 6, ...axes.xaxis }, yaxis: { nticks: 5, ...axes.yaxis } };
}
