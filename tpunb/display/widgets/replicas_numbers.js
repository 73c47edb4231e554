// Small values as tables of their numbers.

import { element } from "./common.js";
import { product } from "./replicas_data.js";

/** Return the number of columns in which a panel's numbers are written. */
export function tableColumns({ sides, data, rows }) {
  if (rows) return Math.max(1, ...rows) * product(sides.slice(1));
  const columns = sides.length ? sides[sides.length - 1] : 1;
  return sides.length === 1 ? Math.min(8, data.length) : columns;
}

/** Return the places at which a table's rows end; a ragged value has rows of its own. */
function rowEnds(panel, count) {
  if (panel.rows) {
    let end = 0;
    return panel.rows.map((length) => { end += length * product(panel.sides.slice(1)); return end; });
  }
  const columns = Math.max(1, tableColumns(panel));
  return Array.from({ length: Math.ceil(count / columns) }, (_, row) => Math.min(count, (row + 1) * columns));
}

export function numbersTable(panel, texts, unlike) {
  const body = element("tbody", {});
  let begin = 0;
  for (const end of rowEnds(panel, texts.length)) {
    const first = begin;
    body.append(element("tr", {}, ...texts.slice(first, end).map((text, number) => element("td", {
      class: unlike(first + number) ? "tpunb-replicas-unlike" : /nan$/.test(text) ? "tpunb-replicas-nan" : /inf$/.test(text) ? "tpunb-replicas-inf" : false,
    }, text))));
    if (first === end) body.lastChild.append(element("td", { class: "tpunb-replicas-none" }, "empty"));
    begin = end;
  }
  if (!body.children.length) body.append(element("tr", {}, element("td", { class: "tpunb-replicas-none" }, "no elements")));
  return element("div", { class: "tpunb-replicas-scroll" }, element("table", { class: "tpunb-replicas-cells" }, body));
}
