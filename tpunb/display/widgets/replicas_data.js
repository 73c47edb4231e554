// The replicas' values as panels: read from the payload, and computed from it.

import { groups, unpack } from "./common.js";

/** Return the sections of a header, each with its own columns of numbers. */
export function readSections(header, data) {
  const columns = unpack(header.layout, data);
  return header.sections.map((section, number) => ({
    ...section,
    number,
    columns: columnsOf(columns, `${number}.`),
    // `drawable`: every value has a picture. `shape`: the shape if all values have the same.
    drawable: Boolean(section.block.kind),
    shape: section.shapes.length === 1 ? section.shapes[0] : null,
  }));
}

function columnsOf(columns, prefix) {
  const entries = Object.entries(columns).filter(([name]) => name.startsWith(prefix));
  return Object.fromEntries(entries.map(([name, column]) => [name.slice(prefix.length), column]));
}

/** Return a shape as text, such as `[2, None]`. */
export function shapeText(shape) {
  return `[${shape.map((side) => side ?? "None").join(", ")}]`;
}

/** Return the id of the replica at a place of a section. */
export function replicaAt(section, place) {
  return section.ids.length ? section.ids[place] : place;
}

/** Return the statistics of all elements of the value at a place. */
export function statisticsAt(columns, place) {
  const read = (name) => (columns[name] ? columns[name][place] : 0);
  if (!columns.mean) return null;
  return { min: read("minimum"), mean: read("mean"), max: read("maximum"),
    std: read("deviation"), nans: read("nans"), infs: read("infs") };
}

const only = (items, place) => items[items.length === 1 ? 0 : place];

/** Return the panels of a block of previews; `first` is the place of the first panel. */
export function panelsOf(block, columns, { first = 0, shape = null, label = () => "" }) {
  const panels = [];
  for (let at = 0, offset = 0; at < (block.count ?? 0); at += 1) {
    const sides = only(block.shapes, at);
    const size = product(sides);
    panels.push({
      place: first + at, label: label(first + at), kind: only(block.kinds, at), sides,
      steps: only(block.steps, at), sampled: only(block.sampled, at), shape: shape ? only(shape, first + at) : sides,
      data: columns.preview.subarray(offset, offset + size), integral: block.integral, boolean: block.boolean,
      exact: block.exact.length ? block.exact.slice(offset, offset + size) : null,
      statistics: statisticsAt(columns, at),
    });
    offset += size;
  }
  return panels;
}

export function product(sides) {
  return sides.reduce((total, side) => total * side, 1);
}

/** Return minimum, mean and maximum of the finite elements, and the counts of other elements. */
export function statisticsOf(data) {
  const statistics = { min: NaN, mean: NaN, max: NaN, std: NaN, nans: 0, infs: 0 };
  let [low, high, sum, finite] = [Infinity, -Infinity, 0, 0];
  for (const value of data) {
    if (Number.isFinite(value)) {
      if (value < low) low = value;
      if (value > high) high = value;
      sum += value;
      finite += 1;
    } else if (Number.isNaN(value)) statistics.nans += 1;
    else statistics.infs += 1;
  }
  if (!finite) return statistics;
  const mean = sum / finite;
  let squares = 0;
  for (const value of data) if (Number.isFinite(value)) squares += (value - mean) ** 2;
  return { ...statistics, min: low, mean, max: high, std: Math.sqrt(squares / finite) };
}

function sameSides(panels) {
  return panels.every((panel) => panel.kind === panels[0].kind
    && String(panel.sides) === String(panels[0].sides)
    && String(panel.rows) === String(panels[0].rows));
}

function computed(panel, data, changes) {
  return { ...panel, data, exact: null, boolean: false, statistics: statisticsOf(data), ...changes };
}

/** Return each panel minus the reference; zero if both are NaN, or the same infinity. */
export function differences(panels, reference) {
  if (!sameSides([...panels, reference])) throw new Error("The replicas' values have different shapes.");
  return panels.map((panel) => {
    const data = Float64Array.from(panel.data, (value, at) => {
      const other = reference.data[at];
      return value === other || (Number.isNaN(value) && Number.isNaN(other)) ? 0 : value - other;
    });
    return computed(panel, data, {});
  });
}

