// The live topology: chips on their mesh, as planes side by side or in space, and the
// cores in them. Where things are and how they are drawn is in topology_*.js; here is the view.

import { PALETTE, element, groups, rootOf, button, choice, slider, unpack, themeOf, onTheme, onWidth, sized, oncePerFrame, memoryText, sharedSelection } from "./common.js";
import { saveStatically } from "./saving.js";
import { topologyOf, placeOf, coreOf, replicaOf, along, pageOf, chipCorner, zoomed, coreOnPage, spaceOf, coreInSpace } from "./topology_geometry.js";
import { LIGHT_HEAT, DARK_HEAT, mixed, fillsOf } from "./topology_colours.js";
import { drawPlanes, neighbours } from "./topology_planes.js";
import { drawSpace } from "./topology_space.js";

const MOST_ZOOM = 40;

const CAMERAS = { planes: { zoom: 1, x: 0, y: 0 }, "3d": { zoom: 1, x: 0, y: 0, yaw: -0.62, pitch: 0.46 } };
const STEPS = { ArrowLeft: [-1, 0, 0], ArrowRight: [1, 0, 0], ArrowUp: [0, -1, 0], ArrowDown: [0, 1, 0],
  PageUp: [0, 0, -1], PageDown: [0, 0, 1] };
const COLOURS = [["host", "host"], ["replica", "replica"], ["logical", "logical device"], ["memory", "memory"],
  ["program", "compiled program"]];

/** One view of the model; what the user has set is the model's. */
class TopologyView {
  constructor(model, el) {
    this.model = model;
    this.root = rootOf(el, "topology", "TPU topology");
    this.title = element("h3", { class: "tpunb-title" });
    this.facts = element("div", { class: "tpunb-facts" });
    this.tools = element("div", { class: "tpunb-toolbar" });
    // Else JupyterLab takes the keys for commands: Enter would edit the cell.
    this.canvas = element("canvas", { tabindex: "0", role: "application", class: "tpunb-mesh",
      "data-lm-suppress-shortcuts": "true" });
    this.tip = element("div", { class: "tpunb-tip", hidden: true });
    this.spoken = element("div", { class: "tpunb-unseen", "aria-live": "polite" });
    this.legend = element("div", { class: "tpunb-legend" });
    this.root.append(this.title, this.facts, this.tools, this.canvas, this.legend, this.tip, this.spoken);
    this.width = 0;
    this.hover = -1;
    this.focus = -1;
    this.memory = { state: "", bytes: null, error: "" };
    this.draw = oncePerFrame(() => this.paint());
    this.rebuild = oncePerFrame(() => this.build());
    this.shared = sharedSelection(model, () => this.refresh());
    this.cleanups = [
      ...this.listen(),
      onTheme(() => this.retheme()),
      onWidth(this.root, (width) => {
        this.width = width;
        if (!this.theme.paper) this.retheme(); // it was made off the page, where there is no style
        this.paint();
      }),
      this.shared.stop, this.draw.cancel, this.rebuild.cancel,
    ];
    this.build();
  }

  /** Listens to the model and the canvas; returns a function that stops it. */
  listen() {
    const { model, canvas } = this;
    const heard = [
      ...["header", "cores"].map((name) => [`change:${name}`, () => this.rebuild()]),
      ...["mode", "colour", "plane"].map((name) => [`change:${name}`, () => this.settle()]),
      ["change:camera", () => this.adopt()],
      ["msg:custom", (content, buffers) => this.receive(content, buffers)],
    ];
    for (const [name, callback] of heard) model.on(name, callback);
    const events = {
      pointerdown: (event) => this.press(event), pointermove: (event) => this.move(event),
      pointerup: (event) => this.release(event), pointercancel: () => { this.drag = null; },
      pointerleave: () => this.point(-1), keydown: (event) => this.key(event),
      blur: () => { this.focus = -1; this.tell(); }, dblclick: () => this.reset(),
    };
    for (const [name, callback] of Object.entries(events)) canvas.addEventListener(name, callback);
    // Scrolling the page stays the page's: only with a key held it zooms.
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    return heard.map(([name, callback]) => () => model.off(name, callback));
  }

  stop() {
    for (const cleanup of this.cleanups) cleanup();
  }

  // -- What is shown

  get mode() {
    return this.topology.depth > 1 ? this.model.get("mode") : "planes";
  }

  get colours() {
    const { replicas, logical_devices, memory, usable } = this.topology;
    const there = { host: true, replica: replicas > 0, logical: logical_devices > 1, memory, program: usable > 0 };
    return COLOURS.filter(([name]) => there[name]);
  }

