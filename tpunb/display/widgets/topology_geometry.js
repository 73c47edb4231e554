// Where the chips and cores of a topology are: on planes side by side, or in space.
// Pure functions, in both directions: from a core to its place, and from a place to its core.

import { unpack } from "./common.js";

const MOST_HEIGHT = 540;
const LEAST_HEIGHT = 132;
const MARGIN = 22;
const TITLE = 20;
export const NAME = 15;
const BETWEEN = 16;
/** More chips than this are drawn in space as one block: what lies inside is hidden anyway. */
const LARGE = 1500;

/** The columns of numbers with their words, and the core at each place of the mesh. */
export function topologyOf(model) {
  const header = model.get("header");
  const columns = unpack(header.columns, model.get("cores"));
  const [width, height, depth] = header.mesh;
  const coreAt = new Int32Array(width * height * depth * header.cores_per_chip).fill(-1);
  columns.place.forEach((place, core) => { coreAt[place] = core; });
  const topology = {
    ...header, ...columns, width, height, depth, coreAt,
    count: columns.place.length, chips: width * height * depth, perChip: header.cores_per_chip,
  };
  topology.blocks = hostBlocks(topology);
  return topology;
}

/** The x, y, z and number within its chip of a core. */
export function placeOf({ place, perChip, width, height }, core) {
  const chip = Math.floor(place[core] / perChip);
  const row = Math.floor(chip / width);
  return [chip % width, row % height, Math.floor(row / height), place[core] % perChip];
}

/** The core at a place; -1 where there is none. */
export function coreOf({ coreAt, perChip, width, height, depth }, x, y, z, slot = 0) {
  if (x < 0 || y < 0 || z < 0 || x >= width || y >= height || z >= depth) return -1;
  return coreAt[((z * height + y) * width + x) * perChip + slot];
}

/** The replica of a core; without a device assignment every core is its own. */
export function replicaOf({ replica }, core) {
  return replica ? replica[core] : core;
}

/**
 * The rectangle of each host in each plane, if all are of one size on a regular grid:
 * `{ width, height, of: [{ host, x, y, z }] }`; else null.
 */
function hostBlocks(topology) {
  const found = new Map();
  for (let core = 0; core < topology.count; core += 1) {
    const [x, y, z] = placeOf(topology, core);
    const key = topology.host[core] * topology.depth + z;
    const box = found.get(key);
    if (!box) {
      found.set(key, { host: topology.host[core], x, y, z, right: x, bottom: y, cores: 1 });
      continue;
    }
    box.x = Math.min(box.x, x);
    box.y = Math.min(box.y, y);
    box.right = Math.max(box.right, x);
    box.bottom = Math.max(box.bottom, y);
    box.cores += 1;
  }
  const of = [...found.values()];
  const width = of[0].right - of[0].x + 1;
  const height = of[0].bottom - of[0].y + 1;
  const regular = of.every((box) => box.right - box.x + 1 === width && box.bottom - box.y + 1 === height
    && box.x % width === 0 && box.y % height === 0 && box.cores === width * height * topology.perChip);
  return regular ? { width, height, of } : null;
}

// ---- Geometry of the planes

/** Where an index lies along an axis, in chips: blocks stand a gap apart. */
export function along(index, block, gap) {
  return index + Math.floor(index / block) * gap;
}

/** The index at a position along an axis, and how far into it; null in a gap or outside. */
function indexAt(position, count, block, gap) {
  const group = Math.floor(position / (block + gap));
  const inside = position - group * (block + gap);
  const index = group * block + Math.floor(inside);
  if (position < 0 || inside >= block || index >= count) return null;
  return [index, inside - Math.floor(inside)];
}

