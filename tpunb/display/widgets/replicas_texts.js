// Texts about panels: on panels, at the pointer, for screen readers.

import { groups, numberText } from "./common.js";
import { matrixOf } from "./replicas_data.js";

export function statisticsLines(statistics, panel) {
  if (!statistics) return [];
  return [statisticsParts(statistics, panel).join("  "), oddText(statistics)].filter(Boolean);
}

export function statisticsParts({ min, mean, max, std = NaN }, { integral = false, boolean = false, shape, data }) {
  if (Number.isNaN(mean)) return [];
  if (boolean) {
    const count = shape?.every((side) => side !== null) ? shape.reduce((size, side) => size * side, 1) : data.length;
    return [`${groups(Math.round(mean * count))} of ${groups(count)} True`];
  }
  const spread = Number.isNaN(std) ? [] : [`std ${numberText(std)}`];
  return [`min ${numberText(min, integral)}`, `mean ${numberText(mean)}`, `max ${numberText(max, integral)}`, ...spread];
}

export function oddText(statistics) {
  const parts = [["nans", "NaN"], ["infs", "Inf"]].filter(([name]) => statistics?.[name]);
  return parts.map(([name, text]) => `${groups(statistics[name])} ${text}`).join(", ");
}

export function differenceText({ statistics, integral }) {
  if (Number.isNaN(statistics.mean)) return "";
  const most = Math.max(Math.abs(statistics.min), Math.abs(statistics.max));
  return most === 0 && !statistics.nans && !statistics.infs ? "equal" : `max |Δ| ${numberText(most, integral)}`;
}

export function factsText(panel) {
  return statisticsLines(panel.statistics, panel).join(", ");
}

export function rangeText([low, high], column, count) {
  const at = (share) => numberText(low + (high - low) * share);
  return `${at(column / count)} to ${at((column + 1) / count)}`;
}

export function valueText(panel, row, column, view) {
  if (view === "curves") return elementText(panel.data[column], panel);
  const matrix = matrixOf(panel);
  if (row >= matrix.rows || column >= matrix.columns) return "–";
  if (panel.kind === "images" && view === "images") return pixelText(panel, matrix, row, column);
  return elementText(matrix.data[row * matrix.columns + column], panel);
}

/** Return an element as text; a single element has room for all digits of 32 bits. */
export function elementText(value, { integral, boolean = false }, alone = false) {
  if (boolean) return value ? "True" : "False";
  const size = Math.abs(value);
  if (alone && !integral && size >= 1e-4 && size < 1e7) return String(Number(value.toPrecision(7)));
  return numberText(value, integral);
}

/** Return the text of a pixel's channels. */
function pixelText(panel, { tiles }, row, column) {
  const [down, across] = [row % (tiles.height + tiles.gap), column % (tiles.width + tiles.gap)];
  const image = Math.floor(row / (tiles.height + tiles.gap)) * tiles.across + Math.floor(column / (tiles.width + tiles.gap));
  if (down >= tiles.height || across >= tiles.width || image >= tiles.count) return "–";
  const from = ((image * tiles.height + down) * tiles.width + across) * tiles.channels;
  return [...panel.data.subarray(from, from + tiles.channels)].map((value) => numberText(value, true)).join(" ");
}
