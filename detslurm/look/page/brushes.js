// Brushing on upright axes with the mouse: a span of an axis is kept, a click takes it away.

// Call `changed(axis, span)` with a span of 0..1, or null, whenever one is drawn on an axis of `plot`.
export function brushing(plot, margins, axes, changed) {
  let begun = null;
  const spot = (event) => {
    const { left, top, width, height } = plot.getBoundingClientRect();
    const across = (event.clientX - left - margins.l) / (width - margins.l - margins.r);
    const up = 1 - (event.clientY - top - margins.t) / (height - margins.t - margins.b);
    return { axis: Math.round(across * (axes() - 1)), up: Math.min(1.03, Math.max(-0.03, up)), y: event.clientY };
  };
  plot.addEventListener("pointerdown", (event) => {
    const at = spot(event);
    if (event.button === 0 && at.axis >= 0 && at.axis < axes()) begun = at;
  }, true);
  addEventListener("pointermove", (event) => {
    if (begun && Math.abs(event.clientY - begun.y) > 4) changed(begun.axis, between(begun, spot(event)));
  });
  addEventListener("pointerup", (event) => {
    if (begun && Math.abs(event.clientY - begun.y) <= 4) changed(begun.axis, null);
    begun = null;
  });
}

function between(one, other) {
  return [Math.min(one.up, other.up), Math.max(one.up, other.up)];
}