/** The largest chips with which the planes fit into a width, and where the planes are. */
export function pageOf(topology, plane, width) {
  const { depth, perChip, wraps, blocks, chips } = topology;
  const zs = plane >= 0 ? [plane] : Array.from({ length: depth }, (_, z) => z);
  const block = blocks ? [blocks.width, blocks.height] : [topology.width, topology.height];
  const named = blocks !== null && chips <= 1024;
  const title = (depth > 1 ? TITLE : 0) + (named ? NAME : 0);
  const rim = named && (wraps[0] || wraps[1]) ? 0.55 : 0.16;
  // Chips across and down, with the gaps between the hosts' blocks.
  const extent = (gap) => [along(topology.width - 1, block[0], gap[0]) + 1 + 2 * rim,
    along(topology.height - 1, block[1], gap[1]) + 1 + 2 * rim];
  const [across, down] = extent(named ? [0.3, 0.55] : [0.2, 0.2]);
  const most = perChip > 1 ? 104 : 76;
  let best = { pitch: 0, columns: 1 };
  for (let columns = 1; columns <= zs.length; columns += 1) {
    const rows = Math.ceil(zs.length / columns);
    const pitch = Math.min(most,
      (width - 2 * MARGIN - (columns - 1) * BETWEEN) / (columns * across),
      (MOST_HEIGHT - 2 * MARGIN - rows * title - (rows - 1) * BETWEEN) / (rows * down));
    if (pitch >= best.pitch) best = { pitch, columns };
  }
  // Whole pixels keep small squares sharp.
  const pitch = best.pitch >= 3 ? Math.floor(best.pitch) : Math.max(0.5, best.pitch);
  const gap = (named ? [Math.min(14, 0.3 * pitch), Math.min(25, 0.55 * pitch)] : [0.2 * pitch, 0.2 * pitch])
    .map((part) => (blocks ? Math.round(part) / pitch : 0));
  const { columns } = best;
  const rows = Math.ceil(zs.length / columns);
  const [planeWidth, planeHeight] = extent(gap).map((part) => Math.round(part * pitch));
  const step = [planeWidth + BETWEEN, planeHeight + title + BETWEEN];
  const height = Math.min(MOST_HEIGHT, Math.max(LEAST_HEIGHT, rows * step[1] - BETWEEN + 2 * MARGIN));
  return {
    pitch, gap, block, named, zs, columns, step, width, height,
    left: Math.round((width - columns * step[0] + BETWEEN) / 2 + rim * pitch),
    top: Math.round((height - rows * step[1] + BETWEEN) / 2 + title + rim * pitch),
  };
}

/** The top left corner of a plane on the page; null if it is not there. */
export function originOf(page, z) {
  const index = page.zs.length === 1 ? (page.zs[0] === z ? 0 : -1) : z;
  if (index < 0) return null;
  return [
    page.left + (index % page.columns) * page.step[0],
    page.top + Math.floor(index / page.columns) * page.step[1],
  ];
}

/** The top left corner of a chip on the page. */
export function chipCorner(page, [x, y, z]) {
  const origin = originOf(page, z);
  return origin && [
    origin[0] + along(x, page.block[0], page.gap[0]) * page.pitch,
    origin[1] + along(y, page.block[1], page.gap[1]) * page.pitch,
  ];
}

/** From the page to the screen, and back. */
export function zoomed(page, { zoom, x, y }) {
  const [middle, centre] = [page.width / 2, page.height / 2];
  return {
    zoom,
    screen: ([px, py]) => [
      middle + (px - middle + x * page.pitch) * zoom, centre + (py - centre + y * page.pitch) * zoom],
    page: ([sx, sy]) => [
      (sx - middle) / zoom + middle - x * page.pitch, (sy - centre) / zoom + centre - y * page.pitch],
  };
}

/** The core at a point of the page, by arithmetic; -1 where there is none. */
export function coreOnPage(topology, page, [px, py]) {
  // What is above and left of a plane belongs to the step before it.
  const column = Math.floor((px - page.left) / page.step[0]);
  const row = Math.floor((py - page.top) / page.step[1]);
  const z = page.zs[row * page.columns + column];
  if (column < 0 || column >= page.columns || row < 0 || z === undefined) return -1;
  const [left, top] = originOf(page, z);
  const x = indexAt((px - left) / page.pitch, topology.width, page.block[0], page.gap[0]);
  const y = indexAt((py - top) / page.pitch, topology.height, page.block[1], page.gap[1]);
  return x && y ? coreOf(topology, x[0], y[0], z, slotAt(x[1], topology.perChip)) : -1;
}

