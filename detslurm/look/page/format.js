// How numbers, times and sizes are written; what is not known is a dash.

const DASH = "–";

// A number as the document has it: "inf" and "-inf" are infinite, null is not a number.
export function toNumber(value) {
  if (typeof value === "number") return value;
  return value === "inf" ? Infinity : value === "-inf" ? -Infinity : NaN;
}

export function number(value) {
  if (value == null || Number.isNaN(value)) return DASH;
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "-∞";
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return value.toLocaleString("en-US");
  return written(value, 5);
}

// With at most so many digits, as a person would write it: 1,234.5 and 3e-5.
export function written(value, digits) {
  const [rounded, size] = [Number(value.toPrecision(digits)), Math.abs(value)];
  if (value && (size < 1e-4 || size >= 1e7)) return rounded.toExponential().replace("e+", "e");
  return size < 1000 ? String(rounded) : rounded.toLocaleString("en-US", { maximumSignificantDigits: digits });
}

// Any value of a hyperparameter or a figure as one line.
export function text(value) {
  if (value === undefined) return DASH;
  if (typeof value === "number") return number(value);
  return typeof value === "string" ? value : JSON.stringify(value);
}

// The same without rounding, to be copied.
export function exact(value) {
  return typeof value === "number" ? String(value) : text(value);
}

export function percent(part) {
  return part == null ? DASH : `${Math.round(100 * part)} %`;
}

// The energy of a trial, with its CO2 where the site has a factor.
export function energy(one) {
  if (one == null) return DASH;
  const small = (value, unit, thousandth) => (value < 0.1 ? `${number(1000 * value)} ${thousandth}` : `${number(value)} ${unit}`);
  const co2 = one.co2_kg == null ? "" : ` (${small(one.co2_kg, "kg", "g")} CO2)`;
  return `${one.at_least ? "at least " : ""}${small(one.kwh, "kWh", "Wh")}${co2}`;
}

// A span of seconds by its two largest units.
export function span(seconds) {
  if (seconds == null || !Number.isFinite(seconds)) return DASH;
  const sizes = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  let rest = Math.max(0, Math.round(seconds));
  const parts = [];
  for (const [unit, size] of sizes) {
    const count = Math.floor(rest / size);
    rest -= count * size;
    if (count || parts.length) parts.push(count ? `${count} ${unit}` : "");
  }
  return parts.slice(0, 2).filter(Boolean).join(" ") || "0 s";
}

// A moment in the reader's time zone.
export function moment(seconds) {
  if (seconds == null) return DASH;
  const date = new Date(seconds * 1000);
  const two = (part) => String(part).padStart(2, "0");
  const day = [date.getFullYear(), two(date.getMonth() + 1), two(date.getDate())].join("-");
  return `${day} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

export function bytes(count) {
  if (count == null || !Number.isFinite(count)) return DASH;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = Math.min(Math.floor(Math.log2(Math.max(count, 1)) / 10), units.length - 1);
  return `${Number((count / 1024 ** power).toPrecision(3))} ${units[power]}`;
}

export function counted(count, what) {
  return `${count.toLocaleString("en-US")} ${what}${count === 1 ? "" : "s"}`;
}

// Numbers by size, then texts by letter; what is missing comes last in either direction.
export function compare(one, other, descending) {
  const [oneMissing, otherMissing] = [isMissing(one), isMissing(other)];
  if (oneMissing || otherMissing) return oneMissing - otherMissing;
  const sign = descending ? -1 : 1;
  if (typeof one === "number" && typeof other === "number") return sign * (one - other || 0);
  if (typeof one === "number") return -sign;
  if (typeof other === "number") return sign;
  return sign * text(one).localeCompare(text(other), undefined, { numeric: true });
}

export function isMissing(value) {
  return value == null || Number.isNaN(value);
}
