// What the colours of cores stand for.

import { PALETTE } from "./common.js";

export const LIGHT_HEAT = ["#f1ece1", "#f7c96b", "#e8743b", "#a3224a", "#4b1248"];
export const DARK_HEAT = ["#2b2733", "#6b2357", "#c43b4e", "#f58b3b", "#fde68a"];
const OVER = "#cc3311";

/** Red, green and blue of any colour of CSS. */
function partsOf(colour) {
  if (/^#[0-9a-f]{6}$/i.test(colour)) return [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  const context = document.createElement("canvas").getContext("2d");
  context.fillStyle = colour;
  const known = context.fillStyle;
  return known.startsWith("#") ? partsOf(known) : known.match(/[\d.]+/g).slice(0, 3).map(Number);
}

/** A colour with a share of another. */
export function mixed(colour, other, share) {
  const [some, more] = [partsOf(colour), partsOf(other)];
  const hex = some.map((part, at) => Math.round(part + (more[at] - part) * share).toString(16).padStart(2, "0"));
  return `#${hex.join("")}`;
}

/** The colour of a fraction of the heat's scale. */
function heatOf(fraction, stops) {
  const at = Math.max(0, Math.min(1, fraction)) * (stops.length - 1);
  const low = Math.min(stops.length - 2, Math.floor(at));
  return mixed(stops[low], stops[low + 1], at - low);
}

/** Light or dark letters, whichever can be read on a colour. */
export function inkOn(colour) {
  const [red, green, blue] = partsOf(colour);
  return (0.299 * red + 0.587 * green + 0.114 * blue) / 255 > 0.56 ? "#1f2328" : "#ffffff";
}

/** The colour of each core; one string for many cores. */
export function fillsOf(topology, colour, theme, memory) {
  const { replica, logical, host, host_shade, replica_shade, logical_devices, count, needed, usable } = topology;
  const idle = theme.dark ? "#4b5157" : theme.idle;
  const known = new Map();
  const remembered = (key, make) => {
    if (!known.has(key)) known.set(key, make());
    return known.get(key);
  };
  const hostColour = (core) => {
    const shade = host_shade[host[core]];
    const part = logical ? logical[core] : 0;
    const strength = 0.28 * part / Math.max(1, logical_devices - 1);
    return remembered(shade * 4096 + part, () => mixed(PALETTE[shade], theme.paper, strength));
  };
  const heat = theme.dark ? DARK_HEAT : LIGHT_HEAT;
  const most = memory ? memory.reduce((a, b) => Math.max(a, b), 0) : 0;
  const ways = {
    host: hostColour,
    replica: (core) => PALETTE[replica_shade[replica[core]]],
    logical: (core) => PALETTE[logical[core] % PALETTE.length],
    memory: (core) => (memory
      ? remembered(memory[core], () => heatOf(most ? memory[core] / most : 0, heat)) : idle),
    program: () => remembered("program", () => (needed > usable ? OVER : heatOf(needed / usable, heat))),
  };
  const isIdle = (core) => colour !== "memory" && replica && replica[core] < 0;
  return Array.from({ length: count }, (_, core) => (isIdle(core) ? idle : ways[colour](core)));
}
