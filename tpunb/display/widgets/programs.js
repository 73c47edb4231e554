// Compiled programs: the memory's bar, the time's parts, and a table of lines, layers or tensors.

import { element, groups, rootOf, toggle, choice, oncePerFrame } from "./common.js";
import { saveStatically } from "./saving.js";

const VIEWS = [
  ["lines", "Lines", "The lines of your code"], ["layers", "Layers", "The layers of the model"],
  ["operations", "Operations", "TensorFlow's operations"],
  ["collectives", "Collectives", "What goes over the links"],
  ["largest", "Tensors", "The largest tensors at the peak"],
  ["padding", "Padding", "Tensors that their layout makes larger"],
];
const ORDERS = [["given", "as it comes"], ["time", "time"], ["memory", "memory"]];
const COLUMNS = {
  lines: ["number", "time", "memory", "code"], layers: ["name", "time", "seconds", "memory", "moved"],
  operations: ["name", "time", "seconds", "memory", "moved"],
  collectives: ["name", "time", "seconds", "memory", "moved"],
  largest: ["name", "memory", "source", "line"], padding: ["name", "size", "source", "line"],
};
const HEADS = { number: "line", source: "made by", size: "memory" };
/** The field of a row that a column needs, to be worth its room. */
const FIELDS = { number: "line", time: "share", memory: "size", code: "name" };
const MARKS = { compiles: "✓", refused: "✗", unknown: "?" };

/** One view of the model; what the user has set is the model's. */
class ProgramsView {
  constructor(model, el) {
    this.model = model;
    this.root = rootOf(el, "programs", "Compiled TPU program");
    this.spoken = element("div", { class: "tpunb-unseen", "aria-live": "polite" });
    this.picked = null;
    this.rebuild = oncePerFrame(() => this.build());
    const heard = ["content", "chosen", "view", "order"].map((name) => `change:${name}`);
    for (const name of heard) model.on(name, this.rebuild);
    this.stop = () => {
      this.rebuild.cancel();
      for (const name of heard) model.off(name, this.rebuild);
    };
    this.build();
  }

  set(name, value) {
    this.model.set(name, value);
    this.model.save_changes();
  }

  get program() {
    const { programs } = this.model.get("content");
    return programs[Math.min(this.model.get("chosen"), programs.length - 1)];
  }

  /** The tables that have rows. */
  get views() {
    return VIEWS.filter(([name]) => this.program?.tables[name].rows.length);
  }

  get view() {
    const wanted = this.model.get("view");
    return (this.views.find(([name]) => name === wanted) ?? this.views[0] ?? [""])[0];
  }

  build() {
    const { root, program } = this;
    const focused = root.contains(document.activeElement) ? document.activeElement.dataset.key : "";
    const parts = program ? [
      this.types(), element("h3", { class: "tpunb-title" }, program.title), this.verdict(),
      this.errors(), this.memory(), this.facts(), this.parts(), this.tools(), this.table(),
      ...program.notes.map((note) => element("p", { class: "tpunb-programs-note" }, note)),
    ] : [];
    root.replaceChildren(...parts.filter(Boolean), this.spoken);
    root.setAttribute("data-tpu", program?.tpu ?? "");
    root.setAttribute("data-verdict", program?.verdict ?? "");
    root.setAttribute("data-view", this.view);
    root.setAttribute("data-order", this.model.get("order"));
    root.setAttribute("data-rows", this.rows().length);
    if (focused) [...root.querySelectorAll("[data-key]")].find((node) => node.dataset.key === focused)?.focus();
  }

  // -- Several types

  types() {
    const { types, types_note: note, head, programs } = this.model.get("content");
    if (!types.length) return null;
    const cell = (row, number, index) => {
      if (index) return element("td", {}, row[index]);
      const chosen = this.program === programs[number];
      const press = () => {
        this.spoken.textContent = `${row[0]}: ${programs[number].headline}`;
        this.set("chosen", number);
      };
      return element("th", { scope: "row" }, element("button", { type: "button", class: "tpunb-button",
        "aria-pressed": String(chosen), title: `Show ${row[0]}`, "data-key": `type ${number}`, click: press }, row[0]));
    };
    const rows = types.map((row, number) => element("tr", { "data-verdict": programs[number].verdict },
      ...head.map((_, index) => cell(row, number, index))));
    const table = this.wide(element("table", { class: "tpunb-programs-types" },
      element("thead", {}, element("tr", {}, ...head.map((name) => element("th", { scope: "col" }, name)))),
      element("tbody", {}, ...rows)));
    return note ? element("div", {}, table, element("p", { class: "tpunb-programs-note" }, note)) : table;
  }

  // -- The outcome

  verdict() {
    const { verdict, headline } = this.program;
    return element("p", { class: "tpunb-programs-verdict", "data-verdict": verdict },
      element("b", { "aria-hidden": "true" }, MARKS[verdict]), headline);
  }

  errors() {
    const { errors, more_errors: more } = this.program;
    if (!errors.length) return null;
    const items = errors.map(({ line, code, cause, fix }) => element("li", {},
      element("b", {}, line === null ? code : `line ${line} · ${code}`), element("div", {}, cause),
      element("div", { class: "tpunb-programs-fix" }, fix)));
    if (more) items.push(element("li", {}, `and ${more} more`));
    return element("ul", { class: "tpunb-programs-errors" }, ...items);
  }

