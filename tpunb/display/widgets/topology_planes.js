// Draws the planes of a topology: hosts, links, chips, and the cores in them.

import { PALETTE, sameItems } from "./common.js";
import { placeOf, coreOf, originOf, chipCorner, NAME } from "./topology_geometry.js";
import { mixed, inkOn } from "./topology_colours.js";

/** Pixels a chip from which on chips have their cores, and all of their details. */
const CORES_FROM = 9;
export const CHIPS_FROM = 22;
/** Chips, of a cell's width, from its middle to the end of a link to another plane. */
const CORNER = 0.48;

/** Draws the planes; returns how closely: `"dots"`, `"cores"` or `"chips"`. */
export function drawPlanes(context, look) {
  const { topology, page, view } = look;
  const size = page.pitch * view.zoom;
  const level = size >= CHIPS_FROM ? "chips" : size >= CORES_FROM ? "cores" : "dots";
  for (const z of page.zs) drawTitle(context, look, z);
  if (level !== "dots") {
    drawHosts(context, look, size);
    if (size >= 12) drawPlaneLinks(context, look, size);
    drawHostNames(context, look, size);
  }
  const draw = { dots: drawDot, cores: drawSmallCore, chips: drawCore }[level];
  for (let core = 0; core < topology.count; core += 1) {
    const place = placeOf(topology, core);
    const corner = chipCorner(page, place);
    const at = corner && view.screen(corner);
    if (!at || isOutside(at, size, page)) continue;
    draw(context, look, { core, at, size, slot: place[3] });
  }
  drawMarks(context, look, size);
  return level;
}

export function isOutside([left, top], size, { width, height }) {
  return left + size < 0 || top + size < 0 || left > width || top > height;
}

function drawTitle(context, { topology, page, view, theme }, z) {
  if (topology.depth === 1) return;
  const [left, top] = originOf(page, z);
  const [x, y] = view.screen([left, top]);
  write(context, theme, `z = ${z}`, [x, y - (page.named ? NAME + 9 : 7) * view.zoom],
    { size: page.pitch < 9 ? 10 : 12, bold: true, colour: theme.muted, across: "left", down: "bottom" });
}

/** The hosts whose chips are in sight, with their boxes on the screen. */
function hostBoxes({ topology, page, view }, size) {
  if (!topology.blocks) return [];
  const { width, height, of } = topology.blocks;
  const rim = Math.min(5, size * 0.1);
  return of.flatMap(({ host, x, y, z }) => {
    const corner = chipCorner(page, [x, y, z]);
    if (!corner) return [];
    const [left, top] = view.screen(corner).map((part) => part - rim);
    const box = { left, top, width: width * size + 2 * rim, height: height * size + 2 * rim };
    const hidden = left + box.width < 0 || top + box.height < 0 || left > page.width || top - size > page.height;
    return hidden ? [] : [{ ...box, host, colour: PALETTE[topology.host_shade[host]] }];
  });
}

/** A tinted region for each host. */
function drawHosts(context, look, size) {
  const { theme } = look;
  for (const { left, top, width, height, colour } of hostBoxes(look, size)) {
    context.fillStyle = mixed(theme.paper, colour, theme.dark ? 0.24 : 0.12);
    context.strokeStyle = mixed(theme.paper, colour, theme.dark ? 0.55 : 0.42);
    context.lineWidth = 1;
    rounded(context, left, top, width, height, Math.min(9, size * 0.16));
    context.fill();
    context.stroke();
  }
}

/** The hosts' names above their regions, where there is room. */
function drawHostNames(context, look, size) {
  const { theme, page } = look;
  const letters = Math.min(12, page.gap[1] * size - 2 * Math.min(5, size * 0.1) - 1);
  if (letters < 7.5) return;
  for (const { left, top, width, host, colour } of hostBoxes(look, size)) {
    const name = width > 5 * letters ? `host ${host}` : String(host);
    const ink = theme.dark ? mixed(colour, "#ffffff", 0.35) : colour;
    write(context, theme, name, [left + 5, top - 2],
      { size: letters, bold: true, colour: ink, across: "left", down: "bottom", halo: theme.paper });
  }
}

