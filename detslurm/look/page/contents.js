// The table of contents at the side: the parts that are shown.
import { el } from "./dom.js";

export function contentsView(page) {
  const element = el("nav", { class: "contents no-print", "aria-label": "On this page" });
  const go = (part) => (event) => { event.preventDefault(); part.scrollIntoView(); };
  const title = (part) => part.querySelector("h2")?.textContent ?? part.getAttribute("aria-label");
  let shown = [];
  return {
    element,
    draw() {
      const parts = [...page.querySelectorAll("section")].filter((part) => title(part) && !part.closest("[hidden]"));
      if (parts.length === shown.length && parts.every((part, place) => part === shown[place])) return;
      shown = parts;
      element.replaceChildren(...parts.map((part) => el("a", { href: "#", onclick: go(part) }, title(part))));
    },
  };
}
