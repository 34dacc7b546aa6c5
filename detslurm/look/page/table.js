// The table of trials or experiments: sorted, filtered, with the columns that the reader chooses.
import { experimentColumns, trialColumns } from "./columns.js";
import { badge, button, el, nothing, refill, tick } from "./dom.js";
import { csv, download } from "./export.js";
import { matcher, shownTrials } from "./filter.js";
import { trialLink } from "./failures.js";
import { compare, counted } from "./format.js";
import { change, ranked, select, state } from "./state.js";

const CHUNK = 150; // rows that are made at once; more as the reader scrolls

export function tableView() {
  const view = { kind: "trials", sort: null, chosen: new Map(), rows: [], made: 0 };
  const head = el("thead");
  const body = el("tbody");
  const frame = el("div", { class: "scroll tall", tabindex: "0", onscroll: () => nearEnd(frame) && addRows(view, body) },
    el("table", { class: "rows" }, head, body));
  const bar = el("div", { class: "bar" });
  const element = el("section", { id: "table" }, el("h2", {}, "Trials"), bar, frame);

  function redraw() {
    view.columns = view.kind === "trials" ? trialColumns() : experimentColumns();
    view.shown = view.columns.filter((column) => view.chosen.get(column.key) ?? column.shown);
    view.rows = sortedRows(view);
    refill(bar, controls(view, redraw));
    const [across, down, made] = [frame.scrollLeft, frame.scrollTop, view.made];
    head.replaceChildren(header(view, redraw));
    body.replaceChildren();
    view.made = 0;
    addRows(view, body, down ? Math.max(CHUNK, made) : CHUNK);
    frame.scrollTo(across, down);
  }
  return { element, draw: redraw, all: () => addRows(view, body, Infinity) };
}

function nearEnd(frame) {
  return frame.scrollTop + frame.clientHeight > frame.scrollHeight - 600;
}

function sortedRows(view) {
  const rows = view.kind === "trials" ? bestFirst(shownTrials()) : state.experiments.filter(matcher(state.filter, view.columns));
  const column = view.columns.find((one) => one.key === view.sort?.key);
  if (!column) return rows;
  const keyed = rows.map((row) => [column.get(row), row]);
  return keyed.sort(([one], [other]) => compare(one, other, view.sort.descending)).map(([, row]) => row);
}

// As they are sorted before the reader chooses a column: by result, then those without one.
function bestFirst(trials) {
  const best = ranked(trials);
  const known = new Set(best);
  return [...best, ...trials.filter((trial) => !known.has(trial))];
}

function controls(view, redraw) {
  const all = view.kind === "trials" ? state.trials : state.experiments;
  const what = view.kind === "trials" ? "trial" : "experiment";
  const count = view.rows.length === all.length ? counted(all.length, what) : `${view.rows.length.toLocaleString("en-US")} of ${counted(all.length, what)}`;
  return [
    state.experiments.length > 1 && kinds(view, redraw),
    el("span", { class: "count", role: "status" }, count),
    columnChooser(view, redraw),
    button("CSV", () => download(`${view.kind}.csv`, "text/csv", csv(view.shown, view.rows)), { title: "Save these rows and columns as CSV", class: "small" }),
    view.kind === "trials" && state.selected.size > 0 && button(`Clear ${counted(state.selected.size, "selected trial")}`, () => change({ selected: new Set(), only: false }), { class: "small" }),
    view.kind === "trials" && all.length > 1 && state.selected.size < 2 && el("span", { class: "note" }, "Tick trials to compare them."),
    view.kind === "trials" && state.selected.size > 1 && button("Compare them", () => document.getElementById("compare").scrollIntoView(), { class: "small" }),
  ].filter(Boolean);
}

function kinds(view, redraw) {
  const choose = (kind) => () => { Object.assign(view, { kind, sort: null }); redraw(); };
  return el("span", { class: "tabs" }, ["trials", "experiments"].map((kind) =>
    button(kind === "trials" ? "Trials" : "Experiments", choose(kind), { "aria-pressed": String(view.kind === kind) })));
}

function columnChooser(view, redraw) {
  const choose = (column) => (on) => { view.chosen.set(column.key, on); view.choosing = true; redraw(); };
  const ticks = view.columns.map((column) =>
    tick(column.title.slice(0, 60), view.shown.includes(column), choose(column), column.hint));
  const chooser = el("details", { class: "chooser", open: view.choosing, ontoggle: () => (view.choosing = chooser.open) },
    el("summary", {}, "Columns"), el("div", { class: "ticks" }, ticks));
  return chooser;
}

function header(view, redraw) {
  const cells = view.shown.map((column) => {
    const sorted = view.sort?.key === column.key;
    const order = sorted ? (view.sort.descending ? "descending" : "ascending") : "none";
    const sign = sorted ? (view.sort.descending ? " ↓" : " ↑") : "";
    const sortBy = () => { view.sort = { key: column.key, descending: sorted && !view.sort.descending }; redraw(); refocus(view, column); };
    return el("th", { scope: "col", "aria-sort": order, class: column.right && "right" },
      button(column.title + sign, sortBy, { title: column.hint || column.title, "data-column": column.key }));
  });
  view.head = el("tr", {}, view.kind === "trials" && el("th", { scope: "col", "aria-label": "Compare" }), cells);
  return view.head;
}

function refocus(view, column) {
  [...view.head.querySelectorAll("button")].find((one) => one.dataset.column === column.key)?.focus();
}

function addRows(view, body, count = CHUNK) {
  if (!view.rows.length && !body.firstChild) {
    const none = state.filter ? "Nothing matches the filter: press Esc in its field to clear it." : "There are no trials yet.";
    body.append(el("tr", {}, el("td", { colspan: view.shown.length + 1 }, nothing(none))));
  }
  const next = view.rows.slice(view.made, view.made + count);
  view.made += next.length;
  body.append(...next.map((row) => line(view, row)));
}

function line(view, row) {
  const cells = view.shown.map((column) => cell(view, column, row));
  if (view.kind !== "trials") return el("tr", {}, cells);
  const box = el("input", { type: "checkbox", "aria-label": `Compare trial ${row.id}`, onchange: () => select(row, box.checked) });
  box.checked = state.selected.has(row.id);
  return el("tr", { "data-trial": row.id }, el("td", {}, box), cells);
}

function cell(view, column, row) {
  const shown = column.show(column.get(row));
  const attributes = { class: column.right && "right", title: shown.length > 20 && shown.slice(0, 1000) };
  if (column.key === "state") return el("td", attributes, badge(shown));
  if (column.key === "trial") return el("td", attributes, trialLink(row, shown));
  return el("td", attributes, shown.slice(0, 300));
}
