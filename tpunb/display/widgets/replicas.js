// The replicas' values: a tree of the parts, and a panel for each replica.

import { element, groups, keep, listen, numberText, onTheme, onWidth, oncePerFrame, rootOf, sharedSelection, themeOf, tipOf } from "./common.js";
import { indexText, matrixOf, readSections, replicaAt } from "./replicas_data.js";
import { CURVE_LEFT, cellAt, colourScale, curveColours, heatPicture, imagePicture, paintCurves, paintHistogram, paintPicture, paintScale } from "./replicas_drawing.js";
import { numbersTable, tableColumns } from "./replicas_numbers.js";
import { kernelViews, requestFor, sceneFor, settingsOf } from "./replicas_scene.js";
import { MeanStrip, hasStrip } from "./replicas_strip.js";
import { statisticsTable } from "./replicas_table.js";
import { differenceText, elementText, factsText, oddText, rangeText, statisticsParts, valueText } from "./replicas_texts.js";
import { saveStatically } from "./saving.js";
import { makeSortable } from "./sorting.js";
import { toolbarOf } from "./replicas_toolbar.js";
import { partsTree } from "./replicas_tree.js";

const MOST_TOLD = 12;
const CURVE_HEIGHT = 250;

const SETTINGS = ["section", "view", "mode", "reference", "page", "order", "slices"].map((name) => `change:${name}`);

function render({ model, el }) {
  const root = rootOf(el, "replicas", "What each replica holds");
  const view = new ReplicasView(model, root);
  return () => view.stops.forEach((stop) => stop());
}

class ReplicasView {
  constructor(model, root) {
    this.model = model;
    this.root = root;
    this.page = element("div", { class: "tpunb-replicas-page" });
    root.append(this.page);
    this.tip = tipOf(root);
    this.request = oncePerFrame(() => this.draw());
    this.repaint = oncePerFrame(() => this.paint());
    this.kernel = kernelViews(model, this.request);
    this.selection = sharedSelection(model, () => this.markSelected());
    this.stops = [this.selection.stop, this.kernel.stop, this.request.cancel, this.repaint.cancel,
      listen(model, ["change:header", "change:data"], () => this.read()),
      listen(model, SETTINGS, this.request),
      onTheme(() => this.draw()), onWidth(this.page, () => this.draw())];
    this.read();
    this.request.cancel();
    // A root outside the page has no width; a single column of panels would make the page jump.
    if (this.root.clientWidth > 0) this.draw();
  }

  /** Take a value from the model. */
  read() {
    const header = this.model.get("header");
    this.sections = readSections(header, this.model.get("data"));
    this.placement = header.placement ? placementOf(header.placement, this.placement) : null;
    this.kernel.forget();
    this.scene = null;
    this.request();
  }

  set(name, value) {
    keep(this.model, name, value);
  }

  /** Rebuild everything from the model; the focus stays on the same control. */
  draw() {
    this.request.cancel();
    const header = this.model.get("header");
    this.theme = themeOf(this.root);
    this.root.classList.toggle("tpunb-replicas-dark", this.theme.dark);
    this.cursor = null;
    this.tip.hide();
    const focused = this.root.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    const dragging = focused?.startsWith("slice");
    if (!this.sections.length) {
      this.page.replaceChildren(...[headingOf(header), this.placement,
        element("p", { class: "tpunb-facts" }, header.unread || "empty")].filter(Boolean));
      this.describe(null, false);
      return;
    }
    this.settings = settingsOf(this.model, this.sections);
    const { section } = this.settings;
    const { answer, busy } = this.kernel.ask(requestFor(this.settings, header.live));
    const [scene, error] = this.sceneOr(answer);
    // While the kernel computes, the old panels stay if they are of the same kind.
    const { number, mode, view } = this.settings;
    const kind = [number, mode, view].join();
    this.stale = !scene && busy && kind === this.kind;
    if (!this.stale) this.scene = scene;
    this.kind = kind;
    this.busy = busy;
    this.body = element("div", { class: "tpunb-replicas-body" });
    const controls = dragging && this.controls ? this.controls : toolbarOf(this.settings, (trait, value) => this.set(trait, value));
    this.controls = controls;
    this.strip = hasStrip(this.settings) ? this.stripOf(section) : null;
    const main = element("div", { class: "tpunb-replicas-main" },
      this.sectionHeading(section), controls, this.strip?.node, this.body);
    this.page.replaceChildren(...[headingOf(header), this.placement,
      element("div", { class: "tpunb-replicas-columns" }, this.tree(header), main)].filter(Boolean));
    this.fill(error);
    this.describe(this.settings, busy);
    if (focused) this.refocus(focused);
  }

