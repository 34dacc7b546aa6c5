// Elements out of plain data. Text only ever becomes a text node, so it is never markup.

// An element; attributes that are functions are listeners, those that are false are left out.
export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name.replace(/^on/, ""), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value != null) made.setAttribute(name, String(value));
  }
  made.append(...children.flat().filter((child) => child != null && child !== false).map(node));
  return made;
}

// Give an element these children. Those that it has already stay the same elements, so that news
// close no list that is open and take no slider out of a hand.
export function refill(element, children) {
  const before = [...element.childNodes];
  children.forEach((child, place) => {
    if (!before[place]) element.append(child);
    else if (!before[place].isEqualNode(child)) before[place].replaceWith(child);
  });
  before.slice(children.length).forEach((one) => one.remove());
}

function node(child) {
  return child instanceof Node ? child : document.createTextNode(String(child));
}

// A field to choose one of [value, text] pairs; `choose` gets the value.
export function choice(label, pairs, current, choose) {
  const options = pairs.map(([value, text]) =>
    el("option", { value, selected: String(value) === String(current) }, text),
  );
  const select = el("select", { onchange: () => choose(select.value) }, options);
  return el("label", { class: "field" }, el("span", {}, label), select);
}

// A box to tick.
export function tick(label, on, choose, hint) {
  const box = el("input", { type: "checkbox", checked: Boolean(on), onchange: () => choose(box.checked) });
  return el("label", { class: "tick", title: hint }, box, el("span", {}, label));
}

export function button(text, act, attributes = {}) {
  return el("button", { type: "button", onclick: act, ...attributes }, text);
}

// A state in a word, with a colour and a sign of its own.
export function badge(state) {
  const known = /^[A-Z_]+$/.test(state) ? state.toLowerCase() : "";
  return el("span", { class: `badge ${known}` }, state || "unknown");
}

// What a view says where it has nothing to show.
export function nothing(text) {
  return el("p", { class: "nothing" }, text);
}

// Rows of [name, value] as a list; values may be elements. What is not known is left out.
export function facts(pairs) {
  const known = pairs.filter(([, value]) => value != null && value !== "");
  return el("dl", { class: "facts" }, known.map(([name, value]) =>
    el("div", {}, el("dt", {}, name), el("dd", {}, value)),
  ));
}

// A plain table: titles, and rows of texts or elements.
export function grid(titles, rows) {
  return el("div", { class: "scroll" }, el("table", { class: "grid" },
    el("thead", {}, el("tr", {}, titles.map((title) => el("th", { scope: "col" }, title)))),
    el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell) => el("td", {}, cell))))),
  ));
}
