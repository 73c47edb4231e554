// Draws a topology in space, from back to front.

import { coreOf, dot } from "./topology_geometry.js";
import { mixed } from "./topology_colours.js";
import { isOutside, linkColour, label, write, CHIPS_FROM } from "./topology_planes.js";

const AXES = [0, 1, 2];
const CORNERS = [[-1, -1], [1, -1], [1, 1], [-1, 1]];

/** Draws all chips from the farthest to the nearest; returns how closely. */
export function drawSpace(context, look) {
  const { topology, space, theme } = look;
  const { mesh, basis } = space;
  drawFrame(context, look);
  const shapes = shapesOf(topology, space);
  const order = AXES.map((axis) => {
    const indices = Array.from({ length: mesh[axis] }, (_, index) => index);
    return basis.away[axis] > 0 ? indices.reverse() : indices;
  });
  const slots = Array.from({ length: topology.perChip }, (_, slot) => slot);
  if (basis.away[0] > 0) slots.reverse();
  const shades = new Map();
  for (const z of order[2]) {
    for (const y of order[1]) {
      for (const x of order[0]) drawChip(context, look, { place: [x, y, z], shapes, slots, shades });
    }
  }
  drawAxes(context, space, theme);
  return space.scale >= CHIPS_FROM ? "chips" : "cores";
}

/** The edges of the mesh, behind the chips. */
function drawFrame(context, { space, theme }) {
  const { mesh, basis, project } = space;
  context.strokeStyle = theme.line;
  context.lineWidth = 1;
  context.globalAlpha = 0.6;
  context.beginPath();
  for (const axis of AXES) {
    const [a, b] = AXES.filter((other) => other !== axis);
    for (const [sideA, sideB] of CORNERS) {
      const from = [0, 0, 0];
      from[a] = sideA < 0 ? -0.5 : mesh[a] - 0.5;
      from[b] = sideB < 0 ? -0.5 : mesh[b] - 0.5;
      // Not those in front of the chips.
      if (sideA * basis.away[a] < 0 && sideB * basis.away[b] < 0) continue;
      from[axis] = -0.5;
      const to = [...from];
      to[axis] = mesh[axis] - 0.5;
      context.moveTo(...project(...from));
      context.lineTo(...project(...to));
    }
  }
  context.stroke();
  context.globalAlpha = 1;
}

/** What is the same for all chips: the faces of each core and the halves of the links. */
function shapesOf(topology, space) {
  const { basis, scale, side } = space;
  const flat = (at) => [scale * dot(at, basis.right), scale * dot(at, basis.down)];
  const half = side / 2;
  const width = side / topology.perChip;
  const gap = topology.perChip > 1 ? side * 0.02 : 0;
  const cores = Array.from({ length: topology.perChip }, (_, slot) => {
    const low = [-half + slot * width + (slot ? gap : 0), -half, -half];
    const high = [-half + (slot + 1) * width - (slot < topology.perChip - 1 ? gap : 0), half, half];
    const faces = AXES.filter((axis) => Math.abs(basis.away[axis]) > 1e-6).map((axis) => {
      const [a, b] = AXES.filter((other) => other !== axis);
      const corner = ([sideA, sideB]) => {
        const at = [0, 0, 0];
        at[axis] = basis.away[axis] > 0 ? low[axis] : high[axis];
        at[a] = sideA < 0 ? low[a] : high[a];
        at[b] = sideB < 0 ? low[b] : high[b];
        return flat(at);
      };
      return { axis, corners: CORNERS.map(corner) };
    });
    const front = faces.reduce((best, face) =>
      (Math.abs(basis.away[face.axis]) > Math.abs(basis.away[best.axis]) ? face : best));
    // Links leave from the middle of a face: its label stands in the upper left.
    const [corner] = front.corners.slice().sort((a, b) => a[0] + a[1] - b[0] - b[1]);
    const middle = [0, 1].map((part) => front.corners.reduce((sum, at) => sum + at[part], 0) / 4);
    return { faces, label: [0, 1].map((part) => middle[part] + 0.42 * (corner[part] - middle[part])) };
  });
  const links = AXES.flatMap((axis) => [-1, 1].map((way) => {
    const [from, to] = [[0, 0, 0], [0, 0, 0]];
    from[axis] = way * half;
    to[axis] = way * 0.5;
    return { axis, way, near: way * basis.away[axis] < 0, from: flat(from), to: flat(to) };
  }));
  return { cores, links };
}

