// Tables of a saved page that can be sorted in the live page.

import { button } from "./common.js";

/** Return the number that a row has in a column; -1 for none. */
function valueOf(row, column) {
  return Number(row.cells[column]?.querySelector("[data-value]")?.dataset.value ?? -1);
}

/** Let a press on a column's head sort the table by it; another press restores the order. */
export function makeSortable(table) {
  const [body] = table.tBodies;
  const rows = [...body.rows];
  const heads = [...(table.tHead?.rows[0].cells ?? [])];
  heads.forEach((head, column) => {
    if (!rows.some((row) => valueOf(row, column) >= 0)) return;
    const name = head.textContent;
    const sort = button(name, `Sort by ${name}`, () => {
      const sorted = head.getAttribute("aria-sort") !== "descending";
      for (const other of heads) other.removeAttribute("aria-sort");
      if (sorted) head.setAttribute("aria-sort", "descending");
      // A title across all columns, such as a file's name, belongs to the order of the code.
      const shown = sorted ? rows.filter((row) => row.cells.length === heads.length)
        .sort((a, b) => valueOf(b, column) - valueOf(a, column)) : rows;
      body.replaceChildren(...shown);
    });
    head.replaceChildren(sort);
  });
}
