// The table of statistics: a row for each replica, sorted by any column.

import { element, numberText } from "./common.js";
import { replicaAt, shapeText, statisticsAt } from "./replicas_data.js";

/**
 * Return the table and its rows. `order` is a column's name, with a minus for descending; `onOrder`
 * and `onSelect(place, more)` are called on clicks.
 */
export function statisticsTable(section, { order, onOrder, onSelect }) {
  const columns = columnsFor(section);
  const descending = order.startsWith("-");
  const sorted = columns.find(({ name }) => name === order.replace("-", "")) ?? columns[0];
  const places = Array.from({ length: section.count }, (_, place) => place);
  const keys = places.map((place) => sorted.key(place));
  places.sort((a, b) => compared(keys[a], keys[b], descending) || a - b);
  const rows = places.map((place) => rowOf(place, columns, onSelect));
  const head = element("tr", {}, ...columns.map((column) => headOf(column, sorted, descending, onOrder)));
  const table = element("table", { class: "tpunb-replicas-table" }, element("thead", {}, head), element("tbody", {}, ...rows));
  return { node: element("div", { class: "tpunb-replicas-tablebox", tabindex: 0, role: "group", "aria-label": "statistics of all replicas" }, table), rows };
}

/** Compare two values; an unknown value comes last in both orders. */
function compared(left, right, descending) {
  if (typeof left === "string") return descending ? right.localeCompare(left) : left.localeCompare(right);
  if (Number.isNaN(left) || Number.isNaN(right)) return Number.isNaN(left) - Number.isNaN(right);
  return descending ? right - left : left - right;
}

function columnsFor(section) {
  const { columns } = section;
  const integral = section.block.integral;
  const shown = [{ name: "replica", title: "replica", key: (place) => replicaAt(section, place), text: String }];
  const vary = (name, title, items, text) => items.length > 1
    && shown.push({ name, title, key: (place) => text(items[place]), text: String });
  vary("dtype", "dtype", section.dtypes, String);
  vary("shape", "shape", section.shapes, (shape) => (shape ? shapeText(shape) : ""));
  for (const name of ["min", "mean", "max", "std"]) {
    const key = (place) => statisticsAt(columns, place)[name];
    shown.push({ name, title: name, key, numeric: true,
      text: (value) => (Number.isNaN(value) ? "–" : numberText(value, integral && name !== "mean" && name !== "std")) });
  }
  for (const [name, title] of [["nans", "NaN"], ["infs", "Inf"]]) {
    if (columns[name]) shown.push({ name, title, key: (place) => columns[name][place], numeric: true, text: String, odd: Boolean });
  }
  if (columns.differs) {
    shown.push({ name: "differs", title: `like replica ${replicaAt(section, 0)}`, key: (place) => columns.differs[place],
      text: (differs) => (differs ? "differs" : "equal"), odd: (differs) => section.marks_differing && differs });
  }
  return shown;
}

function headOf({ name, title, numeric }, sorted, descending, onOrder) {
  const mine = sorted.name === name;
  const next = mine && !descending ? `-${name}` : name;
  const node = element("button", { type: "button", "data-key": `sort-${name}`, click: () => onOrder(next) },
    title, element("span", { "aria-hidden": "true" }, mine ? (descending ? " ▾" : " ▴") : ""));
  return element("th", { scope: "col", class: numeric ? "tpunb-replicas-number" : false,
    "aria-sort": mine ? (descending ? "descending" : "ascending") : "none" }, node);
}

function rowOf(place, columns, onSelect) {
  const row = element("tr", { tabindex: 0, "data-key": `row${place}`,
    click: (event) => onSelect(place, event.ctrlKey || event.metaKey || event.shiftKey),
    keydown: (event) => {
      if (event.target !== row || (event.key !== "Enter" && event.key !== " ")) return;
      event.preventDefault();
      onSelect(place, event.ctrlKey || event.metaKey);
    } });
  for (const { key, text, numeric, odd } of columns) {
    const value = key(place);
    row.append(element("td", { class: [numeric && "tpunb-replicas-number", odd?.(value) && "tpunb-replicas-odd"].filter(Boolean).join(" ") || false }, text(value)));
  }
  row.place = place;
  return row;
}
