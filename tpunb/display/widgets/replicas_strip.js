// The mean of every replica side by side, to make outliers visible.

import { element, numberText } from "./common.js";
import { oddPlaces, replicaAt, statisticsAt } from "./replicas_data.js";
import { paintMeans } from "./replicas_drawing.js";
import { statisticsLines } from "./replicas_texts.js";

const STRIP_HEIGHT = 46;
const STRIP_LEFT = 62;
const STRIP_EDGE = 6;

/** Return whether the means show more than the panels do. */
export function hasStrip({ section, mode, view, slices }) {
  const told = view === "numbers" && section.block.kind === "values" && section.count <= 16;
  const reduces = mode === "mean" || mode === "sum";
  return Boolean(section.columns.mean) && section.count >= 3 && !section.equal && !told && !reduces && !slices.length;
}

/** The strip: `node`, and `paint(chosen, theme)`; the listeners are as in ReplicasView. */
export class MeanStrip {
  constructor(section, { tell, quiet, repaint, onSelect }) {
    this.section = section;
    this.tell = tell;
    this.repaint = repaint;
    this.onSelect = onSelect;
    this.means = [...section.columns.mean];
    this.odd = oddPlaces(this.means);
    this.cursor = -1;
    const known = this.means.filter(Number.isFinite);
    this.limits = [Math.min(...known), Math.max(...known)];
    const leave = () => {
      this.cursor = -1;
      quiet();
      repaint();
    };
    this.canvas = element("canvas", {
      tabindex: 0, role: "img", "data-key": "strip", "data-odd": [...this.odd].join(","),
      "aria-label": `mean of each of ${section.count} replicas; arrow keys tell them`,
      pointermove: (event) => this.moveTo(this.placeAt(event), event), pointerleave: leave, blur: leave,
      click: (event) => onSelect(this.placeAt(event), event.ctrlKey || event.metaKey || event.shiftKey),
      keydown: (event) => this.press(event),
    });
    const [low, high] = this.limits.map((limit) => (known.length ? numberText(limit) : ""));
    const ends = element("span", { class: "tpunb-replicas-ends" }, element("span", {}, high),
      element("strong", {}, "mean"), element("span", {}, low));
    const last = section.count - 1;
    const axis = element("div", { class: "tpunb-replicas-axis", "aria-hidden": "true" },
      ...[0, last].map((place) => element("span", {}, `replica ${replicaAt(section, place)}`)));
    this.node = element("div", { class: "tpunb-replicas-strip" }, ends, this.canvas, axis);
  }

  placeAt({ clientX }) {
    const { left, width } = this.canvas.getBoundingClientRect();
    return this.within(Math.floor(((clientX - left - STRIP_EDGE) / (width - 2 * STRIP_EDGE)) * this.means.length));
  }

  within(place) {
    return Math.min(this.means.length - 1, Math.max(0, place));
  }

  moveTo(place, at) {
    this.cursor = place;
    this.tell(this.text(place), at);
    this.repaint();
  }

  text(place) {
    const { section } = this;
    const statistics = statisticsLines(statisticsAt(section.columns, place), { integral: section.block.integral });
    const odd = this.odd.has(place) ? ["far from the others"] : [];
    return [`replica ${replicaAt(section, place)}`, ...statistics, ...odd].join("\n");
  }

  press(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[event.key];
    if (step) {
      const place = this.within(this.cursor + step);
      const { left, width, bottom } = this.canvas.getBoundingClientRect();
      const share = (place + 0.5) / this.means.length;
      this.moveTo(place, { clientX: left + STRIP_EDGE + share * (width - 2 * STRIP_EDGE), clientY: bottom });
    } else if ((event.key === "Enter" || event.key === " ") && this.cursor >= 0) {
      this.onSelect(this.cursor, event.shiftKey);
    } else return;
    event.preventDefault();
  }

  paint(chosen, theme) {
    const width = this.node.clientWidth - STRIP_LEFT;
    if (width <= 0) return;
    const { limits, odd, cursor } = this;
    paintMeans(this.canvas, this.means, { width, height: STRIP_HEIGHT, limits, odd, chosen, cursor, theme });
  }
}