  /** Return the scene or null, and an error message or an empty text. */
  sceneOr(answer) {
    if (answer?.error) return [null, answer.error];
    if (!this.settings.section.drawable) return [null, ""];
    try {
      return [sceneFor(this.settings, answer), ""];
    } catch (error) {
      return [null, error.message];
    }
  }

  refocus(key) {
    const node = this.root.querySelector(`[data-key="${CSS.escape(key)}"]`);
    if (node !== document.activeElement) node?.focus({ preventScroll: true });
  }

  describe(settings, busy) {
    const header = this.model.get("header");
    const facts = {
      replicas: header.replicas, sections: header.sections.length, section: settings?.number ?? "",
      view: settings?.view ?? "", mode: settings?.mode ?? "", equal: settings?.section.equal ?? "",
      selected: this.model.get("selected").join(","), busy,
    };
    for (const [name, value] of Object.entries(facts)) this.root.setAttribute(`data-${name}`, value);
    this.root.setAttribute("aria-busy", String(busy));
  }

  tree(header) {
    this.folded ??= new Set();
    return partsTree(this.sections, { current: this.settings.number, folded: this.folded,
      omitted: header.omitted, onChoose: (number) => this.set("section", number) });
  }

  stripOf(section) {
    return new MeanStrip(section, { tell: (text, at) => this.tell(text, at), quiet: () => this.tip.hide(),
      repaint: this.repaint, onSelect: (place, more) => this.toggleSelected(place, more) });
  }

  sectionHeading(section) {
    const parts = [this.sections.length > 1 ? section.path : "", section.name,
      section.distributed && section.type !== "PerReplica" ? section.type : "", section.facts];
    return element("div", { class: "tpunb-replicas-heading" },
      element("span", { class: "tpunb-replicas-what" }, parts.filter(Boolean).join(" · ")), equality(section));
  }

  // The panels.

  fill(error) {
    const { section, view } = this.settings;
    const { body, scene } = this;
    this.controls.status.textContent = this.busy ? "computing…" : "";
    this.paints = [];
    this.panelNodes = [];
    body.className = `tpunb-replicas-body tpunb-replicas-${view}`;
    body.classList.toggle("tpunb-replicas-stale", this.stale);
    if (error) body.append(element("p", { class: "tpunb-replicas-error", role: "alert" }, error));
    else if (view === "table") this.fillTable(section);
    else if (view === "text") this.fillTexts(section);
    else if (!scene) body.append(element("p", { class: "tpunb-facts" }, this.busy ? "computing…" : "Run the cell again to see this."));
    else this.fillPanels(section, scene, view);
    this.markSelected();
    this.paint();
  }

  fillTable(section) {
    const { node, rows } = statisticsTable(section, {
      order: this.settings.order, onOrder: (order) => this.set("order", order),
      onSelect: (place, more) => this.toggleSelected(place, more),
    });
    this.body.append(node);
    this.panelNodes = rows;
  }

  fillTexts(section) {
    const grid = this.grid(section.texts.length);
    section.texts.forEach((texts, place) => {
      const label = section.equal ? `all ${groups(section.count)} replicas` : section.distributed ? `replica ${replicaAt(section, place)}` : "";
      const list = element("ol", { class: "tpunb-replicas-texts" }, ...texts.map((text) => element("li", {}, text)));
      grid.append(this.panelNode({ place, label, statistics: null }, list, texts.join(", ")));
    });
    this.body.append(grid);
    const more = section.equal ? 0 : section.count - section.texts.length;
    if (more > 0) this.note(`first ${section.texts.length} of ${groups(section.count)} replicas`);
  }

  fillPanels(section, scene, view) {
    if (view === "curves") this.fillCurves(scene);
    else if (view === "numbers") this.fillNumbers(section, scene);
    else this.fillPictures(section, scene, view);
    if (view === "heat") this.legend(scene);
    for (const text of this.notes(section, scene, view)) this.note(text);
  }

