// The numbers behind the curves: columns that grow, averages, and downsampling.

import { unpack } from "./common.js";

/**
 * Return a store of a model's received rows. Every message tells at which row its columns start.
 * Therefore a message may come twice, or after a state that already has its rows.
 */
export function curveStore() {
  const listeners = new Set();
  const byKey = new Map();
  const store = {
    runs: [],
    omissions: [],
    notes: [],
    series: [],
    incomplete: false,
    lost: false,
    heard: Date.now(),
    /** Return the milliseconds since the last message. */
    silence: () => Date.now() - store.heard,
    /** Note that the kernel has ended, so that no message follows. */
    lose() {
      store.lost = true;
      for (const callback of [...listeners]) callback();
    },
    listen(callback) {
      listeners.add(callback);
      return () => listeners.delete(callback);
    },
    receive(header, buffer) {
      const columns = unpack(header.layout, buffer);
      store.heard = Date.now();
      store.lost = false;
      store.runs = header.runs;
      store.omissions = header.omissions ?? [];
      store.notes = header.notes ?? [];
      header.series.forEach(({ start, ...facts }, number) => {
        const series = seriesOf(facts);
        const part = (name) => columns[`${number}.${name}`];
        series.write(start, part("steps"), part("values"), part("lows"), part("highs"));
      });
      const wasIncomplete = store.incomplete;
      store.incomplete = store.series.some((series) => series.holes());
      for (const callback of [...listeners]) callback();
      return store.incomplete && !wasIncomplete;
    },
    receiveAll(view) {
      if (!view?.byteLength) return false;
      const size = Number(view.getBigInt64(0, true));
      const text = new Uint8Array(view.buffer, view.byteOffset + 8, size);
      const header = JSON.parse(new TextDecoder().decode(text));
      const begin = view.byteOffset + 8 + size;
      return store.receive(header, new DataView(view.buffer, begin, view.byteLength - 8 - size));
    },
    panels: () => [...new Set(store.series.map((series) => series.panel))],
    longest: () => store.series.reduce((most, series) => Math.max(most, series.length), 0),
    reach() {
      let [low, high] = [Infinity, -Infinity];
      for (const { steps, length } of store.series) {
        if (!length) continue;
        low = Math.min(low, steps[0]);
        high = Math.max(high, steps[length - 1]);
      }
      return low <= high ? [low, high] : [0, 1];
    },
  };

  function seriesOf(facts) {
    const key = `${facts.run}/${facts.metric}`;
    if (!byKey.has(key)) {
      byKey.set(key, new CurveSeries());
      store.series.push(byKey.get(key));
    }
    // A label changes when another role of the metric begins.
    return Object.assign(byKey.get(key), facts);
  }
  return store;
}

/** One metric of one run: its columns; and `run`, `metric`, `panel`, `label`, `validation` and `goal`. */
class CurveSeries {
  constructor() {
    this.length = 0;
    this.revision = 0;
    this.steps = new Float64Array(256);
    this.values = new Float64Array(256);
    this.lows = null;
    this.highs = null;
    this.kept = {};
  }

  /** Write rows from `start` on; a gap before them is filled when all rows are sent again. */
  write(start, steps, values, lows, highs) {
    const end = start + steps.length;
    this.reserve(end);
    if (lows && !this.lows) {
      this.lows = this.values.slice();
      this.highs = this.values.slice();
    }
    if (start > this.length) {
      // Only gaps have two rows of one step, because steps rise within a metric.
      this.steps.fill(steps[0], this.length, start);
      for (const column of this.columns().slice(1)) column.fill(NaN, this.length, start);
    }
    this.steps.set(steps, start);
    this.values.set(values, start);
    if (this.lows) {
      this.lows.set(lows ?? values, start);
      this.highs.set(highs ?? values, start);
    }
    this.length = Math.max(this.length, end);
    this.revision += 1;
  }

  columns() { return [this.steps, this.values, this.lows, this.highs].filter(Boolean); }

  reserve(rows) {
    if (rows <= this.steps.length) return;
    const room = Math.max(rows, this.steps.length * 2);
    const grown = (column) => {
      if (!column) return null;
      const next = new Float64Array(room);
      next.set(column);
      return next;
    };
    for (const name of ["steps", "values", "lows", "highs"]) this[name] = grown(this[name]);
  }

  holes() {
    return this.once("holes", () => {
      for (let row = 1; row < this.length; row += 1) {
        if (this.steps[row] === this.steps[row - 1]) return true;
      }
      return false;
    });
  }

  /** Return a value computed from the columns, and keep it until they change. */
  once(name, compute, key = 0) {
    const kept = this.kept[name];
    if (kept && kept.revision === this.revision && kept.key === key) return kept.value;
    const value = compute();
    this.kept[name] = { revision: this.revision, key, value };
    return value;
  }

  /** Return the row of the best value; -1 without any. */
  best() {
    return this.once("best", () => {
      let bestRow = -1;
      if (!this.goal) return bestRow;
      const sign = this.goal === "min" ? 1 : -1;
      let least = Infinity;
      for (let row = 0; row < this.length; row += 1) {
        const value = sign * this.values[row];
        if (value < least && value > -Infinity) {
          least = value;
          bestRow = row;
        }
      }
      return bestRow;
    });
  }

  /** Return the first row that is NaN or infinite; -1 if all are finite. */
  firstBad() {
    return this.once("bad", () => {
      for (let row = 0; row < this.length; row += 1) {
        if (!Number.isFinite(this.values[row]) && this.steps[row] !== this.steps[row + 1]) return row;
      }
      return -1;
    });
  }