function drawChip(context, look, { place, shapes, slots, shades }) {
  const { topology, space } = look;
  const first = coreOf(topology, ...place);
  if (first < 0) return;
  const solid = slots.some((slot) => look.solid(coreOf(topology, ...place, slot)));
  const linked = solid && !space.large && space.scale >= 10;
  if (space.large && (!solid || isBuried(look, place))) return;
  const at = space.project(...place);
  if (isOutside([at[0] - space.scale, at[1] - space.scale], 2 * space.scale, space)) return;
  if (linked) drawHalves(context, look, { place, at, links: shapes.links.filter((link) => !link.near) });
  for (const slot of slots) {
    const core = coreOf(topology, ...place, slot);
    if (core >= 0) drawBox(context, look, { core, at, shape: shapes.cores[slot], place, shades });
  }
  context.globalAlpha = 1;
  if (linked) drawHalves(context, look, { place, at, links: shapes.links.filter((link) => link.near) });
}

/** Whether the chips before a chip hide it, in a block of many. */
function isBuried({ topology, space, solid }, place) {
  return AXES.every((axis) => {
    const before = [...place];
    before[axis] -= Math.sign(space.basis.away[axis]) || 1;
    const core = coreOf(topology, ...before);
    return core >= 0 && solid(core);
  });
}

/** The half of each link that lies in a chip's own cell, so that depth comes out right. */
function drawHalves(context, { topology, space, theme }, { place, at, links }) {
  context.strokeStyle = linkColour(theme);
  context.lineWidth = Math.max(1, Math.min(3.5, space.scale * 0.045));
  for (const { axis, way, from, to } of links) {
    const next = [...place];
    next[axis] += way;
    const linked = coreOf(topology, ...next) >= 0;
    if (!linked && !topology.wraps[axis]) continue;
    if (!linked) context.setLineDash([3, 2.5]);
    context.beginPath();
    context.moveTo(at[0] + from[0], at[1] + from[1]);
    context.lineTo(at[0] + to[0], at[1] + to[1]);
    context.stroke();
    if (!linked) context.setLineDash([]);
  }
}

function drawBox(context, look, { core, at, shape, place, shades }) {
  const { topology, space, theme, fills, active, chosen } = look;
  const away = dot(place.map((part, axis) => part - space.half[axis]), space.basis.away);
  const haze = Math.round(6 * Math.max(0, Math.min(1, away / (2 * space.radius) + 0.5)));
  const solid = look.solid(core);
  context.globalAlpha = solid ? 1 : 0.13;
  const marked = core === active || (solid && chosen.has(core));
  for (const { axis, corners } of shape.faces) {
    context.beginPath();
    for (const [x, y] of corners) context.lineTo(at[0] + x, at[1] + y);
    context.closePath();
    context.fillStyle = shadeOf(fills[core], axis, haze, theme, shades);
    context.fill();
    if (!solid && !marked) continue;
    // The line closes the seam between two faces.
    context.strokeStyle = marked ? theme.ink : context.fillStyle;
    context.lineWidth = marked ? (core === active ? 2 : 1.25) : 0.6;
    context.stroke();
  }
  const width = space.scale * space.side / topology.perChip;
  if (width >= 20 && solid) {
    label(context, look, core, [at[0] + shape.label[0], at[1] + shape.label[1]], width * 0.55);
  }
}

/** A face's colour: light from above, and paler with the distance. */
function shadeOf(colour, axis, haze, theme, shades) {
  const key = `${colour}${axis}${haze}`;
  if (!shades.has(key)) {
    const lit = axis === 1 ? mixed(colour, "#ffffff", 0.26) : mixed(colour, "#000000", axis === 0 ? 0.24 : 0);
    shades.set(key, mixed(lit, theme.paper, haze * 0.05));
  }
  return shades.get(key);
}

/** Which way x, y and z go, in the corner. */
function drawAxes(context, { basis, height }, theme) {
  const [x, y] = [38, height - 38];
  AXES.forEach((axis) => {
    const [right, down] = [basis.right[axis], basis.down[axis]];
    context.strokeStyle = theme.muted;
    context.lineWidth = 1.5;
    context.beginPath();
    context.moveTo(x, y);
    context.lineTo(x + 18 * right, y + 18 * down);
    context.stroke();
    write(context, theme, "xyz"[axis], [x + 26 * right, y + 26 * down], { size: 11, bold: true, colour: theme.muted });
  });
}
