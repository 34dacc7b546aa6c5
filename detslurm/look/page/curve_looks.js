// How curves are drawn, as the reader chooses it above them.
import { ALONG } from "./curve_points.js";
import { choice, el, tick } from "./dom.js";

export function firstLooks() {
  return { along: "steps", logX: false, logY: false, weight: 0, marks: true };
}

// A bar that changes the looks and draws again.
export function looksBar(looks, draw, ...first) {
  const set = (name) => (value) => { looks[name] = value; draw(); };
  return el("div", { class: "bar" }, first,
    choice("Along", ALONG, looks.along, set("along")),
    slider(looks, draw),
    tick("log x", looks.logX, set("logX")),
    tick("log y", looks.logY, set("logY")),
    tick("marks", looks.marks, set("marks"), "resumes, preemptions, time limits, pauses and failures on the curves"));
}

function slider(looks, draw) {
  const shown = el("output", {}, looks.weight || "off");
  const input = el("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: looks.weight, oninput: () => {
    looks.weight = Number(input.value);
    shown.textContent = looks.weight || "off";
    draw();
  } });
  return el("label", { class: "field", title: "weight of an exponential moving average" }, el("span", {}, "Smoothing"), input, shown);
}

// The axes of curves that are drawn so.
export function axesOf(looks) {
  const title = ALONG.find(([name]) => name === looks.along)[1];
  return { xaxis: { title: { text: title, standoff: 4 }, type: looks.along === "date" ? "date" : looks.logX ? "log" : "linear" },
    yaxis: { type: looks.logY ? "log" : "linear" } };
}