/**
 * Links between neighbours, and stubs where an axis closes to a ring. Links to the next plane
 * and to the one before leave a chip at its upper right and lower left corner.
 */
function drawPlaneLinks(context, { topology, page, view, theme }, size) {
  const { width, height, depth, wraps } = topology;
  const [links, stubs] = [new Path2D(), new Path2D()];
  const middle = (x, y, z) => view.screen(chipCorner(page, [x, y, z])).map((part) => part + size / 2);
  const join = (path, [x, y], [toX, toY]) => {
    path.moveTo(x, y);
    path.lineTo(toX, toY);
  };
  const reach = size * 0.95;
  for (const z of page.zs) {
    for (let y = 0; y < height; y += 1) {
      for (let x = 0; x < width; x += 1) {
        const here = middle(x, y, z);
        if (coreOf(topology, x, y, z) < 0 || isOutside([here[0] - 2 * size, here[1] - 2 * size], 4 * size, page)) continue;
        if (coreOf(topology, x + 1, y, z) >= 0) join(links, here, middle(x + 1, y, z));
        if (coreOf(topology, x, y + 1, z) >= 0) join(links, here, middle(x, y + 1, z));
        if (wraps[0] && x === 0) join(stubs, here, [here[0] - reach, here[1]]);
        if (wraps[0] && x === width - 1) join(stubs, here, [here[0] + reach, here[1]]);
        if (wraps[1] && y === 0) join(stubs, here, [here[0], here[1] - reach]);
        if (wraps[1] && y === height - 1) join(stubs, here, [here[0], here[1] + reach]);
        for (const step of [1, -1]) {
          const last = step > 0 ? depth - 1 : 0;
          const corner = [here[0] + step * size * CORNER, here[1] - step * size * CORNER];
          if (coreOf(topology, x, y, z + step) >= 0) join(links, here, corner);
          else if (wraps[2] && z === last) join(stubs, here, corner);
        }
      }
    }
  }
  context.strokeStyle = linkColour(theme);
  context.lineWidth = Math.max(1, Math.min(3, size * 0.06));
  context.stroke(links);
  context.setLineDash([3, 2.5]);
  context.stroke(stubs);
  context.setLineDash([]);
}

export function linkColour(theme) {
  return theme.dark ? "#6f7881" : theme.link;
}

function drawDot(context, { topology, fillOf }, { core, at, size, slot }) {
  // The chip's square, or the core's part of it where that can be seen.
  const whole = size < 5 || topology.perChip === 1;
  if (whole && slot > 0) return;
  const side = Math.max(1, Math.round(size) - (size >= 3 ? 1 : 0));
  const width = whole ? side : Math.max(1, Math.floor(side / topology.perChip));
  context.fillStyle = fillOf(core);
  context.fillRect(Math.round(at[0]) + (whole ? 0 : slot * width), Math.round(at[1]), width, side);
}

function drawSmallCore(context, { topology, fillOf }, { core, at, size, slot }) {
  const inset = Math.max(1, Math.round(size * 0.1));
  const width = (size - 2 * inset) / topology.perChip;
  context.fillStyle = fillOf(core);
  context.fillRect(at[0] + inset + slot * width, at[1] + inset,
    width - (topology.perChip > 1 ? 0.75 : 0), size - 2 * inset);
}

/** The box of a core within its chip, on the screen. */
function coreBox(topology, [left, top], size, slot) {
  const inset = Math.max(2, size * 0.09);
  const side = size - 2 * inset;
  const rim = Math.max(1.5, side * 0.08);
  const width = (side - rim * (topology.perChip + 1)) / topology.perChip;
  return { inset, side, x: left + inset + rim + slot * (width + rim), y: top + inset + rim,
    width, height: side - 2 * rim };
}