  get colour() {
    const wanted = this.model.get("colour");
    return this.colours.some(([name]) => name === wanted) ? wanted : "host";
  }

  get plane() {
    const plane = this.model.get("plane");
    return this.topology.depth > 1 && plane < this.topology.depth ? plane : -1;
  }

  get camera() {
    return this.cameras[this.mode];
  }

  get active() {
    return this.hover >= 0 ? this.hover : this.focus;
  }

  /** The core that the keyboard starts from. */
  get first() {
    return Math.max(0, coreOf(this.topology, 0, 0, Math.max(0, this.plane)));
  }

  set(name, value) {
    this.model.set(name, value);
    this.model.save_changes();
  }

  /** Takes a description from the model. */
  build() {
    this.topology = topologyOf(this.model);
    this.hover = -1;
    this.focus = -1;
    this.memory = { state: "", bytes: null, error: "" };
    const { name, facts, chips, count, hosts, replicas, logical_devices } = this.topology;
    this.title.textContent = name;
    this.facts.replaceChildren(...facts.map((line) => element("div", {}, line)));
    const numbers = { chips, cores: count, hosts, replicas, "logical-devices": logical_devices };
    for (const [key, value] of Object.entries(numbers)) this.root.setAttribute(`data-${key}`, value);
    this.canvas.setAttribute("aria-label", `Cores of ${name}. Arrow keys move along x and y, `
      + "Page Up and Page Down along z; Enter selects a core's replica, with Shift one more; "
      + "Escape clears; plus and minus zoom, Shift and arrow keys move or turn the view.");
    this.adopt();
    this.equip();
    this.settle();
  }

  /** Takes the camera from the model, as far as it makes sense. */
  adopt() {
    const kept = this.model.get("camera") ?? {};
    const sound = (name) => Object.fromEntries(Object.entries(CAMERAS[name]).map(([part, value]) =>
      [part, Number.isFinite(kept[name]?.[part]) ? kept[name][part] : value]));
    this.cameras = { planes: sound("planes"), "3d": sound("3d") };
    for (const camera of Object.values(this.cameras)) camera.zoom = Math.max(1, Math.min(MOST_ZOOM, camera.zoom));
    this.draw();
  }

  /** Makes the controls that this topology needs. */
  equip() {
    const { depth } = this.topology;
    const setMode = (mode) => () => this.set("mode", mode);
    this.modes = { planes: button("Planes", "Show the planes beside each other", setMode("planes")),
      "3d": button("3D", "Show the mesh in space, to be turned", setMode("3d")) };
    const modes = element("span", { class: "tpunb-group", role: "group", "aria-label": "Projection" },
      this.modes.planes, this.modes["3d"]);
    this.planes = slider("z", { min: -1, max: depth - 1, value: this.plane,
      show: (z) => (z < 0 ? "all" : String(z)) }, (z) => this.set("plane", z));
    this.choice = choice("Colour by", this.colours, this.colour, (value) => this.set("colour", value));
    this.zooms = [
      button("−", "Zoom out", () => this.zoomBy(1 / 1.5)),
      button("+", "Zoom in", () => this.zoomBy(1.5)),
      button("Reset", "Show the whole mesh again", () => this.reset()),
    ];
    const zooms = element("span", { class: "tpunb-group", role: "group", "aria-label": "Zoom" }, ...this.zooms);
    this.tools.replaceChildren(...(depth > 1 ? [modes, this.planes] : []),
      ...(this.colours.length > 1 ? [this.choice] : []), zooms);
  }

  /** Follows the settings that the model has. */
  settle() {
    for (const [mode, node] of Object.entries(this.modes)) node.setAttribute("aria-pressed", String(mode === this.mode));
    if (Number(this.planes.input.value) !== this.plane) this.planes.set(this.plane);
    this.choice.select.value = this.colour;
    const { root } = this;
    root.setAttribute("data-mode", this.mode);
    root.setAttribute("data-colour", this.colour);
    root.setAttribute("data-plane", this.plane < 0 ? "all" : this.plane);
    if (this.colour === "memory" && this.memory.state === "") this.ask();
    this.hover = -1;
    this.tell();
    this.retheme();
  }

  retheme() {
    this.theme = themeOf(this.root);
    this.pales = new Map();
    this.recolour();
  }

  recolour() {
    this.fills = fillsOf(this.topology, this.colour, this.theme, this.memory.bytes);
    this.explain();
    this.refresh();
  }

