// A view that Python draws: its controls set traits, and the kernel then sends the next view. Parts
// that stand for replicas can be selected, and share the selection with other widgets.

import { element, keep, listen, rootOf, sharedSelection } from "./common.js";
import { onKernelEnd } from "./kernel_end.js";
import { saveStatically } from "./saving.js";

const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

/** Return a widget of the model's trait `html`. `equip(root)` adds what only a page can do. */
export function viewOf(name, label, equip = () => {}) {
  return {
    initialize({ model }) { saveStatically(model); },
    render({ model, el }) {
      const root = rootOf(el, name, label);
      const selection = sharedSelection(model, () => mark(root, model));
      const build = () => {
        const refocus = replace(root, model.get("html"));
        equip(root);
        root.querySelectorAll("[data-trait]").forEach((control) => steer(root, model, control));
        mark(root, model);
        refocus();
      };
      const choose = (part, more) => {
        const replicas = part.dataset.part.split(" ").filter(Boolean).map(Number);
        if (replicas.length) selection.toggle(replicas, more);
      };
      root.addEventListener("click", (event) => {
        const part = event.target.closest("[data-part]");
        if (part && !event.target.closest("button")) {
          part.focus();
          choose(part, event.shiftKey || event.ctrlKey || event.metaKey);
        } else if (event.target.closest("[role=listbox]")) selection.select([]);
      });
      root.addEventListener("focusin", (event) => tell(root, event.target.closest("[data-part]")));
      root.addEventListener("focusout", () => tell(root, null));
      root.addEventListener("keydown", (event) => {
        const part = event.target.closest("[data-part]");
        if (!part || event.ctrlKey || event.metaKey || event.altKey) return;
        if (event.key === "Enter" || event.key === " ") choose(part, event.shiftKey);
        else if (event.key === "Escape") selection.select([]);
        else if (!goFrom(root, part, event.key)) return;
        event.preventDefault();
        event.stopPropagation();
      });
      build();
      const stop = listen(model, ["change:html"], build);
      const end = onKernelEnd(model, () => disable(root));
      return () => {
        stop();
        end();
        selection.stop();
      };
    },
  };
}

const partsOf = (root) => [...root.querySelectorAll("[data-part]")];

/** Show other markup; sections that are open stay open. Return what puts the focus back to its place. */
function replace(root, html) {
  const open = [...root.querySelectorAll("details")].map((section) => section.open);
  const focused = root.querySelector(":focus");
  const { trait, axis } = focused?.dataset ?? {};
  const at = partsOf(root).indexOf(focused);
  const page = new DOMParser().parseFromString(html, "text/html");
  Object.assign(root.dataset, page.body.firstElementChild?.dataset);
  root.replaceChildren(...page.body.childNodes, ...root.querySelectorAll(":scope > :is(.tpunb-tip, .tpunb-unseen)"));
  root.removeAttribute("aria-busy");
  const sections = [...root.querySelectorAll("details")];
  if (open.length === sections.length) sections.forEach((section, number) => { section.open = open[number]; });
  const same = (control) => control.title === focused.title && control.dataset.axis === axis;
  return () => (at < 0 ? trait && [...root.querySelectorAll(`[data-trait="${trait}"]`)].find(same) : partsOf(root)[at])?.focus({ preventScroll: true });
}

/** Let a control set the trait that it names. */
function steer(root, model, control) {
  control.addEventListener(control.matches("button") ? "click" : "change", () => {
    const { trait } = control.dataset;
    const before = model.get(trait);
    if (control.type === "number" && control.value) control.value = Math.min(control.max, Math.max(control.min, control.value));
    const value = Array.isArray(before) ? placesOf(root, control) : typeof before === "number" ? Number(control.value) : control.value;
    if (String(value) === String(before)) return;
    root.setAttribute("aria-busy", "true");
    keep(model, trait, value);
  });
}

/** Say that only the kernel can draw another view, once it has ended. */
function disable(root) {
  const controls = root.querySelectorAll("[data-trait]:enabled");
  controls.forEach((control) => { control.disabled = true; });
  if (controls.length) root.querySelector(".tpunb-facts").append(element("div", { role: "status" }, "The kernel has ended. Run the cell again to see other views."));
}

/** Return the places on all axes; none if the changed one was cleared. */
function placesOf(root, { value, dataset }) {
  return value === "" ? [] : [...root.querySelectorAll(`[data-trait="${dataset.trait}"]`)].map((field) => Math.round(Number(field.value)));
}

/** Mark the selected parts, and let Tab reach one of them. */
function mark(root, model) {
  const parts = partsOf(root);
  if (!parts.length) return;
  const selected = new Set(model.get("selected"));
  const kept = [];
  for (const part of parts) {
    const chosen = part.dataset.part.split(" ").filter((replica) => replica && selected.has(Number(replica)));
    if (!part.matches("tr")) part.setAttribute("role", "option");
    // Notebook 7 asks the focused element itself before it takes the arrow keys for its cells.
    part.setAttribute("data-lm-suppress-shortcuts", "true");
    part.setAttribute("tabindex", part.getAttribute("tabindex") ?? -1);
    part.setAttribute("aria-selected", chosen.length > 0);
    kept.push(...chosen.map(Number));
  }
  root.dataset.selected = [...new Set(kept)].sort((a, b) => a - b).join(",");
  if (!parts.some((part) => part.tabIndex === 0)) parts[0].setAttribute("tabindex", 0);
}

/** Say below the drawing what has the focus; the pointer shows the same as a title. */
function tell(root, part) {
  const about = root.querySelector(".tpunb-about");
  if (about) about.textContent = part?.querySelector("title")?.textContent.replaceAll("\n", " · ") ?? "";
}

/** Move the focus to the nearest part in a direction; return whether the key means this. */
function goFrom(root, part, key) {
  const parts = partsOf(root);
  const step = STEPS[key];
  if (!step && key !== "Home" && key !== "End") return false;
  const next = step ? nearest(parts, part, step) : parts.at(key === "Home" ? 0 : -1);
  part.setAttribute("tabindex", -1);
  next.setAttribute("tabindex", 0);
  next.focus();
  return true;
}

function nearest(parts, part, [right, down]) {
  const middle = (node) => {
    const { left, top, width, height } = node.getBoundingClientRect();
    return [left + width / 2, top + height / 2];
  };
  const [x, y] = middle(part);
  let [best, least] = [part, Infinity];
  for (const other of parts) {
    const [across, along] = middle(other).map((place, axis) => place - [x, y][axis]);
    const ahead = across * right + along * down;
    const distance = ahead + 3 * Math.abs(across * down + along * right);
    if (ahead > 0.5 && distance < least) [best, least] = [other, distance];
  }
  return best;
}
