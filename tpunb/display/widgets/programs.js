// Compiled programs: the page of programs_html.py, whose tables can be sorted.

import { button } from "./common.js";
import { makeSortable } from "./sorting.js";
import { viewOf } from "./views.js";

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

export default viewOf("programs", "Compiled TPU program", (root) => {
  root.querySelectorAll("table").forEach(makeSortable);
  root.querySelectorAll("[data-line]").forEach((cell) => leadToCode(cell, root));
  root.setAttribute("data-tables", root.querySelectorAll("table").length);
});
