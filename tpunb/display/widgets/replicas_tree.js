// The parts of a structure as a tree that folds.

import { element } from "./common.js";
import { shapeText } from "./replicas_data.js";

/**
 * Return the tree of the sections, with `current` marked. `folded` keeps the paths that are folded;
 * `onChoose(number)` is called on clicks; `omitted` parts are left out.
 */
export function partsTree(sections, { current, folded, omitted, onChoose }) {
  if (sections.length < 2) return null;
  const nav = element("nav", { class: "tpunb-replicas-tree", "aria-label": "parts" });
  nav.append(branchOf(treeOf(sections), { current, folded, onChoose }));
  if (omitted) nav.append(element("p", { class: "tpunb-facts" }, `and ${omitted} more`));
  return nav;
}

function branchOf(node, settings) {
  const list = element("ul", {});
  for (const child of node.children.values()) {
    const item = element("li", {});
    if (child.section) item.append(leafOf(child.section, child.name, settings));
    if (child.children.size) item.append(foldOf(child, settings));
    list.append(item);
  }
  return list;
}

function foldOf(child, settings) {
  const { folded } = settings;
  const summary = element("summary", { "data-key": `fold${child.path}` }, child.name);
  const details = element("details", { open: !folded.has(child.path), toggle: () => {
    if (details.open) folded.delete(child.path);
    else folded.add(child.path);
  } }, summary, branchOf(child, settings));
  return details;
}

function leafOf(section, name, { current, onChoose }) {
  const [mark, meaning] = section.equal ? ["=", "all replicas equal"] : section.differing ? ["≠", "replicas differ"] : ["", ""];
  return element("button", {
    type: "button", class: "tpunb-replicas-leaf", "data-key": `leaf${section.number}`,
    "aria-current": section.number === current ? "true" : false,
    title: section.path || section.type, click: () => onChoose(section.number),
  }, element("span", { class: "tpunb-replicas-name" }, name || section.name || section.type),
  element("span", { class: "tpunb-replicas-dtype" }, leafFacts(section)),
  element("span", { class: "tpunb-replicas-mark", title: meaning }, mark));
}

/** Return the leaves as a tree along their paths. */
function treeOf(sections) {
  const top = { name: "", path: "", children: new Map(), section: null };
  for (const section of sections) {
    let node = top;
    const steps = section.steps.length ? section.steps : [""];
    for (const step of steps) {
      const path = node.path + step;
      if (!node.children.has(step)) {
        node.children.set(step, { name: stepName(step), path, children: new Map(), section: null });
      }
      node = node.children.get(step);
    }
    node.section = section;
  }
  return top;
}

/** Return `['loss']` and `.loss` as `loss`. */
function stepName(step) {
  const match = /^\[(['"])(.*)\1\]$|^\.(.*)$/su.exec(step);
  return match ? (match[2] ?? match[3]) : step;
}

function leafFacts(section) {
  const dtype = section.dtypes.length === 1 ? section.dtypes[0] : "several types";
  const shape = section.shape?.length ? shapeText(section.shape) : "";
  const kind = ["ragged", "sparse", "slices"].includes(section.kind) ? section.kind : "";
  return section.kind === "none" ? "None" : [kind, dtype, shape].filter(Boolean).join(" ");
}
