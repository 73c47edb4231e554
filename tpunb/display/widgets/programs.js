// Compiled programs: the page of programs_html.py, whose tables can be sorted.

import { button, listen, rootOf } from "./common.js";
import { saveStatically } from "./saving.js";
import { makeSortable } from "./sorting.js";

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