/** A core in its chip, which the first core draws. */
function drawCore(context, look, { core, at, size, slot }) {
  const { topology, theme } = look;
  const box = coreBox(topology, at, size, slot);
  if (slot === 0) {
    context.fillStyle = theme.paper;
    context.strokeStyle = look.pale(PALETTE[topology.host_shade[topology.host[core]]], core);
    context.lineWidth = Math.max(1, Math.min(2, size * 0.026));
    rounded(context, at[0] + box.inset, at[1] + box.inset, box.side, box.side, box.side * 0.14);
    context.fill();
    context.stroke();
  }
  context.fillStyle = look.fillOf(core);
  rounded(context, box.x, box.y, box.width, box.height, box.side * 0.09);
  context.fill();
  label(context, look, core, [box.x + box.width / 2, box.y + box.height / 2], box.width);
}

/** What is written on a core: its number, or its part of a replica. */
function labelOf({ replica, logical, logical_devices }, core) {
  if (!replica) return String(core);
  if (replica[core] < 0) return "–";
  return logical_devices > 1 ? `r${replica[core]}.${logical[core]}` : `r${replica[core]}`;
}

export function label(context, { topology, theme, fillOf, dimmed }, core, centre, width) {
  const text = labelOf(topology, core);
  const size = Math.min(16, 0.9 * width / (0.62 * Math.max(2, text.length)));
  if (size < 6) return;
  write(context, theme, text, [centre[0], centre[1] + size * 0.04], { size, bold: true, colour: dimmed(core) ? theme.muted : inkOn(fillOf(core)) });
}

export function write(context, theme, text, [x, y], { size, bold = false, colour, across = "center", down = "middle", halo = "" }) {
  context.font = `${bold ? "600 " : ""}${size}px ${theme.font}`;
  context.textAlign = across;
  context.textBaseline = down;
  if (halo) {
    // So that links do not cross the letters.
    context.strokeStyle = halo;
    context.lineWidth = 3;
    context.lineJoin = "round";
    context.strokeText(text, x, y);
  }
  context.fillStyle = colour;
  context.fillText(text, x, y);
}

function rounded(context, x, y, width, height, radius) {
  context.beginPath();
  context.roundRect(x, y, width, height, Math.min(radius, width / 2, height / 2));
}

/** The chip that is pointed at, the chips that it is linked to, and the selected cores. */
function drawMarks(context, look, size) {
  const { topology, page, view, theme, active } = look;
  const frame = (core, colour, line, whole) => {
    const place = placeOf(topology, core);
    const corner = chipCorner(page, place);
    if (!corner) return;
    const at = view.screen(corner);
    const box = coreBox(topology, at, size, place[3]);
    context.strokeStyle = colour;
    context.lineWidth = line;
    if (size < CHIPS_FROM || whole) {
      const inset = size < CORES_FROM ? 0 : size * 0.07;
      const side = size - 2 * inset;
      rounded(context, at[0] + inset - 0.5, at[1] + inset - 0.5, side, side, size < CHIPS_FROM ? 0 : side * 0.16);
      context.stroke();
      return;
    }
    rounded(context, box.x - 1, box.y - 1, box.width + 2, box.height + 2, box.side * 0.1);
    context.stroke();
  };
  if (size >= CORES_FROM) {
    for (const core of look.chosen) frame(core, theme.ink, 2, false);
  }
  if (active < 0) return;
  for (const core of neighbours(topology, active)) frame(core, theme.muted, 1.5, true);
  frame(active, theme.ink, size < CORES_FROM ? 2 : 2.5, false);
}

/** The first cores of the chips that a core's chip has links to, around the rings too. */
export function neighbours(topology, core) {
  const place = placeOf(topology, core);
  const sides = [topology.width, topology.height, topology.depth];
  const found = new Set();
  for (const axis of [0, 1, 2]) {
    for (const step of [-1, 1]) {
      const next = place.slice(0, 3);
      next[axis] += step;
      if (topology.wraps[axis]) next[axis] = (next[axis] + sides[axis]) % sides[axis];
      const there = coreOf(topology, ...next);
      if (there >= 0 && !sameItems(next, place.slice(0, 3))) found.add(there);
    }
  }
  return found;
}