  notes(section, scene, view) {
    const [panel] = scene.panels;
    const notes = [];
    if (panel?.sampled && view !== "histogram") notes.push(panel.sampled);
    if (!scene.exact && !this.busy && (this.settings.mode !== "values" || view === "histogram")) notes.push("computed from the elements drawn");
    if (panel?.kind === "images" && section.shape?.length === 4 && panel.sides[0] < section.shape[0] && this.settings.mode !== "gather") {
      notes.push(`first ${panel.sides[0]} of ${section.shape[0]} images`);
    }
    return notes;
  }

  note(text) {
    this.body.append(element("p", { class: "tpunb-replicas-note" }, text));
  }

  /** Return the list of the panels; arrow keys move between them. */
  grid(count, columns = 0, width = 0) {
    const grid = element("div", { class: "tpunb-replicas-grid", role: "listbox", "aria-multiselectable": "true",
      "aria-label": "replicas", keydown: (event) => this.keyOnPanels(event) });
    this.panelWidth = width || Infinity;
    if (columns) grid.style.gridTemplateColumns = `repeat(${columns}, ${width}px)`;
    return grid;
  }

  panelNode(panel, content, text) {
    const at = this.panelNodes.length;
    const { statistics, label, place } = panel;
    const node = element("div", {
      class: "tpunb-replicas-panel", role: "option", tabindex: at === (this.focusAt ?? 0) ? 0 : -1,
      "data-key": `panel${place}`, "data-place": place, "aria-label": [label, text].filter(Boolean).join(": "),
      click: (event) => this.toggleSelected(place, event.ctrlKey || event.metaKey || event.shiftKey),
      focus: () => { this.focusAt = at; },
    }, label ? element("div", { class: "tpunb-replicas-caption" }, element("strong", {}, label), this.comparison(place)) : null, content);
    if (statistics) node.append(...this.facts(panel));
    node.place = place;
    this.panelNodes.push(node);
    return node;
  }

  comparison(place) {
    const { section, mode } = this.settings;
    const { differs } = section.columns;
    if (!differs || mode !== "values" || section.equal || place < 0) return null;
    const id = replicaAt(section, 0);
    const short = this.panelWidth < 160 ? `r${id}` : `replica ${id}`;
    if (section.marks_differing && differs[place]) return element("span", { class: "tpunb-replicas-differs", title: `differs from replica ${id}` }, `≠ ${short}`);
    if (place && !section.marks_differing && !differs[place]) return element("span", { class: "tpunb-replicas-same", title: `equal to replica ${id}` }, `= ${short}`);
    return null;
  }

  facts(panel) {
    const { mode, section, view } = this.settings;
    const single = panel.data?.length === 1 && view === "numbers";
    const { mean } = panel.statistics;
    const narrow = this.panelWidth < 150 && !Number.isNaN(mean) && !panel.boolean;
    const lines = mode === "difference" ? [differenceText(panel)] : single ? []
      : narrow ? [`mean ${numberText(mean)}`] : statisticsParts(panel.statistics, panel).flatMap((part) => [element("span", {}, part), " "]);
    const odd = oddText(panel.statistics);
    // A sparse or ragged tensor shows only the values that are set. The note tells how many, and of
    // what.
    const note = mode === "values" && view === "numbers" && section.texts[Math.max(0, panel.place)]?.[0];
    return [note ? element("div", { class: "tpunb-replicas-facts" }, note) : null,
      lines.length ? element("div", { class: "tpunb-replicas-facts", title: factsText(panel) }, ...lines) : null,
      odd ? element("div", { class: "tpunb-replicas-odd" }, odd) : null].filter(Boolean);
  }

  fillNumbers(section, scene) {
    const { panels } = scene;
    const single = panels.every((panel) => panel.data.length === 1);
    const texts = panels.map((panel) => [...panel.data].map((value, at) => panel.exact?.[at] ?? elementText(value, panel, single)));
    const across = Math.max(...panels.map((panel) => tableColumns(panel)));
    const longest = widest(texts.flat(), `${single ? "500 20px" : "12px"} ${this.theme.font}`);
    // The panel's padding and border, and a pixel for rounding, as in the style sheet.
    const wanted = 21 + (single ? Math.max(92, longest) : Math.max(104, across * (Math.max(29, longest) + 13)));
    const room = this.room();
    const width = Math.min(room, wanted);
    const most = Math.max(1, Math.min(panels.length, Math.floor((room + 10) / (width + 10))));
    // Choose the columns so that the last row is not almost empty.
    const columns = panels.length > 3 * most ? most : Math.ceil(panels.length / Math.ceil(panels.length / most));
    const grid = this.grid(panels.length, columns, Math.floor(width));
    const first = panels.find((panel) => panel.place === 0);
    panels.forEach((panel, number) => {
      const news = this.settings.mode === "values" && !section.equal && panel.place > 0 && first;
      const unlike = (at) => news && !Object.is(first.data[at] + 0, panel.data[at] + 0) && first.data.length === panel.data.length;
      const content = single
        ? element("div", { class: "tpunb-replicas-single" }, texts[number][0])
        : numbersTable(panel, texts[number], unlike);
      grid.append(this.panelNode(panel, content, texts[number].join(", ")));
    });
    this.body.append(grid);
  }

