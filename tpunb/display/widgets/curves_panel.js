// One panel of curves: a heading that is its legend, and uPlot's canvas below. The global uPlot
// comes with vendor/uPlot.iife.min.js.

import { element, groups, numberText } from "./common.js";
import { alignedLines, seenLine, seenSpread, withinReach } from "./curves_store.js";
import { paintMarks, valueAxis } from "./curves_marks.js";

// A plot has the same height in any number of columns, so that nothing below moves.
const [PLOT, LEAST_PLOT] = [240, 200];

/** Return a placeholder for a panel without data; it is as high as the panel. */
export function panelToCome() {
  const line = element("div", { class: "tpunb-curves-legend" },
    element("span", { class: "tpunb-curves-item" }, element("b", {}, "\u00a0")));
  return element("article", { class: "tpunb-curves-panel", "aria-hidden": true },
    element("header", {}, element("h4", {}, "\u00a0")), line,
    element("div", { class: "tpunb-curves-plot", style: `height: ${PLOT}px` }));
}

/**
 * Return a panel of a view (see curves.js). The view gives it the lines to draw and their colours,
 * the range of steps, the settings and the theme, and receives its cursor and zoom events.
 */
export function curvePanel(view, title) {
  const legend = element("div", { class: "tpunb-curves-legend" });
  const where = element("span", { class: "tpunb-curves-where" });
  const plot = element("div", { class: "tpunb-curves-plot", tabindex: 0, role: "application",
    keydown: onKey, blur: () => view.setCursor(null) });
  const node = element("article", { class: "tpunb-curves-panel", "data-panel": title },
    element("header", {}, element("h4", {}, title), where), legend, plot);

  let chart = null;
  let state = null;
  let shape = "";
  let [width, height, fitted] = [0, PLOT, -1];
  const items = new Map();

  function lines() { return view.linesOf(title); }

  /** Draw the current rows. */
  function update() {
    const drawn = lines();
    writeLegend(drawn);
    if (!width) return;
    fit();
    state = stateOf(drawn);
    const wanted = JSON.stringify([state.log, drawn.map(({ key }) => key)]);
    if (!chart || wanted !== shape) build(drawn, wanted);
    const smooth = view.weight() > 0;
    const faint = view.theme().dark ? 0.42 : 0.3;
    drawn.forEach((_, number) => {
      const width = smooth || isRestless(state.seen[2 * number], state.bounds) ? 1 : 1.7;
      Object.assign(chart.series[2 * number + 1], { alpha: smooth ? faint : 1, width });
    });
    chart.setData(state.data, true);
    placeCursor();
  }

  /** Take the room for further lines of the legend from the plot, so that nothing below moves. */
  function fit() {
    if (items.size === fitted) return;
    fitted = items.size;
    const rows = new Set([...items.values()].map((item) => item.offsetTop)).size;
    const each = items.values().next().value?.offsetHeight ?? 0;
    const next = Math.max(LEAST_PLOT, PLOT - Math.max(0, rows - 1) * each);
    if (next === height) return;
    height = next;
    chart?.setSize({ width, height });
  }

  function stateOf(drawn) {
    const range = view.range();
    const log = view.isLog() && drawn.some(({ series, hidden }) => !hidden && hasPositive(series));
    const pixels = Math.max(50, width - 60);
    const weight = view.weight();
    const nothing = { x: [], y: [] };
    const seen = drawn.flatMap(({ series, hidden }) => [
      hidden ? nothing : seenLine(series, series.values, range, pixels, log),
      hidden || !weight ? nothing : seenLine(series, series.smoothed(weight), range, pixels, log),
    ]);
    const spreads = drawn.map(({ series, hidden }) =>
      (!hidden && view.spread() && series.lows ? seenSpread(series, range, pixels) : null));
    const bounds = boundsOf(seen, spreads, range, log);
    const edges = spreads.flatMap((band) => (band ? [band.low.map((low) => (log && low <= 0 ? bounds[0] : low)), band.high]
      .map((y) => ({ x: band.x, y })) : [nothing, nothing]));
    return { lines: drawn, range, log, seen, bounds, data: alignedLines([...seen, ...edges]) };
  }

  function build(drawn, wanted) {
    chart?.destroy();
    shape = wanted;
    const muted = () => view.theme().muted;
    const font = `11px ${view.theme().font}`;
    const series = drawn.flatMap((line) => {
      const common = { stroke: () => view.colourOf(line), points: { show: false },
        dash: line.dashed ? [6, 4] : undefined };
      return [{ ...common, width: 1.7 }, { ...common, width: 2 }];
    });
    const edges = drawn.map((_, number) => 2 * (drawn.length + number) + 1);
    chart = new uPlot({
      width, height, series: [{}, ...series, ...edges.flatMap(() => [{ points: { show: false } }, { points: { show: false } }])],
      bands: edges.map((low, number) => ({ series: [low + 1, low],
        fill: () => view.colourOf(drawn[number]) + (view.theme().dark ? "47" : "2e") })), legend: { show: false }, pxAlign: 0,
      // Half of the last step's label is beside the plot.
      padding: [8, () => Math.max(10, 4 + 3.4 * stepText(Math.floor(state.range[1])).length), 0, 0],
      scales: {
        x: { time: false, range: () => state.range },
        y: { distr: state.log ? 3 : 1, log: 10, range: () => state.bounds },
      },
      axes: [
        { stroke: muted, font, size: 22, gap: 4, space: 64, incrs: STEP_TICKS,
          label: "step", labelFont: font, labelSize: 15, labelGap: -2,
          values: (_, ticks) => ticks.map(stepText), grid: { show: false },
          ticks: { show: false }, border: { show: true, width: 1, stroke: () => view.theme().line } },
        valueAxis(view, state.log, muted, font),
      ],
      cursor: {
        y: false,
        drag: { x: true, y: false, setScale: false, dist: 4 },
        points: { size: 7, width: 1.5, fill: () => view.theme().paper,
          stroke: (_, number) => view.colourOf(drawn[((number - 1) >> 1) % drawn.length]) },
        dataIdx: (_, number, closest) => shownIndex(number, closest),
        bind: { dblclick: () => () => view.setZoom(null) },
      },
      hooks: {
        setSelect: [onSelect],
        setCursor: [onCursor],
        draw: [(u) => paintMarks(u, state, view)],
      },
    }, state.data, plot);
  }

  /** Return a line's nearest point; of a smoothed line, only the average has points. */
  function shownIndex(number, closest) {
    // The steps are the first series.
    if (number === 0) return closest;
    if (number > 2 * state.lines.length) return null; // an edge of a spread
    const raw = number % 2 === 1;
    if (raw === view.weight() > 0) return null;
    const column = state.data[number];
    if (state.lines[(number - 1) >> 1].series.nearest(state.data[0][closest]) < 0) return null;
    for (let away = 0; away < column.length; away += 1) {
      if (column[closest - away] !== undefined) return closest - away;
      if (column[closest + away] !== undefined) return closest + away;
    }
    return null;
  }

  function onSelect(u) {
    const { left, width: across } = u.select;
    if (across < 4) return;
    const zoom = [u.posToVal(left, "x"), u.posToVal(left + across, "x")];
    u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    view.setZoom(zoom);
  }

  let placing = false;
  function onCursor(u) {
    if (placing || !state) return;
    const { left } = u.cursor;
    view.setCursor(left < 0 || left === null ? null : u.posToVal(left, "x"), node);
  }

  /** Put the cursor at the view's position, without notifying the view. */
  function placeCursor() {
    if (!chart) return;
    const step = view.cursor();
    placing = true;
    const [low, high] = view.range();
    const inside = step !== null && step >= low && step <= high;
    const left = inside ? chart.valToPos(step, "x") : -10;
    chart.setCursor({ left, top: inside ? 10 : -10 }, false);
    placing = false;
    writeLegend(lines());
  }

  function writeLegend(drawn) {
    const step = view.cursor();
    where.textContent = step === null ? "" : `step ${groups(Math.round(step))}`;
    for (const [key, item] of items) {
      if (!drawn.some((line) => line.key === key)) {
        item.remove();
        items.delete(key);
      }
    }
    const longest = Math.max(0, ...drawn.map(({ label }) => label.length));
    legend.style.setProperty("--tpunb-curves-name", `${(0.56 * Math.min(longest, 30)).toFixed(1)}em`);
    for (const line of drawn) {
      if (!items.has(line.key)) addItem(line);
      items.get(line.key).write(line, step);
    }
    const told = drawn.filter(({ hidden }) => !hidden).map((line) =>
      `${line.label} ${numberText(valueAt(line, step))}`);
    plot.setAttribute("aria-label",
      `${title}: ${told.join(", ")}. Arrow keys move the cursor, plus and minus zoom.`);
  }

  function addItem(line) {
    const item = legendItem(view, line);
    items.set(line.key, item);
    legend.append(item);
  }

  function onKey(event) {
    const reach = view.range();
    const pace = Math.max(1, Math.round((reach[1] - reach[0]) / (event.shiftKey ? 20 : 200)));
    const at = view.cursor() ?? reach[1];
    const moves = { ArrowLeft: at - pace, ArrowRight: at + pace, Home: reach[0], End: reach[1] };
    if (event.key in moves) {
      const step = Math.min(reach[1], Math.max(reach[0], Math.round(moves[event.key])));
      view.setCursor(step);
      view.say(sentence(step));
    } else if (event.key === "+" || event.key === "=") view.zoomBy(0.5, at);
    else if (event.key === "-") view.zoomBy(2, at);
    else if (event.key === "0" || event.key === "Escape") view.setZoom(null);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  function sentence(step) {
    const values = lines().filter(({ hidden }) => !hidden)
      .map((line) => `${line.label} ${numberText(valueAt(line, step))}`);
    return `${title}, step ${step}: ${values.join(", ")}`;
  }

  return {
    node, update, placeCursor, writeCursor: () => writeLegend(lines()),
    resize(next) {
      if (next === width) return;
      width = next;
      fitted = -1;
      chart?.setSize({ width, height });
    },
    destroy() { chart?.destroy(); },
  };
}

/** Return a line of the legend: a button that shows and hides the line, with its values. */
function legendItem(view, line) {
  const swatch = element("i", { class: line.dashed ? "tpunb-curves-dash" : "" });
  const name = element("span", { class: "tpunb-curves-name" });
  const value = element("b", {});
  const best = element("small", {});
  const item = element("button", { type: "button", class: "tpunb-curves-item",
    click: () => view.toggleLine(line) }, swatch, name, value, best);
  item.write = (now, step) => {
    const { series } = now;
    const colour = view.colourOf(now);
    if (swatch.style.color !== colour) swatch.style.color = colour;
    setText(name, now.label);
    setText(value, numberText(valueAt(now, step)));
    const [row, bad] = [series.best(), series.firstBad()];
    const text = bad >= 0 ? `${Number.isNaN(series.values[bad]) ? "NaN" : "Inf"} at ${groups(series.steps[bad])}`
      : row >= 0 ? `best ${numberText(series.values[row])} at ${groups(series.steps[row])}` : "";
    setText(best, text);
    best.className = bad >= 0 ? "tpunb-curves-bad" : "";
    item.setAttribute("aria-pressed", String(!now.hidden));
    item.title = `${series.metric}${text ? ` · ${text}` : ""} (click to ${now.hidden ? "show" : "hide"})`;
  };
  return item;
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Return a line's value at a step, or its last value. */
function valueAt({ series }, step) {
  const row = step === null ? series.length - 1 : series.nearest(step);
  return row < 0 ? null : series.values[row];
}

/** Return whether a line is so noisy that a wide stroke would be a blot, and slow to paint. */
function isRestless({ y }, [low, high]) {
  let way = 0;
  for (let row = 1; row < y.length; row += 1) way += Math.abs((y[row] ?? 0) - (y[row - 1] ?? 0));
  return way > 40 * (high - low);
}

function hasPositive(series) {
  return series.once("positive", () => {
    for (let row = 0; row < series.length; row += 1) if (series.values[row] > 0) return true;
    return false;
  });
}

/** Return the minimum and maximum of the visible values, with a margin. */
function boundsOf(seen, spreads, [from, to], log) {
  let [low, high] = [Infinity, -Infinity];
  const take = (number) => {
    const value = number === null ? null : withinReach(number, log);
    if (value === null) return;
    if (value < low) low = value;
    if (value > high) high = value;
  };
  for (const { x, y } of seen) {
    y.forEach((value, row) => { if (x[row] >= from && x[row] <= to) take(value); });
    // A line is visible between two points that are out of sight.
    if (low > high) y.forEach(take);
  }
  for (const band of spreads) {
    if (!band) continue;
    band.x.forEach((step, row) => {
      if (step < from || step > to) return;
      take(band.low[row]);
      take(band.high[row]);
    });
  }
  if (low > high) return log ? [0.1, 1] : [0, 1];
  if (log) return low === high ? [low / 2, high * 2] : [low / (high / low) ** 0.06, high * (high / low) ** 0.06];
  const room = low === high ? Math.abs(low) * 0.1 || 1 : (high - low) * 0.06;
  return [low - room, high + room];
}

const STEP_TICKS = [];
for (let unit = 1; unit < 1e15; unit *= 10) STEP_TICKS.push(unit, 2 * unit, 5 * unit);

/** Return a step as text on the axis: 1,500 or 20k. */
function stepText(step) {
  for (const [unit, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(step) >= Math.max(unit, 1e4)) return `${Number((step / unit).toPrecision(6))}${letter}`;
  }
  return groups(step);
}
