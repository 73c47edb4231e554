// Pictures of panels on canvases: heat maps, images, histograms, curves, means.

import { element, evenTicks, numberText, sized } from "./common.js";
import { eachPixel, limitsOf, matrixOf, tiling } from "./replicas_data.js";

/** Return a colour scale between limits; it diverges around zero if both signs occur. */
export function colourScale(limits, { symmetric = false } = {}) {
  const [low, high] = limits;
  const signed = symmetric || (low < 0 && high > 0);
  const most = Math.max(-low, high);
  const [from, to] = signed ? [-most, most] : limits;
  const span = to / 2 - from / 2;
  return {
    from, to, table: signed ? DIVERGING : VIRIDIS,
    /** Return a value's place in the table. */
    place: (value) => (span > 0
      ? Math.max(0, Math.min(255, Math.round(((value / 2 - from / 2) / span) * 255))) : 128),
  };
}

/** Return the red, green and blue of a colour. */
function channelsOf(hex) {
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

/** Return a heat map as a canvas of one pixel per element. */
export function heatPicture(matrix, scale) {
  const [nan, infinite] = [channelsOf(NAN_COLOUR), channelsOf(INF_COLOUR)];
  return pictureOf(matrix, (pixels) => {
    matrix.data.forEach((value, at) => {
      const odd = Number.isNaN(value) ? nan : infinite;
      const place = scale.place(value) * 3;
      const colour = Number.isFinite(value) ? scale.table.slice(place, place + 3) : odd;
      const outside = matrix.tiles && Number.isNaN(value);
      pixels.set(colour, at * 4);
      pixels[at * 4 + 3] = outside ? 0 : 255;
    });
  });
}

/** Return images side by side as a canvas of their pixels. */
export function imagePicture(panel) {
  const tiles = tiling(panel);
  return pictureOf(tiles, (pixels) => {
    eachPixel(tiles, (at, from) => {
      for (let part = 0; part < 3; part += 1) {
        pixels[at * 4 + part] = panel.data[from + (tiles.channels >= 3 ? part : 0)];
      }
      pixels[at * 4 + 3] = tiles.channels === 4 ? panel.data[from + 3] : 255;
    });
  });
}

function pictureOf({ rows, columns }, fill) {
  const canvas = element("canvas", { width: Math.max(columns, 1), height: Math.max(rows, 1) });
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  fill(image.data);
  context.putImageData(image, 0, 0);
  return canvas;
}

/** Show a picture of pixels on a panel's canvas, with the cursor's cell. */
export function paintPicture(canvas, picture, { width, height, cursor, parts = 0, theme }) {
  const context = sized(canvas, width, height);
  context.imageSmoothingEnabled = picture.width > width * 1.5;
  context.drawImage(picture, 0, 0, width, height);
  context.strokeStyle = theme.paper;
  context.globalAlpha = 0.85;
  for (let part = 1; part < parts; part += 1) {
    const at = (height * part) / parts;
    strokeLine(context, [[0, at], [width, at]]);
  }
  context.globalAlpha = 1;
  if (cursor) markCell(context, picture, width, height, cursor);
}

function strokeLine(context, points) {
  context.beginPath();
  points.forEach(([x, y], at) => (at ? context.lineTo(x, y) : context.moveTo(x, y)));
  context.stroke();
}

/** Draw a box around a cell in two colours, so that it is visible on any colour. */
function markCell(context, picture, width, height, { row, column }) {
  const [across, down] = [width / picture.width, height / picture.height];
  const size = [Math.max(across, 5), Math.max(down, 5)];
  const left = (column + 0.5) * across - size[0] / 2;
  const top = (row + 0.5) * down - size[1] / 2;
  for (const [colour, grow] of [["#000000", 1.5], ["#ffffff", 0]]) {
    context.strokeStyle = colour;
    context.lineWidth = 1.5;
    context.strokeRect(left - grow, top - grow, size[0] + 2 * grow, size[1] + 2 * grow);
  }
}

/** Paint a histogram's bars, on the same axes in all panels. */
export function paintHistogram(canvas, counts, { width, height, most, cursor, theme }) {
  const context = sized(canvas, width, height);
  const base = height - 1;
  const bar = width / counts.length;
  counts.forEach((count, at) => {
    const tall = most ? (count / most) * (base - 4) : 0;
    context.fillStyle = cursor?.column === at ? PALETTE[1] : PALETTE[theme.dark ? 5 : 0];
    // A bin that is not empty is visible, however small its share.
    if (count) context.fillRect(at * bar, base - Math.max(tall, 1), Math.max(bar - 1, 1), Math.max(tall, 1));
  });
  context.fillStyle = theme.line;
  context.fillRect(0, base, width, 1);
}

export const CURVE_LEFT = 62;
const CURVE_EDGE = 22;

/** Return the colours of so many curves: distinct if they are few, else along a scale. */
export function curveColours(count, dark) {
  if (count <= PALETTE.length) return dark ? PALETTE.map(brighter).slice(0, count) : PALETTE.slice(0, count);
  return Array.from({ length: count }, (_, at) => {
    const share = dark ? 0.25 + (0.75 * at) / (count - 1) : (0.92 * at) / (count - 1);
    const place = Math.round(share * 255) * 3;
    return `rgb(${VIRIDIS.slice(place, place + 3).join(",")})`;
  });
}

/** Return a colour that stands out from a dark background. */
function brighter(hex) {
  return `rgb(${channelsOf(hex).map((part) => Math.round(part + (255 - part) * 0.38)).join(",")})`;
}

/** Paint the curves of all panels on one pair of axes. */
export function paintCurves(canvas, panels, { width, height, cursor, chosen, colours, last, theme }) {
  const context = sized(canvas, width, height);
  const [low, high] = limitsOf(panels.map((panel) => panel.statistics));
  const [inner, tall] = [width - CURVE_LEFT - 8, height - CURVE_EDGE - 8];
  const down = (value) => (high > low
    ? 8 + tall - ((value / 2 - low / 2) / (high / 2 - low / 2)) * tall : 8 + tall / 2);
  paintAxes(context, { low, high, inner, tall, down, last, theme });
  const drawn = panels.map((panel, at) => ({ panel, at, on: chosen.has(panel.place) }));
  for (const { panel, at, on } of [...drawn].sort((a, b) => a.on - b.on)) {
    context.strokeStyle = colours[at];
    context.globalAlpha = chosen.size && !on ? 0.3 : 1;
    context.lineWidth = on ? 2.4 : 1.4;
    strokeCurve(context, panel.data, (place) => CURVE_LEFT + (place / Math.max(panel.data.length - 1, 1)) * inner, down);
  }
  context.globalAlpha = 1;
  if (!cursor) return;
  const across = CURVE_LEFT + (cursor.column / Math.max(panels[0].data.length - 1, 1)) * inner;
  context.strokeStyle = theme.muted;
  context.lineWidth = 1;
  strokeLine(context, [[across, 8], [across, 8 + tall]]);
  for (const { panel, at } of drawn) {
    const value = panel.data[cursor.column];
    if (!Number.isFinite(value)) continue;
    context.fillStyle = colours[at];
    context.beginPath();
    context.arc(across, down(value), 3, 0, 7);
    context.fill();
  }
}

function paintAxes(context, { low, high, inner, tall, down, last, theme }) {
  context.font = `11px ${theme.font}`;
  context.fillStyle = theme.muted;
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (const value of evenTicks(low, high)) {
    const y = high > low ? Math.round(down(value)) + 0.5 : 8 + tall / 2;
    context.strokeStyle = theme.faint;
    context.lineWidth = 1;
    strokeLine(context, [[CURVE_LEFT, y], [CURVE_LEFT + inner, y]]);
    context.fillText(numberText(value), CURVE_LEFT - 8, y);
  }
  context.textBaseline = "top";
  const places = evenTicks(0, last).filter(Number.isInteger);
  for (const place of places) {
    const share = last ? place / last : 0;
    context.textAlign = share === 0 ? "left" : share > 0.97 ? "right" : "center";
    context.fillText(numberText(place, true), CURVE_LEFT + inner * share, tall + 14);
  }
}

/** Draw a line with gaps where elements are not finite. */
function strokeCurve(context, data, across, down) {
  let open = false;
  context.beginPath();
  data.forEach((value, at) => {
    if (!Number.isFinite(value)) {
      open = false;
      return;
    }
    const point = [across(at), down(value)];
    if (open) context.lineTo(...point);
    else {
      context.moveTo(...point);
      // A point between two gaps would be an invisible line of no length.
      context.lineTo(point[0] + 0.5, point[1]);
    }
    open = true;
  });
  context.stroke();
}

/** Paint the mean of every replica, with `chosen` means outlined and `odd` means coloured. */
export function paintMeans(canvas, means, { width, height, limits, odd, chosen, cursor, theme }) {
  const context = sized(canvas, width, height);
  const [low, high] = limits;
  const step = (width - 12) / means.length;
  const dot = Math.max(1.6, Math.min(4, step * 0.32));
  context.fillStyle = theme.faint;
  context.fillRect(0, Math.round(height / 2), width, 1);
  means.forEach((mean, at) => {
    const x = 6 + (at + 0.5) * step;
    const known = Number.isFinite(mean);
    const share = high > low ? (mean / 2 - low / 2) / (high / 2 - low / 2) : 0.5;
    const y = known ? height - 7 - share * (height - 14) : height / 2;
    context.fillStyle = !known ? NAN_COLOUR : odd.has(at) ? PALETTE[1] : theme.dark ? "#6fb3e0" : PALETTE[0];
    context.beginPath();
    context.arc(x, y, odd.has(at) ? dot + 1 : dot, 0, 7);
    context.fill();
    if (!chosen.has(at) && cursor !== at) return;
    context.strokeStyle = theme.ink;
    context.lineWidth = chosen.has(at) ? 1.8 : 1;
    context.beginPath();
    context.arc(x, y, dot + 3.5, 0, 7);
    context.stroke();
  });
}

/** Paint the scale's colours from left to right. */
export function paintScale(canvas, scale, width, height) {
  const context = sized(canvas, width, height);
  for (let at = 0; at < width; at += 1) {
    const place = Math.round((at / (width - 1)) * 255) * 3;
    context.fillStyle = `rgb(${scale.table.slice(place, place + 3).join(",")})`;
    context.fillRect(at, 0, 1, height);
  }
}

/** Return the place on a panel under a pointer; null outside the panel. */
export function cellAt(panel, x, y, width, height) {
  const { rows, columns } = matrixOf(panel);
  const column = Math.floor((x / width) * columns);
  const row = Math.floor((y / height) * rows);
  return row >= 0 && row < rows && column >= 0 && column < columns ? { row, column } : null;
}
