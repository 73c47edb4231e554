// The replicas' values: the page of replicas_page.py, with the element that is pointed at.

import { keep, listen, oncePerFrame, tipOf } from "./common.js";
import { makeSortable } from "./sorting.js";
import { viewOf } from "./views.js";

const ARROWS = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1], Home: [0, -Infinity], End: [0, Infinity] };

const { initialize, render } = viewOf("replicas", "What each replica holds", (root) => {
  root.querySelectorAll("table:not([role=grid])").forEach(makeSortable);
});

/** Point at elements, and show what the kernel tells about them. Return what ends it. */
function follow(root, model) {
  const tip = tipOf(root);
  let place = {};
  const ask = oncePerFrame(() => keep(model, "pointed", place));
  const point = (next) => {
    place = next;
    ask();
  };
  root.addEventListener("pointermove", ({ target, clientX, clientY }) => {
    const picture = target.closest("[data-panel]");
    if (!picture) return place.panel === undefined || point({});
    const { left, top, width, height } = picture.firstElementChild.getBoundingClientRect();
    return point({ panel: Number(picture.dataset.panel), at: [(clientX - left) / width, (clientY - top) / height] });
  });
  root.addEventListener("pointerleave", () => point({}));
  root.addEventListener("focusout", () => point({}));
  root.addEventListener("keydown", (event) => {
    const step = ARROWS[event.key];
    const part = event.target.closest("[data-part]");
    const picture = part?.closest("[data-panel]") ?? part?.querySelector("[data-panel]");
    if (!event.shiftKey || !step || !picture) return;
    const cell = model.get("told").cell?.map((at, axis) => Math.min(1e9, Math.max(0, at + step[axis])));
    point({ panel: Number(picture.dataset.panel), cell: cell ?? [0, 0] });
    event.preventDefault();
    event.stopPropagation();
  }, true);
  const tell = () => {
    const { text, box = [] } = model.get("told");
    root.toggleAttribute("data-pointed", Boolean(text));
    ["left", "top", "width", "height"].forEach((name, at) => root.style.setProperty(`--tpunb-${name}`, `${100 * box[at]}%`));
    const picture = root.querySelector(`[data-panel="${place.panel}"]`)?.firstElementChild;
    if (!text || !picture) return tip.hide();
    const { left, top, width, height } = picture.getBoundingClientRect();
    const middle = left + width * (box[0] + box[2] / 2);
    return tip.tell(text, { left: middle, right: middle, top: top + height * (box[1] + box[3] / 2) + 16 });
  };
  const stop = listen(model, ["change:told"], tell);
  return () => {
    stop();
    ask.cancel();
  };
}

export default {
  initialize,
  render({ model, el }) {
    const stop = render({ model, el });
    const end = follow(el.lastElementChild, model);
    return () => {
      stop();
      end();
    };
  },
};
