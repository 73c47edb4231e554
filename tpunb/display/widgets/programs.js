// Compiled programs: the page of programs_html.py, whose tables can be sorted.

import { button, listen, rootOf } from "./common.js";
import { saveStatically } from "./saving.js";

/** Return the number that a row has in a column; -1 for none. */
function valueOf(row, column) {
  return Number(row.cells[column]?.querySelector("[data-value]")?.dataset.value ?? -1);
}

/** Let a press on a column's head sort the table by it; another press restores the order. */
function makeSortable(table) {
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

/** Let a press on a tensor's line lead to the code, in the same program. */
function leadToCode(cell, page) {
  const number = cell.dataset.line;
  const program = cell.closest("[data-program]") ?? page;
  const codes = [...program.querySelectorAll(`[data-code="${CSS.escape(number)}"]`)];
  if (!codes.length) return;
  cell.replaceChildren(button(number, `Show line ${number}`, () => {
    for (const row of page.querySelectorAll("[data-picked]")) row.removeAttribute("data-picked");
    for (const code of codes) code.closest("tr").setAttribute("data-picked", "");
    if (codes[0].closest("details:not([open])")) codes[0].closest("details").open = true;
    codes[0].scrollIntoView({ block: "nearest" });
  }));
}

function render({ model, el }) {
  const root = rootOf(el, "programs", "Compiled TPU program");
  const build = () => {
    const open = [...root.querySelectorAll("details")].map((section) => section.open);
    const page = new DOMParser().parseFromString(model.get("html"), "text/html");
    root.replaceChildren(...page.body.childNodes);
    const sections = [...root.querySelectorAll("details")];
    if (open.length === sections.length) sections.forEach((section, at) => { section.open = open[at]; });
    root.querySelectorAll("table").forEach(makeSortable);
    root.querySelectorAll("[data-line]").forEach((cell) => leadToCode(cell, root));
    root.setAttribute("data-tables", root.querySelectorAll("table").length);
  };
  build();
  return listen(model, ["change:html"], build);
}

export default {
  initialize({ model }) { saveStatically(model); },
  render,
};