  /**
   * Return the exponential moving average. Its weight is per 1/200 of the line's reach, so that the
   * same setting smooths a line of ten points like a line of a hundred thousand.
   */
  smoothed(weight) {
    if (!weight) return this.values;
    return this.once("smooth", () => {
      const { steps, values, length } = this;
      const result = new Float64Array(length);
      const unit = Math.max(steps[length - 1] - steps[0], 1) / 200;
      let [average, last, gap, keep] = [NaN, 0, NaN, weight];
      for (let row = 0; row < length; row += 1) {
        const value = values[row];
        result[row] = value;
        if (!Number.isFinite(value)) continue;
        if (Number.isNaN(average)) average = value;
        else if (steps[row] - last !== gap) {
          gap = steps[row] - last;
          keep = weight ** (gap / unit);
        }
        last = steps[row];
        average = keep * average + (1 - keep) * value;
        result[row] = average;
      }
      return result;
    }, weight);
  }

  /** Return the first row at a step or after it. */
  rowAt(step) {
    let [low, high] = [0, this.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.steps[middle] < step) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** Return the row nearest to a step; -1 well before the first row and after the last row. */
  nearest(step) {
    const { steps, length } = this;
    if (!length) return -1;
    const gap = length > 1 ? Math.max(steps[1] - steps[0], steps[length - 1] - steps[length - 2]) : 1;
    if (step < steps[0] - gap / 2 || step > steps[length - 1] + gap / 2) return -1;
    const after = Math.min(this.rowAt(step), length - 1);
    const before = Math.max(after - 1, 0);
    return step - steps[before] <= steps[after] - step ? before : after;
  }

  /** Return the rows of a range of steps, with one more on either side to continue the line. */
  rowsOf([low, high]) {
    const begin = Math.max(0, this.rowAt(low) - 1);
    let end = this.rowAt(high);
    while (end < this.length && this.steps[end] <= high) end += 1;
    return [begin, Math.min(this.length, end + 1)];
  }
}

// The range between values near the largest numbers would be infinite. Values beyond this limit are
// drawn at the edge; the legend has the values themselves.
const LARGEST = 1e300;
const LARGEST_LOG = 1e130;

/** Return a value, limited to an axis's reach; null for values that are not drawn. */
export function withinReach(value, log) {
  if (!Number.isFinite(value) || (log && value <= 0)) return null;
  const [low, high] = log ? [1 / LARGEST_LOG, LARGEST_LOG] : [-LARGEST, LARGEST];
  return Math.min(high, Math.max(low, value));
}

/**
 * Downsample a column between two steps to so many pixels: for each pixel the first, minimum,
 * maximum and last row. Gaps in the line are null, and on a log scale so are values that are not
 * positive.
 */
export function seenLine(series, column, range, pixels, log) {
  const [begin, end] = series.rowsOf(range);
  const x = [];
  const y = [];
  const { steps } = series;
  const good = (value) => Number.isFinite(value) && (!log || value > 0);
  const put = (row) => {
    if (x.length && x[x.length - 1] === steps[row]) return;
    x.push(steps[row]);
    y.push(withinReach(column[row], log));
  };
  if (end - begin <= 3 * pixels) {
    for (let row = begin; row < end; row += 1) put(row);
    return { x, y };
  }
  const scale = pixels / (range[1] - range[0] || 1);
  let row = begin;
  while (row < end) {
    const pixel = Math.floor((steps[row] - range[0]) * scale);
    const first = row;
    let [least, most, bad] = [-1, -1, -1];
    for (; row < end && Math.floor((steps[row] - range[0]) * scale) === pixel; row += 1) {
      const value = column[row];
      if (!good(value)) bad = row;
      else if (least < 0) least = most = row;
      else if (value < column[least]) least = row;
      else if (value > column[most]) most = row;
    }
    const kept = [first, least, most, bad, row - 1].filter((each) => each >= 0);
    kept.sort((a, b) => a - b).forEach(put);
  }
  return { x, y };
}

/** Return a series' spread on so many pixels: for each pixel the minimum low and maximum high. */
export function seenSpread(series, range, pixels) {
  const [begin, end] = series.rowsOf(range);
  const band = { x: [], low: [], high: [] };
  const scale = end - begin <= 2 * pixels ? Infinity : pixels / (range[1] - range[0] || 1);
  let last = NaN;
  for (let row = begin; row < end; row += 1) {
    // Keep values that are not positive for the painter, which knows the axis.
    const [low, high] = [withinReach(series.lows[row], false), withinReach(series.highs[row], false)];
    if (low === null || high === null) continue;
    const pixel = scale === Infinity ? row : Math.floor((series.steps[row] - range[0]) * scale);
    const at = band.x.length - 1;
    if (pixel === last) {
      band.low[at] = Math.min(band.low[at], low);
      band.high[at] = Math.max(band.high[at], high);
    } else {
      band.x.push(series.steps[row]);
      band.low.push(low);
      band.high.push(high);
    }
    last = pixel;
  }
  return band;
}

/** Return lines with their own steps on the steps of all of them, as uPlot needs it. */
export function alignedLines(lines) {
  const steps = Float64Array.from(lines.flatMap((line) => line.x)).sort();
  const x = [];
  for (const step of steps) if (step !== x[x.length - 1]) x.push(step);
  const columns = lines.map((line) => {
    const column = new Array(x.length);
    let at = 0;
    line.x.forEach((step, row) => {
      while (x[at] < step) at += 1;
      column[at] = line.y[row];
    });
    return column;
  });
  return [x, ...columns];
}