  /** Follows the selection. */
  refresh() {
    const known = this.topology.replicas || this.topology.count;
    this.selected = new Set(this.model.get("selected").filter((replica) => replica >= 0 && replica < known));
    this.chosen = new Set();
    for (let core = 0; this.selected.size && core < this.topology.count; core += 1) {
      if (this.selected.has(replicaOf(this.topology, core))) this.chosen.add(core);
    }
    this.root.setAttribute("data-selected", [...this.selected].join(","));
    this.clear.hidden = !this.selected.size;
    const word = this.topology.replicas ? "replica" : "core";
    this.clear.textContent = this.selected.size === 1 ? `Deselect ${word} ${[...this.selected][0]}`
      : `Deselect ${this.selected.size} ${word}s`;
    this.draw();
  }

  paint() {
    if (!this.width) return;
    const { topology, theme, fills, chosen, active, plane, camera } = this;
    const dimmed = (core) => chosen.size > 0 && !chosen.has(core);
    const solid = (core) => !dimmed(core) && (plane < 0 || placeOf(topology, core)[2] === plane);
    const pale = (colour, core) => (dimmed(core) ? this.paled(colour) : colour);
    const fillOf = (core) => pale(fills[core], core);
    this.look = { topology, theme, fills, fillOf, pale, chosen, active, dimmed, solid };
    const inner = this.width - 2;
    if (this.mode === "3d") this.look.space = spaceOf(topology, camera, inner);
    else {
      this.look.page = pageOf(topology, plane, inner);
      this.look.view = zoomed(this.look.page, camera);
    }
    const { width, height } = this.look.space ?? this.look.page;
    const context = this.sized(width, height);
    context.fillStyle = theme.paper;
    context.fillRect(0, 0, width, height);
    const level = this.look.space ? drawSpace(context, this.look) : drawPlanes(context, this.look);
    this.root.setAttribute("data-level", level);
    this.root.setAttribute("data-zoom", camera.zoom.toFixed(2));
    this.zooms[0].disabled = camera.zoom <= 1;
    this.zooms[1].disabled = camera.zoom >= MOST_ZOOM;
    this.canvas.style.touchAction = this.look.space || camera.zoom > 1 ? "none" : "pan-y";
    this.canvas.style.cursor = this.active >= 0 ? "pointer" : this.look.space || camera.zoom > 1 ? "grab" : "default";
  }

  /** The faded colour of a core that is not selected. */
  paled(colour) {
    if (!this.pales.has(colour)) this.pales.set(colour, mixed(colour, this.theme.paper, 0.8));
    return this.pales.get(colour);
  }

  /** The canvas's context; sizing a canvas anew costs more than clearing it. */
  sized(width, height) {
    const key = `${width} ${height} ${window.devicePixelRatio}`;
    if (this.size !== key) this.context = sized(this.canvas, width, height);
    this.size = key;
    return this.context;
  }

  // -- The legend

  /** Says what the colours stand for. */
  explain() {
    const ways = { memory: () => this.scale(), program: () => this.need() };
    const parts = (ways[this.colour] ?? (() => this.swatches()))();
    this.clear ??= element("button", { type: "button", class: "tpunb-button", hidden: true,
      "data-testid": "tpunb-clear", click: () => this.shared.select([]) });
    const hint = this.mode === "3d" ? "Drag turns · click selects · Ctrl and wheel zoom"
      : "Click selects, with Shift more · Ctrl and wheel zoom";
    this.legend.replaceChildren(...parts, element("span", { class: "tpunb-space" }), this.clear,
      element("span", { class: "tpunb-hint" }, hint));
    this.root.setAttribute("data-memory", this.memory.state);
  }

  swatches() {
    const { topology, theme } = this;
    const kind = this.colour;
    const counts = { host: topology.hosts, replica: topology.replicas, logical: topology.logical_devices };
    const shades = { host: topology.host_shade, replica: topology.replica_shade };
    const word = { host: "host", replica: "replica", logical: "logical device" }[kind];
    const swatch = (colour, text) => element("span", { class: "tpunb-swatch" },
      element("i", { style: `background:${colour}` }), text);
    const idle = topology.replica?.some((replica) => replica < 0);
    const rest = idle ? [swatch(theme.dark ? "#4b5157" : theme.idle, "unassigned")] : [];
    if (kind === "host" && topology.logical_devices > 1) {
      rest.push(element("span", {}, "later logical devices fainter"));
    }
    if (counts[kind] > PALETTE.length) {
      return [element("span", {}, `${groups(counts[kind])} ${word}s, neighbours in different colours`), ...rest];
    }
    const list = Array.from({ length: counts[kind] }, (_, number) =>
      swatch(PALETTE[shades[kind]?.[number] ?? number % PALETTE.length], `${word} ${number}`));
    return [...list, ...rest];
  }

