// Plotly with our looks: colours that colour-blind people tell apart, and nothing of its own menu.
import { button, el } from "./dom.js";
import { savePlot } from "./export.js";

const LIGHT = ["#0072b2", "#d55e00", "#009e73", "#b0468a", "#b87a00", "#3fa0d8", "#222222"];
const DARK = ["#56b4e9", "#f0915a", "#2bcb9a", "#e3a0c6", "#f0b83c", "#f0e442", "#f4f4f4"];
export const DASHES = ["solid", "dash", "dot", "dashdot", "longdash"];

export function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

export function palette() {
  return isDark() ? DARK : LIGHT;
}

// A colour and a dash for the n-th line: neighbours differ in colour, and seven later in the dash.
export function lineStyle(place) {
  const colors = palette();
  return { color: colors[place % colors.length], dash: DASHES[Math.floor(place / colors.length) % DASHES.length] };
}

// Stops from the worst result to the best: what is good stands out from the page.
function stops() {
  return isDark() ? ["#34465e", "#4f8fc0", "#fde68a"] : ["#cfdbe6", "#4f8fc0", "#08306b"];
}

export function colorscale() {
  return stops().map((color, place) => [place / 2, color]);
}

// The colour at a part of that scale.
export function shade(part) {
  const [low, middle, high] = stops().map((color) => [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16)));
  const [from, to, rest] = part < 0.5 ? [low, middle, 2 * part] : [middle, high, 2 * part - 1];
  return `rgb(${from.map((one, place) => Math.round(one + (to[place] - one) * rest)).join(",")})`;
}

// A pattern over a bar's colour: for those who see no difference in colours.
export function hatched(shape) {
  return { shape, fillmode: "overlay", fgcolor: css("--surface"), fgopacity: 0.7, size: 6 };
}

// A text as plotly shows it literally: it takes tags and entities for its own.
export function plain(text) {
  const short = String(text).length > 60 ? `${String(text).slice(0, 59)}…` : String(text);
  return short.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;")
    .replace(/[\u0000-\u001f\u007f\u2028\u2029]+/g, " ");
}

function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function axis(given = {}) {
  const look = { gridcolor: css("--line"), linecolor: css("--muted"), zerolinecolor: css("--line"), automargin: true };
  return { ...look, ...given };
}

// Whether an axis has numbers for which plotly would write a prefix, such as µ.
function isTiny(traces, name) {
  const [key, own] = [name[0], name.replace("axis", "")];
  const values = traces.filter((trace) => (trace[`${key}axis`] || key) === own).flatMap((trace) => [...(trace[key] ?? [])].slice(0, 1000));
  return values.some((value) => typeof value === "number" && value && Math.abs(value) < 1e-3);
}

// Draw traces into an element; axes of the layout get our looks.
export function draw(target, traces, layout = {}) {
  const format = (name) => (isTiny(traces, name) ? { exponentformat: "e" } : {}); // not 30µ
  const axes = Object.fromEntries(["xaxis", "yaxis", ...Object.keys(layout).filter((name) => /^[xy]axis\d+$/.test(name))]
    .map((name) => [name, axis({ ...format(name), ...layout[name] })]));
  const height = layout.height ?? 420;
  target.style.height = `${height}px`; // which plotly would forget when the window changes
  return Plotly.react(target, traces, {
    paper_bgcolor: css("--surface"), plot_bgcolor: css("--surface"), height, hovermode: "closest",
    font: { family: "system-ui, sans-serif", size: 12, color: css("--text") },
    margin: { l: 60, r: 20, t: 20, b: 50 }, dragmode: "zoom", ...layout, ...axes,
    legend: { font: { size: 11 }, tracegroupgap: 0, ...layout.legend },
    hoverlabel: { bgcolor: css("--surface"), bordercolor: css("--muted"), font: { color: css("--text") }, namelength: 60 },
  }, { displayModeBar: false, responsive: true, scrollZoom: false, showTips: false });
}

// Let go of the plots in an element: plotly keeps what it drew, to draw it again at each new width.
export function discardPlots(element) {
  element.querySelectorAll(".js-plotly-plot").forEach((plot) => Plotly.purge(plot));
}

export function saveButtons(plot, name) {
  return ["svg", "png"].map((format) =>
    button(format.toUpperCase(), () => savePlot(plot, name, format), { title: `Save this plot as ${format.toUpperCase()}`, class: "small" }));
}

// A plot with its buttons: {element, plot, note, say, clear}.
export function plotBox(name, label) {
  const plot = el("div", { class: "plot", role: "img", "aria-label": label });
  const note = el("p", { class: "note" });
  const buttons = el("div", { class: "save" }, saveButtons(plot, name));
  const element = el("div", { class: "plotbox" }, buttons, plot, note);
  return {
    element, plot,
    say: (text) => note.replaceChildren(text),
    clear(text) {
      Plotly.purge(plot);
      plot.style.height = "";
      plot.replaceChildren(el("p", { class: "nothing" }, text));
      buttons.hidden = true;
    },
    // `click` gets the point that was clicked.
    draw(traces, layout, click) {
      if (plot.querySelector(":scope > .nothing")) plot.replaceChildren();
      buttons.hidden = false;
      const drawn = draw(plot, traces, layout);
      plot.removeAllListeners("plotly_click");
      if (click) plot.on("plotly_click", ({ points }) => click(points[0]));
      return drawn;
    },
  };
}

// A point between two gaps is no line: it is shown as a marker.
export function modeOf(values) {
  const alone = values.some((value, place) => value != null && values[place - 1] == null && values[place + 1] == null);
  return alone ? "lines+markers" : "lines";
}
