// Views are drawn when they come near the window: those without plots first, at once.
import { plotlyLoaded } from "./unpacking.js";

const FIRST = 3; // views that are surely in the window
const FOCUSABLE = "a[href], button, input, select, summary, [tabindex]";

// Do something that makes elements anew; what had the focus has it afterwards.
export function keepingFocus(act) {
  const focused = document.activeElement;
  const holder = focused?.closest("section, header");
  const name = holder && nameOf(focused);
  act();
  if (!name || focused.isConnected) return;
  [...holder.querySelectorAll(FOCUSABLE)].find((one) => nameOf(one) === name)?.focus({ preventScroll: true });
}

// The same of parts that fold: each stays open or closed, as its reader left it.
export function keepingFolds(element, act) {
  const folds = () => [...element.querySelectorAll("details[data-part]")];
  const before = new Map(folds().map((one) => [one.dataset.part, one.open]));
  act();
  folds().forEach((one) => { one.open = before.get(one.dataset.part) ?? one.open; });
}

// The same, and what can be scrolled in it stays where it was; who was at an end sees the new one.
export function keepingPlaces(element, act) {
  const boxes = () => [...element.querySelectorAll("pre, .scroll")];
  const before = boxes().map((one) => [one.scrollTop, one.scrollLeft, one.scrollTop > 0 && one.scrollTop + one.clientHeight >= one.scrollHeight - 1]);
  keepingFolds(element, act);
  boxes().forEach((one, place) => {
    const [top, left, atEnd] = before[place] ?? [0, 0];
    one.scrollTo(left, atEnd ? one.scrollHeight : top);
  });
}

function nameOf(element) {
  const label = element.ariaLabel ?? element.dataset.column ?? element.closest("label")?.textContent ?? element.textContent;
  return `${element.tagName} ${label}`;
}

// `dirty()` lets all views draw again when they are near; `everything()` draws all of them now. A view
// that has to unpack its points first returns a promise.
export function lazily(views) {
  const [near, waiting] = [new Set(views.slice(0, FIRST)), new Set()];
  let plotting = false;
  const draw = (view) => {
    waiting.delete(view);
    const drawn = () => view.element.classList.add("drawn");
    const later = view.draw();
    if (later) later.then(drawn);
    else drawn();
  };
  const drawNear = () => [...waiting].filter((one) => near.has(one) && !one.element.hidden && (plotting || !one.plots)).forEach(draw);
  const watch = new IntersectionObserver((seen) => {
    for (const { target, isIntersecting } of seen) {
      const view = views.find((one) => one.element === target);
      if (isIntersecting) near.add(view);
      else near.delete(view);
    }
    drawNear();
  }, { rootMargin: "400px" });
  views.forEach((view) => watch.observe(view.element));
  plotlyLoaded().then(() => { plotting = true; drawNear(); });
  return {
    dirty() {
      views.forEach((view) => {
        waiting.add(view);
        view.element.hidden = view.has != null && !view.has();
      });
      drawNear();
    },
    everything() {
      views.filter((view) => !view.element.hidden && (plotting || !view.plots)).forEach((view) => { draw(view); view.all?.(); });
    },
  };
}
