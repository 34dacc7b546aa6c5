// What leaves the page as a file: tables as CSV, plots as SVG or PNG.
import { isMissing } from "./format.js";

// A spreadsheet takes a text that begins so for a formula.
const FORMULA = /^[=+\-@\t\r\n]/;
const INTEGER = /^-?\d+$/; // one that is too long for a number of JavaScript is a text

// CSV of columns and rows; numbers with all their digits.
export function csv(columns, rows) {
  const lines = [columns.map((column) => field(column.title))];
  for (const row of rows) lines.push(columns.map((column) => field(column.get(row))));
  return lines.map((line) => line.join(",")).join("\r\n") + "\r\n";
}

function field(value) {
  if (isMissing(value)) return "";
  if (typeof value === "number") return String(value);
  const text = typeof value === "string" ? value : JSON.stringify(value);
  const safe = FORMULA.test(text.trimStart() || text) && !INTEGER.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

export function download(name, type, content) {
  save(name, URL.createObjectURL(new Blob([content], { type })));
}

function save(name, address) {
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  if (address.startsWith("blob:")) setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

// Save a plot as a picture, in the colours that it has on the screen.
export async function savePlot(plot, name, format) {
  const { width, height } = plot.getBoundingClientRect();
  const options = { format, width, height, scale: format === "png" ? 2 : 1 };
  save(`${name}.${format}`, await Plotly.toImage(plot, options));
}
