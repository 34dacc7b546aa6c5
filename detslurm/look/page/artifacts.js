// The images and tables of one trial: by name, with a slider along their steps.
import { el, grid } from "./dom.js";
import { number } from "./format.js";
import { rowsOf } from "./unpacking.js";

const chosen = new Map(); // by trial and name the step, for news to leave it

export function artifactsView(trial) {
  const block = rowsOf(`artifacts ${trial.id}`).then((rows) => new Map(rows));
  return el("div", { class: "artifacts" }, trial.artifacts.map((part) => figure(trial, part, block)));
}

function figure(trial, part, block) {
  const [key, last] = [`${trial.id} ${part.name}`, part.steps.length - 1];
  const known = part.steps.indexOf(chosen.get(key));
  const [label, content] = [el("output"), el("div", { class: "scroll" })];
  const slider = el("input", { type: "range", min: 0, max: last, value: known < 0 ? last : known, "aria-label": `step of ${part.name}` });
  async function show(place) {
    label.textContent = `batch ${number(part.steps[place])}`;
    const data = (await block).get(part.name)?.[place];
    if (data && Number(slider.value) === place) content.replaceChildren(drawing(part, place, data));
  }
  slider.addEventListener("input", () => {
    const place = Number(slider.value);
    chosen.set(key, place === last ? null : part.steps[place]); // the last one goes on with news
    show(place);
  });
  show(Number(slider.value));
  return el("figure", { class: "artifact" }, el("figcaption", {}, el("bdi", {}, part.name), " ", label), last > 0 && slider, content);
}

// An SVG is an image, too: in one no script runs, and nothing else is loaded.
function drawing(part, place, data) {
  const media = part.media[place];
  if (media === "json") return drawings[part.kinds[place]]?.(parsed(data)) ?? el("pre", {}, JSON.stringify(parsed(data)));
  const type = { png: "image/png", jpeg: "image/jpeg", svg: "image/svg+xml" }[media];
  const sharp = ({ target }) => target.classList.toggle("pixels", target.naturalWidth < 128);
  return el("img", { onload: sharp, src: `data:${type};base64,${data}`, alt: `${part.name} at batch ${part.steps[place]}` });
}

function parsed(data) {
  return JSON.parse(new TextDecoder().decode(Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0))));
}

function shown(value) {
  return typeof value === "number" ? number(value) : typeof value === "string" ? value : JSON.stringify(value);
}

const drawings = {
  table: ({ columns, rows }) => grid(columns, rows.map((row) => row.map(shown))),
  histogram({ counts, edges }) {
    const most = Math.max(...counts, 1);
    const bars = counts.map((count, place) => el("i", { style: `height: ${(100 * count) / most}%`, title: `${count} from ${number(edges[place])} to ${number(edges[place + 1])}` }));
    return el("div", { class: "histogram" }, el("div", { class: "bars" }, bars), el("div", { class: "ends" }, el("span", {}, number(edges[0])), el("span", {}, number(edges.at(-1)))));
  },
  confusion_matrix({ labels, counts }) {
    const cells = counts.map((row, place) => {
      const sum = Math.max(row.reduce((all, count) => all + count, 0), 1e-9);
      return [el("b", {}, labels[place]), ...row.map((count) => el("span", { class: "share", style: `--share: ${Math.round((60 * count) / sum)}%` }, number(count)))];
    });
    return grid(["true, then predicted", ...labels], cells);
  },
};