/** The core of a chip at a fraction of its width. */
function slotAt(fraction, perChip) {
  return Math.max(0, Math.min(perChip - 1, Math.floor(fraction * perChip)));
}

// ---- Geometry of the space

/** What is right, down and away on the screen, in the mesh's axes; angles in radians. */
function basisOf(yaw, pitch) {
  const [cy, sy, cp, sp] = [Math.cos(yaw), Math.sin(yaw), Math.cos(pitch), Math.sin(pitch)];
  return { right: [cy, 0, sy], down: [sp * sy, cp, -sp * cy], away: [-cp * sy, sp, cp * cy] };
}

export function dot(a, b) {
  return a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
}

/** The view of the whole mesh: its scale holds while it turns. */
export function spaceOf(topology, camera, width) {
  const mesh = [topology.width, topology.height, topology.depth];
  const large = topology.chips > LARGE;
  const radius = Math.hypot(...mesh) / 2;
  const height = Math.min(MOST_HEIGHT, Math.max(240, Math.round(width * 0.6)));
  // Chips do not fill their cells, so that the corners have room to turn.
  const spare = large ? 0 : 0.4;
  const fit = Math.min(92, (width - 2 * MARGIN) / (Math.hypot(mesh[0], mesh[2]) - spare),
    (height - 2 * MARGIN) / (Math.hypot(...mesh) - spare));
  const scale = fit * camera.zoom;
  const basis = basisOf(camera.yaw, camera.pitch);
  const centre = [width / 2 + camera.x * scale, height / 2 + camera.y * scale];
  const half = mesh.map((side) => (side - 1) / 2);
  const project = (x, y, z) => {
    const at = [x - half[0], y - half[1], z - half[2]];
    return [centre[0] + scale * dot(at, basis.right), centre[1] + scale * dot(at, basis.down)];
  };
  return { mesh, half, width, height, fit, scale, basis, centre, radius, large, project,
    side: large ? 0.84 : 0.6 };
}

/**
 * The first core that a line of sight meets, of those that `solid(core)` says are there.
 * The line is followed from cell to cell of the mesh, so that it takes as many steps as the
 * mesh is long, however many chips there are.
 */
export function coreInSpace(topology, space, [sx, sy], solid) {
  const { basis, mesh, half, scale, centre, radius, side } = space;
  const [across, down] = [(sx - centre[0]) / scale, (sy - centre[1]) / scale];
  const from = [0, 1, 2].map((axis) => across * basis.right[axis] + down * basis.down[axis]
    - (radius + 1) * basis.away[axis] + half[axis] + 0.5);
  const cell = from.map(Math.floor);
  const way = basis.away.map(Math.sign);
  const pace = basis.away.map((part) => (part ? Math.abs(1 / part) : Infinity));
  const next = from.map((part, axis) => (way[axis] === 0 ? Infinity
    : (way[axis] > 0 ? cell[axis] + 1 - part : part - cell[axis]) * pace[axis]));
  for (let walked = 0; walked <= 2 * radius + 2;) {
    if (cell.every((index, axis) => index >= 0 && index < mesh[axis])) {
      const slot = slotHit(from, basis.away, cell, side / 2, topology.perChip);
      const core = slot < 0 ? -1 : coreOf(topology, ...cell, slot);
      if (core >= 0 && solid(core)) return core;
    }
    const axis = next.indexOf(Math.min(...next));
    walked = next[axis];
    next[axis] += pace[axis];
    cell[axis] += way[axis];
  }
  return -1;
}

/** Which core of the chip in a cell a line meets first; -1 if it passes by. */
function slotHit(from, away, cell, half, perChip) {
  let [enter, leave] = [-Infinity, Infinity];
  for (const axis of [0, 1, 2]) {
    const offset = cell[axis] + 0.5 - from[axis];
    if (away[axis] === 0) {
      if (Math.abs(offset) > half) return -1;
      continue;
    }
    const times = [(offset - half) / away[axis], (offset + half) / away[axis]];
    enter = Math.max(enter, Math.min(...times));
    leave = Math.min(leave, Math.max(...times));
  }
  if (enter > leave) return -1;
  const x = from[0] + enter * away[0] - cell[0] - 0.5;
  return slotAt((x + half) / (2 * half), perChip);
}
