// The scene to show: the payload, the user's settings and the kernel's answers together.

import { groups, listen, unpack } from "./common.js";
import { countsOf, differences, gathered, limitsOf, panelsOf, product, reduction, reductionLabel, replicaAt, sliced, statisticsAt, statisticsOf, widened } from "./replicas_data.js";

export const VIEWS = { numbers: "Numbers", images: "Images", heat: "Heat map", curves: "Curves",
  text: "Text", histogram: "Histogram", table: "Table" };
export const REPLICA_MODES = { values: "Values", difference: "Difference", mean: "Mean", sum: "Sum",
  gather: "Gather" };

const MOST_KEPT = 12;

/** Return the views that a section can have, the most suitable view first. */
export function viewsOf(section, mode, slices) {
  if (!section.drawable) return section.columns.mean ? ["text", "table"] : ["text"];
  const { kind } = section.block;
  const pictures = mode === "values" || mode === "gather" ? ["images", "heat"] : ["heat"];
  const drawings = { values: ["numbers", "heat"], curve: ["curves", "heat"], grid: ["heat"],
    images: pictures, mixed: ["heat"] }[kind];
  const scalar = section.shape && product(section.shape.map((side) => side ?? 2)) <= 1 && mode !== "gather";
  const views = scalar ? ["numbers"] : [...drawings, "histogram"];
  if (slices.length && section.shape.length - slices.length === 1 && kind !== "images") views.unshift("curves");
  if (section.texts.some((texts) => texts.length)) views.push("text");
  return [...new Set([...views, "table"])];
}

/** Return the modes that a section has. */
export function modesOf(section) {
  return section.drawable && section.count > 1 ? Object.keys(REPLICA_MODES) : ["values"];
}

/** Return how many first axes can be held at a place: all axes that a picture does not need. */
export function sliceable(section) {
  if (!section.drawable || !section.numeric || !section.shape || section.shape.includes(null)) return 0;
  if (section.shape.includes(0)) return 0;
  return Math.max(0, section.shape.length - (section.block.kind === "images" ? 3 : 2));
}

/** Return the user's settings, as far as they fit the sections. */
export function settingsOf(model, sections) {
  const clamp = (value, count) => (value >= 0 && value < count ? value : 0);
  const number = clamp(model.get("section"), sections.length);
  const section = sections[number];
  const modes = modesOf(section);
  const mode = modes.includes(model.get("mode")) ? model.get("mode") : "values";
  const depth = sliceable(section);
  const wished = model.get("slices");
  const slices = depth && wished.length
    ? Array.from({ length: depth }, (_, axis) => clamp(wished[axis] ?? 0, section.shape[axis])) : [];
  const views = viewsOf(section, mode, slices);
  return {
    number, section, modes, mode, depth, slices, views,
    view: views.includes(model.get("view")) ? model.get("view") : views[0],
    reference: clamp(model.get("reference"), section.count),
    page: clamp(model.get("page"), Math.ceil(section.count / PAGE)),
    pages: section.equal ? 1 : Math.ceil(section.count / PAGE),
    order: model.get("order"),
  };
}

/** Return a request for a view that only the kernel can compute; null if the page can. */
export function requestFor(settings, live) {
  const { section, mode, slices, view, page, reference } = settings;
  if (!live || !section.numeric || view === "table" || view === "text") return null;
  const sent = section.equal || page === 0;
  const reduces = mode === "mean" || mode === "sum";
  const here = section.block.whole && (section.equal || section.count <= PAGE);
  const counts = view === "histogram";
  const samples = mode === "values" || mode === "gather";
  if (here || (samples && !slices.length && !counts && sent)) return null;
  const begin = section.equal ? 0 : page * PAGE;
  const end = section.equal ? 1 : Math.min(section.count, begin + PAGE);
  return { section: section.number, mode: mode === "gather" ? "values" : mode, slice: slices,
    replica: reference, counts, ...(reduces ? {} : { places: [begin, end] }) };
}

/**
 * Return the panels to draw for the settings, from an answer if there is any, else from the
 * samples; null if neither is enough. Throws an Error that explains a failure.
 */
