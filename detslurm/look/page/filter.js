// The filter that all views share: words that a row has somewhere, and comparisons such as lr<0.1.
import { compare, text } from "./format.js";
import { remembered, state } from "./state.js";
import { trialColumns } from "./columns.js";

const COMPARISON = /^(.+?)(<=|>=|!=|=|<|>)(.+)$/;
const SIGNS = {
  "<": (order) => order < 0, ">": (order) => order > 0, "<=": (order) => order <= 0,
  ">=": (order) => order >= 0, "=": (order) => order === 0, "!=": (order) => order !== 0,
};

// A test of rows for what was typed.
export function matcher(typed, columns) {
  const tests = typed.trim().split(/\s+/).filter(Boolean).map((word) => testOf(word, columns));
  return (row) => tests.every((test) => test(row));
}

function testOf(word, columns) {
  const [, name, sign, wanted] = COMPARISON.exec(word) ?? [];
  const column = name && columnOf(name, columns);
  if (column) return (row) => isSo(column.get(row), sign, wanted);
  const lower = word.toLowerCase();
  return (row) => columns.some((one) => one.show(one.get(row)).toLowerCase().includes(lower));
}

// By its whole name, or by the last part of it: `lr` finds `optimizer.lr`.
function columnOf(name, columns) {
  const lower = name.toLowerCase();
  const titled = (one) => one.title.toLowerCase();
  return columns.find((one) => titled(one) === lower || one.key.toLowerCase() === lower)
    ?? columns.find((one) => titled(one).split(/[./]/).at(-1) === lower);
}

function isSo(value, sign, wanted) {
  if (value == null) return sign === "!=";
  if (typeof value !== "number") {
    const order = text(value).toLowerCase().localeCompare(wanted.toLowerCase(), undefined, { numeric: /^\d+$/.test(value) });
    return SIGNS[sign](order);
  }
  if (Number.isNaN(Number(wanted))) return sign === "!=";
  return !Number.isNaN(value) && SIGNS[sign](compare(value, Number(wanted), false));
}

// The trials that the filter lets through.
export const shownTrials = remembered(() => {
  const trials = state.only ? state.trials.filter((trial) => state.selected.has(trial.id)) : state.trials;
  return state.filter.trim() ? trials.filter(matcher(state.filter, trialColumns())) : trials;
});