  memory() {
    const { memory } = this.program;
    if (!memory) return null;
    const blocks = memory.segments.map(({ kind, bytes, text }) => element("i", { "data-kind": kind, title: text,
      style: `flex: ${bytes} 0 0` }));
    const over = memory.over ? element("i", { class: "tpunb-programs-over", title: memory.over,
      style: `left: ${100 * memory.available / memory.total}%` }) : null;
    const legend = memory.segments.map(({ kind, text }) => this.swatch(text, { "data-kind": kind }));
    if (memory.over) legend.push(this.swatch(memory.over, { class: "tpunb-programs-swatch-over" }));
    if (memory.limit) legend.push(element("span", {}, memory.limit));
    return element("div", { class: "tpunb-programs-memory" },
      element("div", { class: "tpunb-programs-track", role: "img", "aria-label": `Memory: ${memory.says}` }, ...blocks, over),
      element("div", { class: "tpunb-legend" }, ...legend));
  }

  swatch(text, attributes) {
    return element("span", { class: "tpunb-swatch" }, element("i", attributes), text);
  }

  facts() {
    const { facts } = this.program;
    return facts.length ? element("p", { class: "tpunb-programs-facts" }, facts.join(" · ")) : null;
  }

  parts() {
    const { parts } = this.program;
    if (!parts.length) return null;
    const says = parts.map(({ name, text }) => `${name} ${text}`);
    const blocks = parts.map(({ name, fraction }, index) => element("i", { "data-part": name, title: says[index],
      style: `flex: ${fraction} 0 0` }));
    return element("div", {},
      element("div", { class: "tpunb-programs-track tpunb-programs-thin", role: "img", "aria-label": `Time: ${says.join(", ")}` }, ...blocks),
      element("div", { class: "tpunb-legend" }, ...says.map((text, index) => this.swatch(text, { "data-part": parts[index].name }))));
  }

  // -- The table

  tools() {
    const { views, view } = this;
    if (!view) return null;
    const buttons = views.map(([name, label, description]) => {
      const node = toggle(label, description, name === view, () => { this.picked = null; this.set("view", name); });
      node.dataset.key = `view ${name}`;
      return node;
    });
    const order = choice("sort by", ORDERS, this.model.get("order"), (value) => this.set("order", value));
    order.select.dataset.key = "order";
    return element("div", { class: "tpunb-toolbar" },
      element("div", { class: "tpunb-group", role: "group", "aria-label": "Table" }, ...buttons), order);
  }

  rows() {
    const field = { time: "fraction", memory: "part" }[this.model.get("order")];
    const rows = this.view ? this.program.tables[this.view].rows : [];
    const weight = (row) => row[field] ?? row.part ?? 0;
    return field ? [...rows].sort((a, b) => weight(b) - weight(a)) : rows;
  }

  table() {
    const { view } = this;
    if (!view) return null;
    const rows = this.rows();
    const columns = COLUMNS[view].filter((name) =>
      rows.some((row) => row[FIELDS[name] ?? name] || row[FIELDS[name] ?? name] === 0));
    const sorted = this.model.get("order") !== "given";
    const body = [];
    let file = "";
    for (const row of rows) {
      if (view === "lines" && !sorted && row.file !== file) {
        file = row.file;
        body.push(element("tr", {}, element("th", { scope: "colgroup", colspan: columns.length }, file || "cell")));
      }
      body.push(this.row(row, columns, sorted));
    }
    const { omitted, rest } = this.program.tables[view];
    return element("div", {}, this.wide(element("table", { class: "tpunb-programs-table" },
      element("thead", {}, element("tr", {}, ...columns.map((name) => element("th", { scope: "col" }, HEADS[name] ?? name)))),
      element("tbody", {}, ...body))),
      omitted ? element("p", { class: "tpunb-programs-note" }, `and ${groups(omitted)} more`) : null,
      rest ? element("p", { class: "tpunb-programs-note" }, rest) : null);
  }

  row(row, columns, sorted) {
    const picked = this.picked !== null && this.view === "lines" && row.line === this.picked;
    const node = element("tr", { "data-problem": row.problem || false, "data-picked": picked });
    const number = () => `${sorted && row.file ? `${row.file}:` : ""}${row.line}${row.problem ? " ✗" : ""}`;
    const cells = {
      number: () => element("th", { scope: "row" }, number()),
      name: () => element("th", { scope: "row" }, row.name),
      code: () => element("td", {}, element("code", {}, row.name)),
      time: () => this.bar(row.fraction, row.share, "time", row.seconds),
      memory: () => this.bar(row.part, row.size, "memory", ""),
      line: () => element("td", {}, row.line === null ? "" : this.lineButton(row.line)),
    };
    node.append(...columns.map((name) => (cells[name] ?? (() => element("td", {}, row[name])))()));
    return node;
  }

  /** Goes to a line of the code, where the table of lines has it. */
  lineButton(line) {
    if (!this.program.tables.lines.rows.some((row) => row.line === line)) return String(line);
    return element("button", { type: "button", class: "tpunb-button", title: `Show line ${line}`,
      click: () => { this.picked = line; this.set("view", "lines"); this.rebuild(); } }, String(line));
  }

  bar(fraction, text, kind, title) {
    const width = `width: ${Math.round(1000 * Math.min(1, fraction)) / 10}%`;
    const track = element("div", { class: "tpunb-programs-bar", "aria-hidden": "true" }, element("i", { "data-bar": kind, style: width }));
    return element("td", { title: title || false }, text ? element("div", {}, text) : null, text ? track : null);
  }

  wide(table) {
    return element("div", { class: "tpunb-programs-wide", tabindex: "0", role: "group", "aria-label": "Table, scrolls sideways" }, table);
  }
}

export default {
  initialize({ model }) { saveStatically(model); },
  render({ model, el }) {
    const view = new ProgramsView(model, el);
    return () => view.stop();
  },
};
