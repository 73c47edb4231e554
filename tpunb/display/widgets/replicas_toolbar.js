// The controls, which choose the values to show and the view.

import { button, choice, element, groups, slider, toggle } from "./common.js";
import { replicaAt } from "./replicas_data.js";
import { REPLICA_MODES, VIEWS } from "./replicas_scene.js";

/** Return the controls that the settings allow; `set(trait, value)` is called on changes. */
export function toolbarOf(settings, set) {
  const { section, modes, views, mode, view, pages, page, depth } = settings;
  const bar = element("div", { class: "tpunb-toolbar" });
  if (modes.length > 1) bar.append(groupOf(set, "mode", "What of it", modes, REPLICA_MODES, mode));
  if (mode === "difference") bar.append(referenceChoice(settings, set));
  if (views.length > 1) bar.append(groupOf(set, "view", "How", views, VIEWS, view));
  if (depth && view !== "table") bar.append(...sliceControls(settings, set));
  if (pages > 1 && view !== "table" && mode !== "mean" && mode !== "sum") bar.append(pagerOf(settings, set));
  bar.status = element("span", { class: "tpunb-replicas-status", role: "status" });
  bar.append(bar.status);
  return bar;
}

function groupOf(set, trait, label, names, texts, chosen) {
  const group = element("span", { class: "tpunb-group", role: "group", "aria-label": label });
  for (const name of names) {
    const node = toggle(texts[name], texts[name], name === chosen, () => {
      // One of the buttons is always on, also when it is pressed again.
      node.set(true);
      set(trait, name);
    });
    node.dataset.key = `${trait}-${name}`;
    group.append(node);
  }
  return group;
}

function referenceChoice({ section, reference }, set) {
  const options = Array.from({ length: section.count }, (_, place) => [place, `replica ${replicaAt(section, place)}`]);
  const node = choice("to", options, reference, (value) => set("reference", Number(value)));
  node.select.setAttribute("aria-label", "difference to");
  node.select.dataset.key = "reference";
  return node;
}

function sliceControls({ section, slices, depth }, set) {
  const current = [...slices];
  const on = slices.length > 0;
  const node = toggle("Slice", "Show one slice of the first axes", on,
    (pressed) => set("slices", pressed ? Array(depth).fill(0) : []));
  node.dataset.key = "slicing";
  if (!on) return [node];
  return [node, ...slices.map((place, axis) => {
    const field = slider(`axis ${axis}`, { max: section.shape[axis] - 1, value: place,
      show: (value) => `${value} of 0–${section.shape[axis] - 1}` }, (value) => {
      current[axis] = value;
      set("slices", [...current]);
    });
    field.input.dataset.key = `slice${axis}`;
    return field;
  })];
}

function pagerOf({ section, page, pages }, set) {
  const turn = (by, label, description) => {
    const node = button(label, description, () => set("page", page + by));
    node.disabled = page + by < 0 || page + by >= pages;
    node.dataset.key = `page${by}`;
    return node;
  };
  const [first, last] = [page * PAGE, Math.min(section.count, (page + 1) * PAGE) - 1];
  const text = `replicas ${replicaAt(section, first)}–${replicaAt(section, last)} of ${groups(section.count)}`;
  return element("span", { class: "tpunb-field tpunb-replicas-pager" },
    turn(-1, "‹", "earlier replicas"), element("span", {}, text), turn(1, "›", "later replicas"));
}