/** Return the sum or mean of panels, each of which may represent several replicas. */
export function reduction(panels, mode, count) {
  if (!sameSides(panels)) throw new Error("The replicas' values have different shapes.");
  const data = new Float64Array(panels[0].data.length);
  for (const panel of panels) panel.data.forEach((value, at) => { data[at] += value; });
  const scale = mode === "mean" ? 1 / panels.length : count / panels.length;
  const scaled = data.map((value) => value * scale);
  return [computed(panels[0], scaled, { place: -1, label: reductionLabel(mode, count),
    integral: panels[0].integral && mode === "sum" })];
}

export function reductionLabel(mode, count) {
  return `${mode} of ${groups(count)} replicas`;
}

/** Return all panels one after the other along the first axis. */
export function gathered(panels, count) {
  const whole = panels.length === 1 && count > 1 ? Array(Math.min(count, PAGE)).fill(panels[0]) : panels;
  const tail = ({ sides }) => String(sides.slice(1));
  if (whole.some((panel) => panel.kind !== whole[0].kind || tail(panel) !== tail(whole[0]))) {
    throw new Error("Values can be gathered if they agree in all axes but the first.");
  }
  const data = new Float64Array(whole.reduce((total, panel) => total + panel.data.length, 0));
  let offset = 0;
  for (const panel of whole) {
    data.set(panel.data, offset);
    offset += panel.data.length;
  }
  const rows = whole.reduce((total, { sides }) => total + (sides.length ? sides[0] : 1), 0);
  const sides = [rows, ...whole[0].sides.slice(1)];
  const label = whole.length < count ? `first ${whole.length} of ${groups(count)} replicas` : `all ${groups(count)} replicas`;
  const lengths = whole[0].rows && whole.flatMap((panel) => panel.rows);
  return [computed(whole[0], data, { place: -1, label, sides, rows: lengths, parts: whole.length,
    boolean: whole[0].boolean, shape: gatheredShape(whole) })];
}

function gatheredShape(panels) {
  const first = panels[0].shape ?? [];
  if (!first.length) return [panels.length];
  return [panels.reduce((total, panel) => total + (panel.shape?.[0] ?? 0), 0), ...first.slice(1)];
}

/** Return a panel's part at places on its first axes, if all of its elements are there. */
export function sliced(panel, places) {
  const length = product(panel.shape.slice(places.length));
  let offset = 0;
  let stride = length;
  for (let axis = places.length - 1; axis >= 0; axis -= 1) {
    offset += places[axis] * stride;
    stride *= panel.shape[axis];
  }
  const data = panel.data.subarray(offset, offset + length);
  const shape = panel.shape.slice(places.length);
  const pictures = panel.kind === "images";
  const sides = pictures ? [1, ...shape] : shape;
  const kind = pictures ? "images" : length <= SMALL ? "values" : "grid";
  return { ...panel, kind, shape, sides, steps: sides.map(() => 1), sampled: "", data, statistics: statisticsOf(data),
    exact: panel.exact ? panel.exact.slice(offset, offset + length) : null };
}

/** Return a panel as rows and columns of numbers; images by their brightness, side by side. */
export function matrixOf(panel) {
  if (panel.kind === "images") return brightness(panel);
  const { sides, data } = panel;
  const columns = sides.length ? sides[sides.length - 1] : 1;
  return { rows: columns ? data.length / columns : 0, columns, data };
}

/** Return the layout of images: columns, rows, and the size of an image. */
export function tiling({ sides: [count, height, width, channels] }) {
  const across = Math.ceil(Math.sqrt(count));
  const down = Math.ceil(count / across);
  const gap = count === 1 ? 0 : 2;
  return { count, height, width, channels, across, gap,
    columns: across * (width + gap) - gap, rows: down * (height + gap) - gap };
}