  /** The heat's scale with its numbers, or why there are none. */
  scale() {
    const { state, bytes, error } = this.memory;
    const refresh = button("Refresh", "Ask again what variables hold", () => this.ask());
    const says = { waiting: "Waiting for the kernel …", failed: `No answer: ${error}` }[state];
    const status = says ? [element("span", { class: "tpunb-status", role: "status" }, says)] : [];
    if (!bytes) return [...status, refresh];
    const stops = this.theme.dark ? DARK_HEAT : LIGHT_HEAT;
    const [least, most] = bytes.reduce(([a, b], size) => [Math.min(a, size), Math.max(b, size)], [Infinity, 0]);
    const even = least === most ? " · the same on every core" : ` · least ${memoryText(least)}`;
    return [
      element("span", {}, "0 B"),
      element("span", { class: "tpunb-scale", style: `background:linear-gradient(90deg, ${stops.join(", ")})` }),
      element("span", {}, `${memoryText(most)}${this.share(most)}${even}`), refresh, ...status,
    ];
  }

  /** The heat's scale from nothing to all that a program can use, and what this one needs. */
  need() {
    const { needed, usable, hbm } = this.topology;
    const stops = this.theme.dark ? DARK_HEAT : LIGHT_HEAT;
    const over = needed > usable ? ` · ${memoryText(needed - usable)} too much` : "";
    return [
      element("span", {}, "0 B"),
      element("span", { class: "tpunb-scale", style: `background:linear-gradient(90deg, ${stops.join(", ")})` }),
      element("span", {}, `${memoryText(usable)} usable${hbm ? ` of ${memoryText(hbm)}` : ""}`),
      element("b", {}, `needs ${memoryText(needed)}${over}`),
    ];
  }

  /** Bytes as a share of a core's memory, where that is known. */
  share(bytes) {
    if (!this.topology.hbm) return "";
    const share = 100 * bytes / this.topology.hbm;
    const text = share > 0 && share < 0.01 ? "less than 0.01" : String(Number(share.toPrecision(3)));
    return ` · ${text}% of ${memoryText(this.topology.hbm)}`;
  }

  /** Asks the kernel without waiting: it may be busy. */
  ask() {
    this.memory.state = "waiting";
    this.explain();
    this.model.send({ request: "memory" });
  }

  receive(content, buffers) {
    if (!content || !("memory" in content)) return;
    if (content.memory) {
      const { bytes } = unpack(content.memory, buffers[0]);
      // An answer may be older than the description.
      if (bytes.length !== this.topology.count) return;
      this.memory = { state: "ready", bytes, error: "" };
    } else this.memory = { ...this.memory, state: "failed", error: String(content.error) };
    this.recolour();
    this.tell();
  }

  // -- Pointing

  coreAt(event) {
    if (!this.look) return -1;
    const box = this.canvas.getBoundingClientRect();
    const at = [event.clientX - box.left - this.canvas.clientLeft, event.clientY - box.top - this.canvas.clientTop];
    const { topology, space, page, view } = this.look;
    if (!space) return coreOnPage(topology, page, view.page(at));
    const there = (core) => (space.large ? this.look.solid(core)
      : this.plane < 0 || placeOf(topology, core)[2] === this.plane);
    return coreInSpace(topology, space, at, there);
  }

  /** Points at a core; -1 at none. */
  point(core) {
    if (core === this.hover) return;
    this.hover = core;
    this.tell();
  }

  /** Shows and announces the core that is pointed at or has the focus. */
  tell() {
    const { active, tip, topology } = this;
    this.root.setAttribute("data-hover", active < 0 ? "" : active);
    tip.hidden = active < 0;
    const [head, ...lines] = active < 0 ? [""] : this.linesAbout(active);
    tip.replaceChildren(element("strong", {}, head), ...lines.map((line) => element("div", {}, line)));
    this.spoken.textContent = [head, ...lines].join(", ");
    if (active >= 0 && this.look) this.placeTip(placeOf(topology, active));
    this.draw();
  }

