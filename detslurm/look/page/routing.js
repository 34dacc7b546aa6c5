// Which page is shown: all, or that of one trial. It stands behind the # of the address.
import { change, state } from "./state.js";

export function openTrial(id) {
  go(`#trial-${id}`);
}

export function closeTrial() {
  go("#");
}

// In a notebook's frame there is no address of its own: the page changes all the same.
function go(hash) {
  try {
    history.pushState(null, "", hash);
  } catch {
    // Only the way back by the browser's button is missing.
  }
  show(hash);
}

export function show(hash) {
  const id = Number(/^#trial-(\d+)$/.exec(hash)?.[1]);
  const known = state.trials.some((trial) => trial.id === id);
  change({ trial: known ? id : null });
  scrollTo(0, 0);
}

export function followAddress() {
  addEventListener("popstate", () => show(location.hash));
  if (location.hash.startsWith("#trial-")) show(location.hash);
}

// The same for a point of a plot, whose trial stands in its data.
export function openPoint(point) {
  openTrial(point.customdata);
}
