// Where values of a hyperparameter lie on an axis from 0 to 1, and what is written beside it.
import { compare, text, written } from "./format.js";
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
  const place = (value) => (typeof value !== "number" || Number.isNaN(value) ? null : width ? (turn(value) - turn(low)) / width : 0.5);
  const distinct = [...new Set(values)];
  const short = distinct.length <= 9 && distinct.every((value) => String(value).length <= 6);
  const round = width ? roundNumbers(low, high, 5, logarithmic).filter((value) => value >= low && value <= high) : [low];
  const ticks = short || round.length < 2 ? distinct.slice(0, 9) : round;
  return { name, logarithmic, numeric: true, place, low, high, ticks, labels: ticks.map((value) => [place(value), written(value, 12)]) };
}

const STEPS = [[1, 2, 3, 5, 7], [1, 2, 5], [1, 3], [1]]; // of a decade

// Numbers that a person would write from about `low` to about `high`, in at most `most` steps.
export function roundNumbers(low, high, most, logarithmic) {
  const powers = logarithmic && [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  const decades = powers ? Array.from({ length: powers[1] - powers[0] + 1 }, (_, place) => 10 ** (powers[0] + place)) : [];
  const around = (numbers) => {
    const [first, last] = [numbers.findLastIndex((value) => value <= low * (1 + 1e-9)), numbers.findIndex((value) => value >= high * (1 - 1e-9))];
    return numbers.slice(first, last + 1);
  };
  const tried = STEPS.map((steps) => around(decades.flatMap((decade) => steps.map((step) => Number((step * decade).toPrecision(6))))));
  const found = tried.find((numbers) => numbers.length - 1 <= most && numbers.length > 3);
  if (found) return found;
  if (decades.length > most) return around(decades.filter((_, place) => place % Math.ceil((decades.length - 1) / most) === 0 || place === decades.length - 1));
  const raw = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find((one) => one * power >= raw * (1 - 1e-9));
  const first = Math.floor(low / step + 1e-6);
  return Array.from({ length: Math.ceil(high / step - 1e-6) - first + 1 }, (_, place) => Number(((first + place) * step).toPrecision(12)));
}

// As the configuration says how it is drawn; where it does not, by how far its values go.
function isLogarithmic(name, ratio) {
  const types = state.experiments.map((one) => drawnAs(one.config.hyperparameters, name.split(".")));
  if (types.includes("log")) return true;
  return !types.some((type) => type === "double" || type === "int") && ratio >= 100;
}

function drawnAs(part, names) {
  if (!part || typeof part !== "object") return undefined;
  if (part.type === "choice") return (part.vals ?? []).map((val) => drawnAs(val, names)).find(Boolean);
  if (!names.length) return part.type;
  return Object.hasOwn(part, names[0]) ? drawnAs(part[names[0]], names.slice(1)) : undefined;
}

function categories(name, values) {
  const keys = [...new Map(values.map((value) => [JSON.stringify(value), value])).values()].sort((one, other) => compare(one, other));
  const places = new Map(keys.map((value, place) => [JSON.stringify(value), keys.length > 1 ? place / (keys.length - 1) : 0.5]));
  const labels = keys.length > 12 ? [] : keys.map((value) => [places.get(JSON.stringify(value)), text(value)]);
  return { name, logarithmic: false, numeric: false, place: (value) => places.get(JSON.stringify(value)) ?? null, labels };
}