function brightness(panel) {
  const tiles = tiling(panel);
  const data = new Float64Array(tiles.rows * tiles.columns).fill(NaN);
  eachPixel(tiles, (at, from) => {
    let sum = 0;
    const colours = Math.min(tiles.channels, 3);
    for (let channel = 0; channel < colours; channel += 1) sum += panel.data[from + channel];
    data[at] = sum / colours;
  });
  return { rows: tiles.rows, columns: tiles.columns, data, tiles };
}

/** Call back with each pixel's place on the page and in the data. */
export function eachPixel(tiles, visit) {
  const { count, height, width, channels, across, gap, columns } = tiles;
  for (let image = 0; image < count; image += 1) {
    const top = Math.floor(image / across) * (height + gap);
    const left = (image % across) * (width + gap);
    for (let row = 0; row < height; row += 1) {
      for (let column = 0; column < width; column += 1) {
        visit((top + row) * columns + left + column, ((image * height + row) * width + column) * channels);
      }
    }
  }
}

/** Return an element's index in the value itself, such as `[3, 14]`, by its row and column. */
export function indexText(panel, row, column, prefix = []) {
  const at = (places) => `[${[...prefix, ...places].join(", ")}]`;
  const { kind, shape, steps } = panel;
  if (kind === "images") {
    const { across, height, width, gap, count } = tiling(panel);
    const image = Math.floor(row / (height + gap)) * across + Math.floor(column / (width + gap));
    const pixel = [(row % (height + gap)) * steps[1], (column % (width + gap)) * steps[2]];
    return at(shape?.length === 4 && count > 0 ? [image, ...pixel] : pixel);
  }
  if (!shape || shape.some((side) => side === null)) return at([row, column]);
  if (!shape.length) return "";
  const across = steps[steps.length - 1] ?? 1;
  const down = kind === "grid" ? steps[0] : 1;
  const wide = kind === "grid" ? lastLong(shape) : shape[shape.length - 1];
  return at(unravelled(row * down * wide + column * across, shape));
}

/** Return the last axis that is longer than one, because pictures leave out the others. */
function lastLong(shape) {
  const long = shape.filter((side) => side > 1);
  return long.length ? long[long.length - 1] : 1;
}

function unravelled(flat, shape) {
  const places = [];
  let rest = flat;
  for (let axis = shape.length - 1; axis >= 0; axis -= 1) {
    places.unshift(rest % shape[axis]);
    rest = Math.floor(rest / shape[axis]);
  }
  return places;
}

/** Return the smallest and the largest finite element of several values. */
export function limitsOf(statistics) {
  let [low, high] = [Infinity, -Infinity];
  for (const item of statistics) {
    if (item && item.min < low) low = item.min;
    if (item && item.max > high) high = item.max;
  }
  return low <= high ? [low, high] : [0, 0];
}

/** Count the finite elements in each of equal ranges between limits. */
export function countsOf(data, [low, high]) {
  const counts = new Float64Array(BINS);
  const span = high / 2 - low / 2 || 0.5;
  for (const value of data) {
    if (!Number.isFinite(value)) continue;
    const share = (value / 2 - low / 2) / span;
    counts[Math.min(BINS - 1, Math.max(0, Math.floor(share * BINS)))] += 1;
  }
  return counts;
}

/** Return limits for a histogram, which must have some width. */
export function widened([low, high]) {
  return high > low ? [low, high] : [low - 0.5, high + 0.5];
}

/** Return the outliers: places whose mean is far from the other means. */
export function oddPlaces(means) {
  const known = [...means].filter(Number.isFinite).sort((a, b) => a - b);
  if (known.length < 3) return new Set();
  const middle = known[known.length >> 1];
  const spreads = known.map((mean) => Math.abs(mean - middle)).sort((a, b) => a - b);
  const spread = spreads[spreads.length >> 1];
  const most = Math.max(5 * spread, 1e-6 * Math.abs(middle), Number.MIN_VALUE);
  const odd = [...means.keys()].filter((at) => !(Math.abs(means[at] - middle) <= most));
  // If there are many, they are not outliers.
  return new Set(odd.length * 4 <= means.length ? odd : []);
}