  fillPictures(section, scene, view) {
    const { panels } = scene;
    const colours = view === "heat" ? colourScale(scene.limits, scene) : null;
    const most = scene.counts ? Math.max(1, ...scene.counts.map((counts) => Math.max(...counts))) : 0;
    const ratios = panels.map((panel) => ratioOf(panel, view));
    const { columns, width } = this.columnsFor(panels.length, view);
    const grid = this.grid(panels.length, columns, width);
    const tallest = Math.max(...ratios);
    panels.forEach((panel, at) => {
      const ratio = view === "images" ? ratios[at] : tallest;
      const high = panel.parts ? 1.35 : 1.2;
      const height = Math.round(width * Math.min(high, Math.max(0.12, ratio)));
      const canvas = element("canvas", { "aria-hidden": "true" });
      const picture = view === "heat" ? heatPicture(matrixOf(panel), colours) : view === "images" ? imagePicture(panel) : null;
      const counts = scene.counts?.[at];
      this.paints.push(() => {
        const { cursor, theme } = this;
        if (counts) paintHistogram(canvas, counts, { width, height, most, cursor, theme });
        else paintPicture(canvas, picture, { width, height, cursor, parts: panel.parts, theme });
      });
      this.follow(canvas, panel, (x, y) => (counts
        ? { row: 0, column: Math.min(counts.length - 1, Math.max(0, Math.floor((x / width) * counts.length))) }
        : cellAt(panel, x, y, width, height)));
      const content = counts ? element("div", {}, canvas, endsOf(scene.range, panel.integral)) : canvas;
      grid.append(this.panelNode(panel, content, factsText(panel)));
    });
    this.body.append(grid);
    if (view === "histogram") this.note(`from ${numberText(scene.range[0])} to ${numberText(scene.range[1])}, the same ${scene.counts[0]?.length ?? 0} ranges everywhere; the highest bar has ${groups(most)} elements`);
  }

  room() {
    return Math.max(160, ((this.body.isConnected && this.body.clientWidth) || this.root.clientWidth) - 8);
  }

  columnsFor(count, view) {
    const room = this.room();
    const gap = 12;
    const wished = count <= 4 ? count : Math.min(8, Math.ceil(Math.sqrt(1.5 * count)));
    const least = count > 16 ? 84 : 130;
    const columns = Math.max(1, Math.min(wished, Math.floor((room + gap) / (least + gap))));
    const most = view === "images" ? 300 : count === 1 ? 460 : 270;
    return { columns, width: Math.floor(Math.min(most, (room - (columns - 1) * gap) / columns)) };
  }

  fillCurves(scene) {
    const { panels } = scene;
    const width = this.room();
    const canvas = element("canvas", { tabindex: 0, role: "img", "data-key": "curves",
      "aria-label": `${panels.length} curves; arrow keys tell the values`,
      keydown: (event) => this.keyOnCurves(event, panels) });
    const colours = curveColours(panels.length, this.theme.dark);
    const last = panels[0].shape ? Math.max(0, panels[0].shape.reduce((total, side) => total * side, 1) - 1) : panels[0].data.length - 1;
    this.paints.push(() => paintCurves(canvas, panels, { width, height: CURVE_HEIGHT, cursor: this.cursor,
      chosen: this.chosenPlaces(), colours, last, theme: this.theme }));
    const points = panels[0].data.length;
    this.follow(canvas, panels[0], (x) => {
      const place = Math.round(((x - CURVE_LEFT) / (width - CURVE_LEFT - 8)) * (points - 1));
      return { row: 0, column: Math.min(points - 1, Math.max(0, place)) };
    });
    this.body.append(element("div", { class: "tpunb-replicas-chart" }, canvas));
    const grid = this.grid(panels.length);
    grid.classList.add("tpunb-replicas-key");
    panels.forEach((panel, at) => {
      const node = this.panelNode(panel, null, factsText(panel));
      node.prepend(element("span", { class: "tpunb-replicas-swatch", style: `background: ${colours[at]}` }));
      grid.append(node);
    });
    this.body.append(grid);
  }

