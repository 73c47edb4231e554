// Marks beside uPlot's lines: the axis of values, best values, NaN.

import { evenTicks, tickTexts } from "./common.js";

/** Return the axis of the values: wide enough for its labels, decades on a log scale. */
export function valueAxis(view, log, muted, font) {
  return {
    stroke: muted, font, gap: 6, space: 34,
    size: (_, labels) => 14 + 6.6 * Math.max(3, ...(labels ?? []).map((label) => label.length)),
    splits: log ? (u, axis, low, high) => logTicks(low, high) : undefined,
    filter: (_, ticks) => ticks,
    values: (_, ticks) => tickTexts(ticks),
    grid: { stroke: () => gridOf(view.theme()), width: 1 },
    ticks: { show: false },
  };
}

function gridOf(theme) { return theme.dark ? "rgba(255,255,255,0.10)" : "rgba(31,35,40,0.09)"; }

/** Return ticks of a log scale: decades, with 2 and 5 between, or even steps within a decade. */
function logTicks(low, high) {
  const decades = Math.log10(high / low);
  if (!(decades > 0)) return [];
  if (decades < 1) return evenTicks(low, high);
  const between = decades < 2 ? [1, 2, 5] : decades < 3 ? [1, 3] : [1];
  const every = Math.max(1, Math.ceil(decades / 6));
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    if (power % every) continue;
    for (const digit of between) {
      const tick = digit * 10 ** power;
      if (tick >= low && tick <= high) ticks.push(tick);
    }
  }
  return ticks;
}

/** Mark single points, the best value of each line, and NaN or infinite values. */
export function paintMarks(u, state, view) {
  if (!state) return;
  const ratio = devicePixelRatio || 1;
  const labels = [];
  const context = u.ctx;
  context.save();
  context.save();
  context.beginPath();
  context.rect(u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height);
  context.clip();
  state.lines.forEach((line) => {
    if (line.hidden) return;
    context.strokeStyle = context.fillStyle = view.colourOf(line);
    paintBad(context, u, line.series, state, { x: (step) => u.valToPos(step, "x", true), ratio, labels });
  });
  context.restore();
  // uPlot leaves the dashes of its last line behind.
  context.setLineDash([]);
  state.lines.forEach((line, number) => {
    context.fillStyle = view.colourOf(line);
    if (!line.hidden) paintPoints(context, u, state.seen[2 * number], state.range, ratio);
  });
  state.lines.forEach((line) => paintBest(context, u, line, state, view, ratio));
  context.restore();
}

/** Paint a line's few values as points, for example a validation's values. */
function paintPoints(context, u, { x: steps, y: values }, [low, high], ratio) {
  if (steps.length > 40) return;
  steps.forEach((step, row) => {
    if (values[row] === null || step < low || step > high) return;
    context.beginPath();
    context.arc(u.valToPos(step, "x", true), u.valToPos(values[row], "y", true), 2.4 * ratio, 0, 2 * Math.PI);
    context.fill();
  });
}

/**
 * Paint a dashed line at the first NaN or infinite value, and ticks below all of them. The label
 * goes below other lines' labels that it would cover.
 */
function paintBad(context, u, series, state, { x, ratio, labels }) {
  const first = series.firstBad();
  if (first < 0) return;
  const { top, height } = u.bbox;
  const bottom = top + height;
  const [begin, end] = series.rowsOf(state.range);
  let last = -Infinity;
  context.globalAlpha = 0.55;
  for (let row = Math.max(begin, first); row < end; row += 1) {
    const at = Math.round(x(series.steps[row]));
    if (at === last || Number.isFinite(series.values[row])) continue;
    context.fillRect(at - ratio / 2, bottom - 3 * ratio, Math.max(1, ratio), 3 * ratio);
    last = at;
  }
  context.globalAlpha = 1;
  const at = x(series.steps[first]);
  context.lineWidth = ratio;
  context.setLineDash([3 * ratio, 3 * ratio]);
  context.beginPath();
  context.moveTo(at, top);
  context.lineTo(at, bottom);
  context.stroke();
  context.setLineDash([]);
  const text = Number.isNaN(series.values[first]) ? "NaN" : "Inf";
  context.font = `600 ${11 * ratio}px sans-serif`;
  const left = at + (at + 40 * ratio > u.bbox.left + u.bbox.width ? -32 : 5) * ratio;
  context.textAlign = "left";
  context.textBaseline = "top";
  const usedRows = labels.filter((label) => Math.abs(label.left - left) < 34 * ratio).map(({ row }) => row);
  let row = 0;
  while (usedRows.includes(row)) row += 1;
  labels.push({ left, row });
  context.fillText(text, left, top + (2 + 14 * row) * ratio);
}

function paintBest(context, u, line, state, view, ratio) {
  const row = line.hidden ? -1 : line.series.best();
  if (row < 0) return;
  const [step, value] = [line.series.steps[row], line.series.values[row]];
  const [low, high] = state.bounds;
  if (step < state.range[0] || step > state.range[1] || value < low || value > high) return;
  context.beginPath();
  context.arc(u.valToPos(step, "x", true), u.valToPos(value, "y", true), 4 * ratio, 0, 2 * Math.PI);
  context.fillStyle = view.theme().paper;
  context.strokeStyle = view.colourOf(line);
  context.lineWidth = 1.8 * ratio;
  context.fill();
  context.stroke();
}
