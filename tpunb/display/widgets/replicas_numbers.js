// Small values as tables of their numbers.

import { element } from "./common.js";

/** How many columns a panel's numbers are written in. */
export function tableColumns({ sides, data }) {
  const columns = sides.length ? sides[sides.length - 1] : 1;
  return sides.length === 1 ? Math.min(8, data.length) : columns;
}

export function numbersTable(panel, texts, unlike) {
  const columns = Math.max(1, tableColumns(panel));
  const body = element("tbody", {});
  for (let at = 0; at < texts.length; at += columns) {
    body.append(element("tr", {}, ...texts.slice(at, at + columns).map((text, number) => element("td", {
      class: unlike(at + number) ? "tpunb-replicas-unlike" : /nan$/.test(text) ? "tpunb-replicas-nan" : /inf$/.test(text) ? "tpunb-replicas-inf" : false,
    }, text))));
  }
  if (!texts.length) body.append(element("tr", {}, element("td", { class: "tpunb-replicas-none" }, "no elements")));
  return element("div", { class: "tpunb-replicas-scroll" }, element("table", { class: "tpunb-replicas-cells" }, body));
}