  legend(scene) {
    const scale = colourScale(scene.limits, scene);
    const canvas = element("canvas", { role: "img", "aria-label": "colour scale" });
    paintScale(canvas, scale, 220, 12);
    const swatch = (colour, text) => element("span", { class: "tpunb-replicas-swatched" },
      element("span", { class: "tpunb-replicas-swatch", style: `background: ${colour}` }), text);
    const has = (name) => scene.panels.some((panel) => panel.statistics?.[name]);
    const [low, high] = [scale.from, scale.to].map((end) => numberText(end, scene.panels[0]?.integral));
    this.body.append(element("div", { class: "tpunb-replicas-legend" }, element("span", {}, low), canvas,
      element("span", {}, high), has("nans") ? swatch(NAN_COLOUR, "NaN") : null, has("infs") ? swatch(INF_COLOUR, "Inf") : null));
  }

  paint() {
    for (const paint of this.paints ?? []) paint();
    this.strip?.paint(this.chosenPlaces(), this.theme);
  }

  // The cursor, which is at the same element on all panels.

  follow(canvas, panel, locate) {
    canvas.addEventListener("pointermove", (event) => {
      const box = canvas.getBoundingClientRect();
      this.cursor = locate(event.clientX - box.left, event.clientY - box.top);
      if (this.cursor) this.tell(this.cursorText(panel), event);
      this.repaint();
    });
    canvas.addEventListener("pointerleave", () => {
      this.cursor = null;
      this.tip.hide();
      this.repaint();
    });
  }

  cursorText(panel) {
    const { view, slices, mode } = this.settings;
    const { row, column } = this.cursor;
    const { panels, counts, range } = this.scene;
    const title = view === "histogram" ? rangeText(range, column, counts[0].length) : indexText(panel, row, column, slices);
    const lines = panels.map((item, at) => {
      const value = counts ? groups(counts[at][column]) : valueText(item, row, column, view);
      return item.label ? `${item.label}  ${value}` : value;
    });
    const own = Math.max(0, panels.indexOf(panel));
    const first = Math.max(0, Math.min(own - 4, lines.length - MOST_TOLD));
    const told = lines.slice(first, first + MOST_TOLD);
    if (lines.length > told.length) told.push(`… ${groups(lines.length - told.length)} more`);
    return [title, ...told].filter(Boolean).join("\n") + (mode === "difference" ? "\ndifference" : "");
  }

  /** Show a text at the pointer. */
  tell(text, { clientX, clientY }) {
    this.tip.tell(text, { left: clientX, right: clientX, top: clientY + 16 });
  }

  keyOnCurves(event, panels) {
    const step = { ArrowRight: 1, ArrowLeft: -1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity }[event.key];
    if (!step) return;
    event.preventDefault();
    const last = panels[0].data.length - 1;
    this.cursor = { row: 0, column: Math.min(last, Math.max(0, (this.cursor?.column ?? -1) + step)) };
    const box = event.currentTarget.getBoundingClientRect();
    const x = box.left + CURVE_LEFT + (this.cursor.column / Math.max(last, 1)) * (box.width - CURVE_LEFT - 8);
    this.tell(this.cursorText(panels[0]), { clientX: x, clientY: box.top + box.height / 2 });
    this.repaint();
  }

