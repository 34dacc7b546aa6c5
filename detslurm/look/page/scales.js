// Where values of a hyperparameter lie on an axis from 0 to 1, and what is written beside it.
import { compare, number, text } from "./format.js";
import { state } from "./state.js";

// The axis of a name with these values, one of each trial.
export function axisOf(name, values) {
  const known = values.filter((value) => value !== undefined && !Number.isNaN(value));
  return known.every((value) => typeof value === "number") && known.length ? numeric(name, known) : categories(name, known);
}

function numeric(name, values) {
  const low = values.reduce((one, other) => Math.min(one, other));
  const high = values.reduce((one, other) => Math.max(one, other));
  const logarithmic = low > 0 && high > low && isLogarithmic(name, high / low);
  const turn = logarithmic ? Math.log10 : (value) => value;
  const width = turn(high) - turn(low);
  const back = (part) => (logarithmic ? 10 ** (turn(low) + part * width) : low + part * width);
  const place = (value) => (typeof value !== "number" || Number.isNaN(value) ? null : width ? (turn(value) - turn(low)) / width : 0.5);
  const distinct = [...new Set(values)];
  const parts = width ? [0, 0.25, 0.5, 0.75, 1] : [0.5];
  const power = (value) => Math.floor(Math.log10(value));
  const largest = Math.max(Math.abs(low), Math.abs(high));
  const digits = Math.min(Math.max(3, power(largest) - power((high - low) / 4) + 2), 17); // which tell the parts apart
  const labels = distinct.length <= 9 ? distinct.map((value) => [place(value), number(value)]) : parts.map((part) => [part, number(Number(back(part).toPrecision(digits)))]);
  return { name, logarithmic, numeric: true, place, labels };
}

// As the configuration says how it is drawn; where it does not, by how far its values go.
function isLogarithmic(name, ratio) {
  const types = state.experiments.map((one) => drawnAs(one.config.hyperparameters, name.split(".")));
  if (types.includes("log")) return true;
  return !types.some((type) => type === "double" || type === "int") && ratio >= 100;
}

function drawnAs(part, names) {
  const inner = names.reduce((one, name) => (one && typeof one === "object" && Object.hasOwn(one, name) ? one[name] : undefined), part);
  return inner?.type;
}

function categories(name, values) {
  const keys = [...new Map(values.map((value) => [JSON.stringify(value), value])).values()].sort((one, other) => compare(one, other));
  const places = new Map(keys.map((value, place) => [JSON.stringify(value), keys.length > 1 ? place / (keys.length - 1) : 0.5]));
  const labels = keys.length > 12 ? [] : keys.map((value) => [places.get(JSON.stringify(value)), text(value)]);
  return { name, logarithmic: false, numeric: false, place: (value) => places.get(JSON.stringify(value)) ?? null, labels };
}