export function sceneFor(settings, answer) {
  const { section, mode, page } = settings;
  const label = (place) => labelAt(section, place, mode);
  const shape = settings.slices.length ? [section.shape.slice(settings.slices.length)] : section.shapes;
  const { block, columns } = answer ?? section;
  const first = answer && !section.equal ? page * PAGE : 0;
  let panels = panelsOf(block, columns, { first, shape, label });
  if (section.rows.length === panels.length) panels.forEach((panel, at) => { panel.rows = section.rows[at]; });
  if (!answer) {
    if (page > 0 && !section.equal) return null;
    for (const panel of panels) panel.statistics = statisticsAt(section.columns, panel.place) ?? panel.statistics;
    if (settings.slices.length) {
      if (!section.block.whole) return null;
      panels = panels.map((panel) => sliced({ ...panel, shape: section.shape }, settings.slices));
    }
    panels = changed(panels, settings);
  } else if (mode === "mean" || mode === "sum") {
    panels[0] = { ...panels[0], place: -1, label: reductionLabel(mode, section.count) };
  } else if (mode === "gather") {
    panels = changed(panels, settings);
  }
  const exact = Boolean(answer) || section.block.whole;
  return { panels, exact, ...limitsFor(panels, settings), ...countsFor(panels, settings, answer) };
}

function changed(panels, { section, mode, reference }) {
  if (mode === "difference") {
    return differences(panels, panels.find((panel) => panel.place === reference) ?? panels[0]);
  }
  if (mode === "gather") return gathered(panels, section.count);
  return mode === "values" ? panels : reduction(panels, mode, section.count);
}

function labelAt(section, place, mode) {
  if (!section.distributed) return "";
  if (section.equal) return mode === "values" ? `all ${groups(section.count)} replicas` : "every replica";
  return `replica ${replicaAt(section, place)}`;
}

/** Return the ends of the common colour scale of all replicas, also on other pages. */
function limitsFor(panels, { section, mode, slices, view }) {
  const everywhere = mode === "values" && !slices.length && section.columns.mean && section.block.kind !== "images";
  const pictures = section.block.kind === "images" && view !== "histogram";
  const known = panels.map((panel) => (pictures ? statisticsOf(panel.data) : panel.statistics));
  return { limits: everywhere ? section.limits : limitsOf(known), symmetric: mode === "difference" };
}

function countsFor(panels, { view, section, mode }, answer) {
  if (view !== "histogram") return {};
  if (answer?.counts && mode !== "gather") return { counts: answer.counts, range: answer.limits };
  const pictures = section.block.kind === "images";
  const range = widened(limitsOf(panels.map((panel) => (pictures ? statisticsOf(panel.data) : panel.statistics))));
  return { counts: panels.map((panel) => countsOf(panel.data, range)), range };
}

/**
 * Request views from the kernel, one at a time, and keep the last answers. `onAnswer` is called
 * when there is something new to show.
 */
export function kernelViews(model, onAnswer) {
  const answers = new Map();
  // Other views of this model get the answers too, so each view starts at a random id.
  let last = Math.floor(Math.random() * 2 ** 40);
  let pending = null;
  const hear = (content, buffers) => {
    if (!pending || content.answer !== pending.id) return;
    answers.set(pending.key, content.error ? { error: content.error } : answerOf(content, buffers[0]));
    if (answers.size > MOST_KEPT) answers.delete(answers.keys().next().value);
    pending = null;
    onAnswer();
  };
  return {
    /** Return the answer to a request; send the request if that has not happened yet. */
    ask(request) {
      if (!request) {
        pending = null;
        return { answer: null, busy: false };
      }
      const key = JSON.stringify(request);
      if (answers.has(key)) {
        pending = null;
        return { answer: answers.get(key), busy: false };
      }
      if (pending?.key !== key) {
        last += 1;
        pending = { id: last, key };
        model.send({ request: "view", id: last, ...request });
      }
      return { answer: null, busy: true };
    },
    forget() {
      answers.clear();
      pending = null;
    },
    stop: listen(model, ["msg:custom"], hear),
  };
}

function answerOf({ block, layout, limits }, buffer) {
  const columns = unpack(layout, buffer);
  const rows = columns.counts ? columns.counts.length / BINS : 0;
  const counts = Array.from({ length: rows }, (_, row) => columns.counts.subarray(row * BINS, (row + 1) * BINS));
  return { block, columns, limits, counts: rows ? counts : null };
}