  /** Arrows move between panels; with Shift, between the elements of one. */
  keyOnPanels(event) {
    const at = this.panelNodes.indexOf(document.activeElement);
    if (at < 0) return;
    const rows = this.panelsInRow();
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: rows, ArrowUp: -rows, Home: -at, End: this.panelNodes.length - 1 - at }[event.key];
    if (event.key === "Enter" || event.key === " ") this.toggleSelected(this.panelNodes[at].place, event.ctrlKey || event.metaKey);
    else if (step === undefined) return;
    else if (event.shiftKey && this.scene?.panels[at]) this.moveCursor(event, at);
    else this.focusPanel(at + step);
    event.preventDefault();
  }

  panelsInRow() {
    const [first] = this.panelNodes;
    return Math.max(1, this.panelNodes.filter((node) => node.offsetTop === first.offsetTop).length);
  }

  focusPanel(at) {
    const next = this.panelNodes[at];
    if (!next) return;
    for (const node of this.panelNodes) node.tabIndex = node === next ? 0 : -1;
    this.focusAt = at;
    next.focus();
  }

  moveCursor(event, at) {
    const panel = this.scene.panels[at];
    if (!["heat", "images", "histogram"].includes(this.settings.view)) return;
    const counts = this.scene.counts?.[at];
    const { rows, columns } = counts ? { rows: 1, columns: counts.length } : matrixOf(panel);
    const [down, right] = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[event.key] ?? [0, 0];
    const before = this.cursor ?? { row: -down, column: -right };
    const within = (place, count) => Math.min(count - 1, Math.max(0, place));
    this.cursor = { row: within(before.row + down, rows), column: within(before.column + right, columns) };
    const box = this.panelNodes[at].querySelector("canvas").getBoundingClientRect();
    this.tell(this.cursorText(panel), {
      clientX: box.left + ((this.cursor.column + 0.5) / columns) * box.width,
      clientY: box.top + ((this.cursor.row + 0.5) / rows) * box.height,
    });
    this.repaint();
  }

  // The selection.

  toggleSelected(place, more) {
    const { section } = this.settings;
    if (place < 0 || !section.distributed) return;
    const replicas = section.equal && this.settings.view !== "table"
      ? Array.from({ length: section.count }, (_, at) => replicaAt(section, at)) : [replicaAt(section, place)];
    this.selection.toggle(replicas, more);
  }

  /** Return the places of the section's selected replicas. */
  chosenPlaces() {
    const { section } = this.settings;
    const chosen = new Set(this.model.get("selected"));
    if (!chosen.size) return chosen;
    const places = section.ids.length ? section.ids.map((id, place) => [id, place]) : [...chosen].map((id) => [id, id]);
    return new Set(places.filter(([id]) => chosen.has(id)).map(([, place]) => place));
  }

  markSelected() {
    if (!this.settings) return;
    const places = this.chosenPlaces();
    for (const node of this.panelNodes) {
      const on = this.settings.section.equal && this.settings.view !== "table" ? places.size > 0 : places.has(node.place);
      node.setAttribute("aria-selected", String(on));
    }
    this.root.setAttribute("data-selected", this.model.get("selected").join(","));
    this.repaint();
  }
}

/** Return the ends of a histogram's axis, below it. */
function endsOf([low, high], integral) {
  return element("div", { class: "tpunb-replicas-axis", "aria-hidden": "true" },
    element("span", {}, numberText(low, integral)), element("span", {}, numberText(high, integral)));
}

/** Return the width of the longest of some texts, in pixels. */
function widest(texts, font) {
  const context = document.createElement("canvas").getContext("2d");
  context.font = font;
  return Math.ceil(Math.max(0, ...texts.map((text) => context.measureText(text).width)));
}

/** Return the saved picture of the places of arrays; sections that were open stay open. */
function placementOf(html, former) {
  const page = new DOMParser().parseFromString(html, "text/html");
  const node = element("div", { class: "tpunb-replicas-placement" }, ...page.body.childNodes);
  const open = [...former?.querySelectorAll("details") ?? []].map((section) => section.open);
  node.querySelectorAll("details").forEach((section, at) => { section.open = open[at] ?? section.open; });
  node.querySelectorAll("table").forEach(makeSortable);
  return node;
}

function headingOf(header) {
  return element("h3", { class: "tpunb-title" }, header.title);
}

function equality(section) {
  if (section.equal === null || !section.distributed) return null;
  const text = section.equal ? `all ${groups(section.count)} replicas equal`
    : `${groups(section.differing)} of ${groups(section.count)} ${section.differing === 1 ? "differs" : "differ"} from replica ${replicaAt(section, 0)}`;
  return element("span", { class: `tpunb-replicas-badge${section.equal ? " tpunb-replicas-equal" : ""}` }, text);
}

function ratioOf(panel, view) {
  if (view === "histogram") return 0.5;
  const { rows, columns } = matrixOf(panel);
  if (panel.kind === "curve") return 0.12;
  return columns ? rows / columns : 1;
}

export default {
  initialize({ model }) { saveStatically(model); },
  render,
};
