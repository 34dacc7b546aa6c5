// Views are drawn when they come near the window: the first ones are there at once.

// `dirty()` lets all views draw again when they are near; `everything()` draws all of them now.
export function lazily(views) {
  const [near, waiting] = [new Set(), new Set()];
  const drawNear = () => {
    for (const view of [...waiting].filter((one) => near.has(one))) {
      waiting.delete(view);
      view.draw();
    }
  };
  const watch = new IntersectionObserver((seen) => {
    for (const { target, isIntersecting } of seen) {
      const view = views.find((one) => one.element === target);
      if (isIntersecting) near.add(view);
      else near.delete(view);
    }
    drawNear();
  }, { rootMargin: "400px" });
  views.forEach((view) => watch.observe(view.element));
  return {
    dirty() {
      views.forEach((view) => waiting.add(view));
      drawNear();
    },
    everything() {
      waiting.clear();
      views.forEach((view) => { view.draw(); view.all?.(); });
    },
  };
}
