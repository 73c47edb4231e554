// The live topology: the drawing of topology_svg.py, with marks at the pointer and selection.

import { button, choice, element, keep, listen, oncePerFrame, rootOf, sharedSelection, slider, tipOf, unpack } from "./common.js";
import { saveStatically } from "./saving.js";

const SVG = "http://www.w3.org/2000/svg";
const MOST_ZOOM = 40;
const PLANE_HEIGHT = 480;
const STEPS = { ArrowLeft: [-1, 0, 0], ArrowRight: [1, 0, 0], ArrowUp: [0, -1, 0], ArrowDown: [0, 1, 0],
  PageUp: [0, 0, -1], PageDown: [0, 0, 1] };

/** One view of the model; the model holds the user's settings. */
class TopologyView {
  constructor(model, el) {
    this.model = model;
    this.root = rootOf(el, "topology", "TPU topology");
    this.title = element("h3", { class: "tpunb-title" });
    this.facts = element("div", { class: "tpunb-facts" });
    this.tools = element("div", { class: "tpunb-toolbar" });
    this.mesh = element("div", { tabindex: "0", role: "application", class: "tpunb-mesh",
      // Otherwise JupyterLab takes the keys for commands: Enter would edit the cell.
      "data-lm-suppress-shortcuts": "true",
      pointermove: (event) => this.move(event), pointerleave: () => this.point(-1), click: (event) => this.press(event),
      keydown: (event) => this.key(event), blur: () => { this.focus = -1; this.tell(); }, dblclick: () => this.set("zoom", 1) });
    // The wheel scrolls the page, and zooms only while a key is held.
    this.mesh.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    this.legend = element("div", { class: "tpunb-legend" });
    this.clear = element("button", { type: "button", class: "tpunb-button", "data-testid": "tpunb-clear",
      click: () => this.shared.select([]) });
    this.root.append(this.title, this.facts, this.tools, this.mesh, this.legend);
    this.tip = tipOf(this.root);
    this.rebuild = oncePerFrame(() => this.build());
    this.shared = sharedSelection(model, () => this.mark());
    this.stops = [this.shared.stop, this.rebuild.cancel,
      listen(model, ["change:header", "change:cores", "change:drawing"], this.rebuild),
      listen(model, ["change:colour", "change:plane", "change:zoom"], () => this.settle()),
      listen(model, ["msg:custom"], (content, buffers) => this.receive(content, buffers))];
    this.build();
  }

  // -- The displayed part

  get plane() {
    const plane = this.model.get("plane");
    return this.header.planes.length > 1 && plane < this.header.planes.length ? plane : -1;
  }

  get colour() {
    const wanted = this.model.get("colour");
    return this.colours.some(({ name }) => name === wanted) ? wanted : "host";
  }

  get active() {
    return this.hover >= 0 ? this.hover : this.focus;
  }

  /** Return the displayed part of the drawing: left, top, width and height. */
  get box() {
    return this.plane < 0 ? [0, 0, ...this.header.page] : this.header.planes[this.plane];
  }

  set(name, value) {
    keep(this.model, name, value);
  }

  /** Take a description from the model. */
  build() {
    const header = this.header = this.model.get("header");
    this.columns = unpack(header.columns, this.model.get("cores"));
    this.count = this.columns.place.length;
    this.at = new Map(Array.from(this.columns.place, (place, core) => [place, core]));
    this.memory = { state: "", error: "" };
    // "memory" is a choice without a colouring; the kernel sends the colouring on request.
    this.colours = [...header.colours, ...(header.memory ? [{ name: "memory", label: "memory" }] : [])];
    this.hover = this.focus = -1;
    this.title.textContent = header.name;
    this.facts.replaceChildren(...header.facts.map((line) => element("div", {}, line)));
    const chips = header.mesh.reduce((product, side) => product * side, 1);
    const numbers = { chips, cores: this.count, hosts: header.hosts, replicas: header.replicas,
      "logical-devices": header.logical_devices, level: header.level };
    for (const [key, value] of Object.entries(numbers)) this.root.setAttribute(`data-${key}`, value);
    this.mesh.setAttribute("aria-label", `Cores of ${header.name}. Arrow keys move along x and y, `
      + "Page Up and Page Down along z; Enter selects a core's replica, with Shift one more; Escape clears; plus and minus zoom.");
    this.svg = document.importNode(new DOMParser().parseFromString(this.model.get("drawing"), "image/svg+xml").documentElement, true);
    this.svg.setAttribute("aria-hidden", "true");
    // Otherwise its height would follow these attributes, and not the displayed part.
    for (const side of ["width", "height"]) this.svg.removeAttribute(side);
    this.marks = document.createElementNS(SVG, "g");
    this.svg.append(this.marks);
    this.mesh.replaceChildren(this.svg);
    this.equip();
    this.settle();
  }

