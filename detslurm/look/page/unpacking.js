// What the page holds compressed: the points of curves, each metric by itself, and plotly.

let packed = null; // by name, base64 of deflate; null while the rest of the page is still on its way
let unpacked = new Map();
let asked = new Map(); // by name, a promise: each is unpacked once, however many plots want it

// All of the page has come.
const parsed = new Promise((done) => {
  if (document.readyState !== "loading") done();
  else document.addEventListener("DOMContentLoaded", done);
});

async function inflated(text) {
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let place = 0; place < letters.length; place++) bytes[place] = letters.charCodeAt(place);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Response(stream).text();
}

// Take the points of a document in; without any those that stand in the page.
export function takePacked(blocks) {
  packed = blocks ?? null;
  unpacked = new Map();
  asked = new Map();
}

// The points by trial, or by place in a profile; undefined before they are unpacked.
export function points(name) {
  return unpacked.get(name);
}

// Unpack a metric, such as "validation/loss", or "profile 7": the points of the document that was
// there when it was asked for.
export function unpack(name) {
  if (!asked.has(name)) asked.set(name, unpackInto(unpacked, name));
  return asked.get(name);
}

async function unpackInto(known, name) {
  const rows = await rowsOf(name);
  known.set(name, new Map(rows.map(([key, steps, values, times, means]) =>
    [key, { ...series(steps, values, times), means: means && series(...means) }])));
  return known.get(name);
}

// The rows of a block, such as "artifacts 7", as the page holds them.
export async function rowsOf(name) {
  await parsed;
  packed ??= JSON.parse(document.getElementById("packed").textContent);
  return packed[name] ? JSON.parse(await inflated(packed[name])) : [];
}

function series(steps, values, times) {
  return { steps: sums(steps), values, times: sums(times).map((time) => (time == null ? null : time / 10)) };
}

function sums(differences) {
  let sum = 0;
  return differences.map((one) => (one == null ? null : (sum += one)));
}

let charts = null;

// Plotly, which runs once the table was painted: nothing of it is needed for that.
export function plotlyLoaded() {
  charts ??= painted().then(async () => {
    await parsed;
    const code = document.createElement("script");
    code.textContent = await inflated(document.getElementById("plotly").textContent);
    document.head.append(code);
  });
  return charts;
}

// Windows that nobody sees are not painted.
function painted() {
  return new Promise((done) => {
    requestAnimationFrame(() => setTimeout(done));
    setTimeout(done, 500);
  });
}