  linesAbout(core) {
    const { topology } = this;
    const { replica, logical, logical_devices, host, ordinal, perChip, hbm, needed, usable } = topology;
    const [x, y, z, slot] = placeOf(topology, core);
    const lines = [`Core ${core}`, `chip (${x}, ${y}, ${z})${perChip > 1 ? `, core ${slot} of it` : ""}`,
      `host ${host[core]}, TPU:${ordinal[core]}`,
      `/job:worker/replica:0/task:${host[core]}/device:TPU:${ordinal[core]}`];
    if (replica && replica[core] < 0) lines.push("in no replica");
    else if (replica) lines.push(`replica ${replica[core]}${logical_devices > 1 ? `, logical device ${logical[core]}` : ""}`);
    if (hbm) lines.push(`HBM ${memoryText(hbm)}${usable ? `, ${memoryText(usable)} usable` : ""}`);
    if (usable && !(replica?.[core] < 0)) lines.push(`program needs ${memoryText(needed)}`);
    const { bytes } = this.memory;
    if (bytes && this.colour === "memory") lines.push(`variables ${memoryText(bytes[core])}${this.share(bytes[core])}`);
    return lines;
  }

  /** Puts the tip beside a chip, and the next one if there is one, inside of the widget. */
  placeTip(place) {
    const { canvas, tip, look, root } = this;
    const size = look.space ? look.space.scale : look.page.pitch * look.view.zoom;
    const corner = look.space ? look.space.project(...place.slice(0, 3)) : chipCorner(look.page, place);
    if (!corner) return;
    const at = look.space ? corner.map((part) => part - size / 2) : look.view.screen(corner);
    const next = coreOf(look.topology, place[0] + 1, place[1], place[2]) >= 0;
    const reach = (next ? Math.min(size, 90) : 0) + 10;
    const [left, top] = [canvas.offsetLeft + at[0], canvas.offsetTop + at[1]];
    const right = left + size + reach;
    const fits = right + tip.offsetWidth <= root.clientWidth;
    tip.style.left = `${Math.max(0, fits ? right : left - reach - tip.offsetWidth)}px`;
    tip.style.top = `${Math.max(0, Math.min(top, canvas.offsetTop + canvas.offsetHeight - tip.offsetHeight))}px`;
  }

  press(event) {
    if (event.button !== 0) return;
    this.drag = { x: event.clientX, y: event.clientY, camera: { ...this.camera }, far: false };
    this.canvas.setPointerCapture?.(event.pointerId);
  }

  move(event) {
    if (!this.drag) {
      this.point(this.coreAt(event));
      return;
    }
    const [across, down] = [event.clientX - this.drag.x, event.clientY - this.drag.y];
    this.drag.far ||= Math.hypot(across, down) > 4;
    if (!this.drag.far) return;
    this.point(-1);
    this.shift(this.drag.camera, across, down, this.mode === "3d" && !event.shiftKey);
  }

  release(event) {
    const { drag } = this;
    this.drag = null;
    if (!drag) return;
    if (drag.far) {
      this.keep();
      return;
    }
    this.focus = -1;
    this.choose(this.coreAt(event), event.shiftKey || event.ctrlKey || event.metaKey);
  }

  /** Selects a core's replica, alone or with others; again takes it back. */
  choose(core, more) {
    const replica = core < 0 ? -1 : replicaOf(this.topology, core);
    if (replica < 0) {
      if (core < 0 && !more && this.selected.size) this.shared.select([]);
      return;
    }
    const there = this.selected.has(replica);
    const others = more ? [...this.selected].filter((other) => other !== replica) : [];
    const next = there && (more || this.selected.size === 1) ? others : [...others, replica];
    this.shared.select(next.sort((a, b) => a - b));
  }

  // -- The camera

  /** Turns or moves the view by so many pixels from where it was. */
  shift(from, across, down, turns) {
    const { camera } = this;
    if (turns) {
      camera.yaw = from.yaw + across * 0.008;
      camera.pitch = Math.max(-1.4, Math.min(1.4, from.pitch + down * 0.008));
    } else {
      const unit = this.look.space ? this.look.space.scale : this.look.page.pitch * camera.zoom;
      camera.x = from.x + across / unit;
      camera.y = from.y + down / unit;
    }
    this.bound();
    this.draw();
  }

  /** Keeps the mesh in sight: only what is larger than the view can be moved. */
  bound() {
    const { camera, look } = this;
    const { width, height } = look.space ?? look.page;
    const unit = look.space ? look.space.fit : look.page.pitch;
    for (const [part, side] of [["x", width], ["y", height]]) {
      const most = (side / 2) * (1 - 1 / camera.zoom) / unit;
      camera[part] = Math.max(-most, Math.min(most, camera[part])) + 0;
    }
  }