  /** Make the controls that this topology needs. */
  equip() {
    const { length } = this.header.planes;
    this.planes = slider("z", { min: -1, max: length - 1, value: this.plane, show: (z) => (z < 0 ? "all" : String(z)) },
      (z) => this.set("plane", z));
    this.choice = choice("Colour by", this.colours.map(({ name, label }) => [name, label]), this.colour, (value) => this.set("colour", value));
    this.zooms = [button("−", "Zoom out", () => this.zoomBy(1 / 1.5)), button("+", "Zoom in", () => this.zoomBy(1.5)),
      button("Reset", "Show the whole mesh again", () => this.set("zoom", 1))];
    this.tools.replaceChildren(...(length > 1 ? [this.planes] : []), ...(this.colours.length > 1 ? [this.choice] : []),
      element("span", { class: "tpunb-group", role: "group", "aria-label": "Zoom" }, ...this.zooms));
  }

  /** Follow the settings of the model. */
  settle() {
    const zoom = this.model.get("zoom");
    this.planes.set(this.plane);
    this.choice.select.value = this.colour;
    this.zooms[0].disabled = zoom <= 1;
    this.zooms[1].disabled = zoom >= MOST_ZOOM;
    const attributes = { colour: this.colour, plane: this.plane < 0 ? "all" : this.plane, zoom: zoom.toFixed(2) };
    for (const [name, value] of Object.entries(attributes)) this.root.setAttribute(`data-${name}`, value);
    const [, , boxWidth, boxHeight] = this.box;
    // A single plane is larger.
    const width = boxWidth * (this.plane < 0 ? 1 : Math.max(1, Math.min(this.header.page[0] / boxWidth, PLANE_HEIGHT / boxHeight)));
    this.svg.setAttribute("viewBox", this.box.join(" "));
    this.svg.style.width = zoom > 1 ? `calc(${zoom} * min(100%, ${width}px))` : `${width}px`;
    this.svg.style.maxWidth = zoom > 1 ? "none" : "100%";
    if (this.colour === "memory" && this.memory.state === "") this.ask();
    this.recolour();
    this.tell();
  }

  /** Draw the cores in the chosen colours, and explain the colours. */
  recolour() {
    const { colour, columns, memory } = this;
    const known = colour === "memory" ? memory.colouring : this.colours.find(({ name }) => name === colour);
    if (known) {
      const places = colour === "memory" ? memory.places : columns[`colour.${colour}`];
      const [width, height] = this.header.core;
      const paths = known.fills.map(() => []);
      places.forEach((place, core) => {
        paths[place].push(`M${columns.corner[2 * core]} ${columns.corner[2 * core + 1] + height / 2}h${width}`);
      });
      this.svg.querySelector(".tpunb-cores").replaceChildren(...paths.map((d, place) =>
        drawn("path", { d: d.join(""), stroke: known.fills[place] })));
      [...this.svg.querySelectorAll(".tpunb-labels > text")].forEach((text, core) => text.setAttribute("fill", known.inks[places[core]]));
    }
    this.explain(known);
    this.mark();
  }

  explain(known) {
    const { memory, colour } = this;
    const items = (known?.legend ?? []).map(({ text, colours }) => element("span", { class: "tpunb-swatch" },
      colours.length ? element("i", { class: colours.length > 1 ? "tpunb-scale" : false,
        style: `background: ${colours.length > 1 ? `linear-gradient(90deg, ${colours.join(", ")})` : colours[0]}` }) : null, text));
    if (colour === "memory") {
      const says = { waiting: "Waiting for the kernel …", failed: `No answer: ${memory.error}` }[memory.state];
      if (says) items.push(element("span", { role: "status" }, says));
      items.push(button("Refresh", "Ask again what variables hold", () => this.ask()));
    }
    this.legend.replaceChildren(...items, element("span", { class: "tpunb-space" }), this.clear,
      element("span", { class: "tpunb-hint" }, "Click selects, with Shift more · Ctrl and wheel zoom"));
    this.root.setAttribute("data-memory", memory.state);
  }

  /** Send a request to the kernel without waiting, because the kernel may be busy. */
  ask() {
    this.memory.state = "waiting";
    this.recolour();
    this.model.send({ request: "memory" });
  }

  receive(content, buffers) {
    if (!content || !("memory" in content)) return;
    if (content.memory) {
      const { held, places } = unpack(content.memory.layout, buffers[0]);
      if (held.length !== this.count) return; // an answer may be older than the description
      this.memory = { state: "ready", error: "", colouring: content.memory, held, places };
    } else this.memory = { ...this.memory, state: "failed", error: String(content.error) };
    this.recolour();
    this.tell();
  }