  /** Zooms around a point of the canvas, by default its middle. */
  zoomBy(factor, at = null) {
    if (!this.look) return;
    const { camera, look } = this;
    const { width, height } = look.space ?? look.page;
    const before = camera.zoom;
    camera.zoom = Math.max(1, Math.min(MOST_ZOOM, before * factor));
    const unit = look.space ? look.space.fit : look.page.pitch;
    const [x, y] = at ?? [width / 2, height / 2];
    camera.x += ((x - width / 2) / unit) * (1 / camera.zoom - 1 / before);
    camera.y += ((y - height / 2) / unit) * (1 / camera.zoom - 1 / before);
    this.bound();
    this.point(-1);
    this.keep();
  }

  wheel(event) {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    this.zoomBy(Math.exp(-event.deltaY * 0.0025), [event.offsetX, event.offsetY]);
  }

  reset() {
    this.cameras[this.mode] = { ...CAMERAS[this.mode] };
    this.keep();
  }

  /** Draws, and lets the model remember the camera. */
  keep() {
    const rounded4 = (camera) => Object.fromEntries(Object.entries(camera).map(([part, value]) =>
      [part, Math.round(value * 1e4) / 1e4]));
    this.set("camera", { planes: rounded4(this.cameras.planes), "3d": rounded4(this.cameras["3d"]) });
    this.draw();
  }

  // -- The keyboard

  key(event) {
    const step = STEPS[event.key];
    const actions = {
      Enter: () => this.choose(this.active, event.shiftKey), " ": () => this.choose(this.active, event.shiftKey),
      Escape: () => this.leave(), "+": () => this.zoomBy(1.5), "=": () => this.zoomBy(1.5),
      "-": () => this.zoomBy(1 / 1.5), 0: () => this.reset(),
      Home: () => this.focusOn(0), End: () => this.focusOn(this.topology.count - 1),
    };
    if (event.ctrlKey || event.metaKey || event.altKey || (!step && !actions[event.key])) return;
    event.preventDefault();
    event.stopPropagation();
    if (!step) actions[event.key]();
    else if (event.shiftKey && !step[2] && this.look) {
      this.shift({ ...this.camera }, step[0] * 30, step[1] * 30, this.mode === "3d");
      this.keep();
    } else this.focusOn(this.next(this.active < 0 ? this.first : this.active, step));
  }

  /** The next core along an axis, over places where there is none; the same at the end. */
  next(core, [right, down, back]) {
    let [x, y, z, slot] = placeOf(this.topology, core);
    const { perChip, width, height, depth } = this.topology;
    for (let tries = 0; tries < Math.max(width, height, depth) * perChip; tries += 1) {
      slot += right;
      if (slot < 0 || slot >= perChip) {
        x += right;
        slot = right > 0 ? 0 : perChip - 1;
      }
      y += down;
      z += back;
      const found = coreOf(this.topology, x, y, z, slot);
      if (found >= 0) return found;
    }
    return core;
  }

  /** Moves the focus to a core, and the view so that it can be seen. */
  focusOn(core) {
    this.hover = -1;
    this.focus = core;
    const z = placeOf(this.topology, core)[2];
    if (this.plane >= 0 && this.plane !== z) {
      this.set("plane", z);
      this.paint();
    }
    this.reveal(core);
    this.tell();
  }

  reveal(core) {
    const { look, camera } = this;
    if (!look?.page || camera.zoom <= 1) return;
    const corner = chipCorner(look.page, placeOf(this.topology, core));
    if (!corner) return;
    const size = look.page.pitch * camera.zoom;
    const at = look.view.screen(corner);
    const sides = [look.page.width, look.page.height];
    ["x", "y"].forEach((part, axis) => {
      const hidden = at[axis] < 0 || at[axis] + size > sides[axis];
      if (hidden) camera[part] += (sides[axis] / 2 - at[axis] - size / 2) / size;
    });
    this.bound();
    this.paint();
  }

  /** Clears the selection first, then the focus. */
  leave() {
    if (this.selected.size) this.shared.select([]);
    else {
      this.focus = -1;
      this.tell();
    }
  }
}

export default {
  initialize({ model }) { saveStatically(model); },
  render({ model, el }) {
    const view = new TopologyView(model, el);
    return () => view.stop();
  },
};