  // -- Selection and pointer

  replicaOf(core) {
    return this.columns.replica ? this.columns.replica[core] : core;
  }

  placeOf(core) {
    const { mesh: [width, height], cores_per_chip: perChip } = this.header;
    const place = this.columns.place[core];
    const chip = Math.floor(place / perChip);
    return [chip % width, Math.floor(chip / width) % height, Math.floor(chip / width / height), place % perChip];
  }

  coreAtPlace([x, y, z, slot]) {
    const { mesh: [width, height, depth], cores_per_chip: perChip } = this.header;
    const inside = x >= 0 && x < width && y >= 0 && y < height && z >= 0 && z < depth;
    return inside ? this.at.get(((z * height + y) * width + x) * perChip + slot) ?? -1 : -1;
  }

  corner(core) {
    return [this.columns.corner[2 * core], this.columns.corner[2 * core + 1]];
  }

  outline(core, more = 0) {
    const [width, height] = this.header.core.map((side) => side + 2 * more);
    const [x, y] = this.corner(core).map((side) => side - more);
    return `M${x} ${y}h${width}v${height}h${-width}z`;
  }

  /** Fade cores that are not selected, and frame the core under the pointer. */
  mark() {
    const known = this.header.replicas || this.count;
    const selected = this.selected = new Set(this.model.get("selected").filter((replica) => replica >= 0 && replica < known));
    const marks = [];
    if (selected.size) {
      const chosen = Array.from({ length: this.count }, (_, core) => core).filter((core) => selected.has(this.replicaOf(core)));
      const [width, height] = this.header.page;
      const all = `M0 0h${width}v${height}h${-width}z`;
      marks.push(drawn("path", { class: "tpunb-veil", "fill-rule": "evenodd", d: all + chosen.map((core) => this.outline(core)).join("") }));
    }
    if (this.active >= 0) marks.push(drawn("path", { class: "tpunb-frame", d: this.outline(this.active, 1) }));
    this.marks.replaceChildren(...marks);
    this.root.setAttribute("data-selected", [...selected].join(","));
    const word = this.header.replicas ? "replica" : "core";
    this.clear.hidden = !selected.size;
    this.clear.textContent = selected.size === 1 ? `Deselect ${word} ${[...selected][0]}` : `Deselect ${selected.size} ${word}s`;
  }

  /** Return the number of the page's pixels for a pixel of the drawing. */
  get scale() {
    return this.svg.getBoundingClientRect().width / this.box[2];
  }

  coreAt(event) {
    const { left, top } = this.svg.getBoundingClientRect();
    const [boxLeft, boxTop, boxWidth, boxHeight] = this.box;
    const [x, y] = [boxLeft + (event.clientX - left) / this.scale, boxTop + (event.clientY - top) / this.scale];
    if (x < boxLeft || x > boxLeft + boxWidth || y < boxTop || y > boxTop + boxHeight) return -1;
    const [width, height] = this.header.core;
    const { corner } = this.columns;
    for (let core = 0; core < this.count; core += 1) {
      const [right, down] = [x - corner[2 * core], y - corner[2 * core + 1]];
      if (right >= 0 && right < width && down >= 0 && down < height) return core;
    }
    return -1;
  }

  move(event) {
    if (event.buttons && event.pointerType === "mouse" && this.model.get("zoom") > 1) {
      this.dragged = true;
      this.mesh.scrollBy(-event.movementX, -event.movementY);
      this.point(-1);
    } else {
      this.dragged = false;
      this.point(this.coreAt(event));
    }
  }

  /** Point at a core; -1 for no core. */
  point(core) {
    if (core === this.hover) return;
    this.hover = core;
    this.tell();
  }

  /** Show and announce the core that is under the pointer or has the focus. */
  tell() {
    const { active } = this;
    this.root.setAttribute("data-hover", active < 0 ? "" : active);
    this.mark();
    if (active < 0) this.tip.hide();
    else this.tip.tell(this.linesAbout(active).join("\n"), this.windowBox(active));
  }

  linesAbout(core) {
    const { replica, logical, host, ordinal } = this.columns;
    const { cores_per_chip: perChip, logical_devices: devices, hbm, program } = this.header;
    const [x, y, z, slot] = this.placeOf(core);
    const lines = [`Core ${core}`, `chip (${x}, ${y}, ${z})${perChip > 1 ? `, core ${slot} of it` : ""}`,
      `host ${host[core]}, TPU:${ordinal[core]}`, `/job:worker/replica:0/task:${host[core]}/device:TPU:${ordinal[core]}`];
    if (replica && replica[core] < 0) lines.push("in no replica");
    else if (replica) lines.push(`replica ${replica[core]}${devices > 1 ? `, logical device ${logical[core]}` : ""}`);
    const { colouring, held } = this.memory;
    return [...lines, hbm, replica?.[core] < 0 ? "" : program,
      held && this.colour === "memory" ? colouring.sizes[held[core]] : ""].filter(Boolean);
  }

  /** Return a core's box in the window. */
  windowBox(core) {
    const { scale, box, header } = this;
    const inner = this.svg.getBoundingClientRect();
    const [x, y] = this.corner(core);
    const left = inner.left + (x - box[0]) * scale;
    return { left, right: left + header.core[0] * scale, top: inner.top + (y - box[1]) * scale };
  }

  press(event) {
    if (this.dragged) return;
    this.focus = -1;
    this.choose(this.coreAt(event), event.shiftKey || event.ctrlKey || event.metaKey);
  }

  /** Select a core's replica, alone or with others; a second call removes it. */
  choose(core, more) {
    const replica = core < 0 ? -1 : this.replicaOf(core);
    if (replica >= 0) this.shared.toggle([replica], more);
    else if (core < 0 && !more) this.shared.select([]);
  }

  // -- Zoom and keyboard

  /** Zoom around a point of the drawing's window, by default its middle. */
  zoomBy(factor, at = [this.mesh.clientWidth / 2, this.mesh.clientHeight / 2]) {
    const { mesh } = this;
    const before = this.svg.getBoundingClientRect().width;
    const [x, y] = [mesh.scrollLeft + at[0], mesh.scrollTop + at[1]];
    this.set("zoom", Math.max(1, Math.min(MOST_ZOOM, this.model.get("zoom") * factor)));
    const grown = this.svg.getBoundingClientRect().width / before;
    mesh.scrollTo(x * grown - at[0], y * grown - at[1]);
  }

  wheel(event) {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const { left, top } = this.mesh.getBoundingClientRect();
    this.zoomBy(Math.exp(-event.deltaY * 0.0025), [event.clientX - left, event.clientY - top]);
  }

  key(event) {
    const step = STEPS[event.key];
    const actions = { Enter: () => this.choose(this.active, event.shiftKey), " ": () => this.choose(this.active, event.shiftKey),
      Escape: () => this.leave(), "+": () => this.zoomBy(1.5), "=": () => this.zoomBy(1.5), "-": () => this.zoomBy(1 / 1.5),
      0: () => this.set("zoom", 1), Home: () => this.focusOn(0), End: () => this.focusOn(this.count - 1) };
    // With Shift, arrows scroll a zoomed drawing.
    if (event.ctrlKey || event.metaKey || event.altKey || (step && event.shiftKey) || (!step && !actions[event.key])) return;
    event.preventDefault();
    event.stopPropagation();
    if (!step) actions[event.key]();
    else this.focusOn(this.next(this.active < 0 ? this.first : this.active, step));
  }

  /** Return the core that the keyboard starts from. */
  get first() {
    return Math.max(0, this.coreAtPlace([0, 0, Math.max(0, this.plane), 0]));
  }

  /** Return the next core along an axis, across gaps; at the end, return the same core. */
  next(core, [right, down, back]) {
    const { mesh, cores_per_chip: perChip } = this.header;
    let [x, y, z, slot] = this.placeOf(core);
    for (let tries = 0; tries < Math.max(...mesh) * perChip; tries += 1) {
      slot += right;
      if (slot < 0 || slot >= perChip) {
        x += right;
        slot = right > 0 ? 0 : perChip - 1;
      }
      y += down;
      z += back;
      const next = this.coreAtPlace([x, y, z, slot]);
      if (next >= 0) return next;
    }
    return core;
  }

  /** Move the focus to a core, and scroll the drawing until the core is visible. */
  focusOn(core) {
    this.hover = -1;
    this.focus = core;
    const [, , z] = this.placeOf(core);
    if (this.plane >= 0 && this.plane !== z) this.set("plane", z);
    this.mark();
    this.marks.lastElementChild.scrollIntoView({ block: "nearest", inline: "nearest" });
    this.tell();
  }

  /** Clear the selection first, then the focus. */
  leave() {
    if (this.selected.size) this.shared.select([]);
    else {
      this.focus = -1;
      this.tell();
    }
  }
}

/** Return an SVG element. */
function drawn(tag, attributes) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

export default {
  initialize({ model }) { saveStatically(model); },
  render({ model, el }) {
    const view = new TopologyView(model, el);
    return () => view.stops.forEach((stop) => stop());
  },
};
