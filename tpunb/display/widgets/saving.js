// The notebook file that JupyterLab and Notebook 7 write.
//
// A saved notebook outlives its kernel. A live view without a kernel shows an error message instead
// of the picture beside it. Therefore the file gets the static forms of tpunb's displays. The
// reference to the live form goes into the output's metadata. A page that is opened while the
// kernel still runs takes the live form from there. If a display has changed since it was shown,
// for example curves that have grown, the model has its last static forms. Other front ends have no
// such notebook model, so nothing happens there.
//
// The model gets new static forms while a run goes on, every few seconds. The page does not show
// them, so nothing flickers. But the notebook has changed, and JupyterLab saves it in time.
//
// A line about a run, such as the time that is left, is wrong when the kernel has died. Its metadata
// has the text that replaces it.
//
// If people share a notebook, its outputs come by another way than the messages of widgets, and a
// display can come before its model. JupyterLab then shows an error message for good. Once the
// model has come, such a display is drawn again.

import { onKernelEnd } from "./kernel_end.js";

const VIEW = "application/vnd.jupyter.widget-view+json";
const MARK = "tpunb";
const MODELS = Symbol.for("tpunb.models");
const TIME_TO_DRAW = 1000; // milliseconds from a model to the first view of it

/** Make the page's notebook save static forms, and bring this model's displays back to life. */
export function saveStatically(model) {
  const notebook = model.widget_manager?.context?.model;
  if (typeof notebook?.toJSON !== "function" || !notebook.cells) return;
  if (!notebook[MODELS]) {
    const toJSON = notebook.toJSON.bind(notebook);
    notebook[MODELS] = new Map();
    notebook.toJSON = () => withoutViews(toJSON(), notebook[MODELS]);
    onKernelEnd(model, () => endLines(notebook));
  }
  const id = model.get("_live_id");
  notebook[MODELS].set(id, model);
  model.on("change:_static", () => { notebook.dirty = true; });
  revive(notebook, id);
  // Do not wait: others get the model only when this function has ended.
  drawAgain(notebook, id, model.widget_manager).catch(() => {});
}

/** Return a notebook whose tpunb outputs have their live form only in the metadata. */
function withoutViews(content, models) {
  for (const cell of content.cells ?? []) {
    if (cell.outputs) cell.outputs = cell.outputs.flatMap((output) => savedForm(output, models));
  }
  return content;
}

/** Return the file's form of an output, as a list, because the file omits some outputs. */
function savedForm(output, models) {
  const { [MARK]: ours, ...metadata } = output.metadata ?? {};
  if (!ours) return [output];
  // An output only for a person who watches, such as times, has a form of its own for the file.
  if ("file" in ours) return ours.file ? [{ ...output, data: ours.file, metadata }] : [];
  const { [VIEW]: view, ...data } = output.data ?? {};
  if (!view) return [output];
  const last = models.get(view.model_id)?.get("_static");
  return [{ ...output, data: { ...data, ...last }, metadata: { ...metadata, [MARK]: { view } } }];
}

/** Put the live form back if a saved output remembers it. */
function revive(notebook, id) {
  for (const output of outputsOf(notebook)) {
    const view = output.metadata?.[MARK]?.view;
    if (view?.model_id === id && !output.data[VIEW]) show(output, view);
  }
}

/** Redraw displays that came before their model, if the model has no views. */
async function drawAgain(notebook, id, manager) {
  const { views } = await manager.get_model(id);
  await new Promise((done) => setTimeout(done, TIME_TO_DRAW));
  if (!views || Object.keys(views).length) return;
  for (const output of outputsOf(notebook)) {
    const { [VIEW]: view, ...data } = output.data;
    if (view?.model_id !== id || !output.metadata?.[MARK]) continue;
    // An unchanged output would not be drawn, so set the static form in between.
    output.setData({ data, metadata: output.metadata });
    show(output, view);
  }
}

/** Replace the lines about runs that the kernel's end has ended. */
function endLines(notebook) {
  for (const output of outputsOf(notebook)) {
    const ended = output.metadata?.[MARK]?.ended;
    if (!ended) continue;
    const data = { "text/plain": ended };
    output.setData({ data, metadata: { [MARK]: { file: data } } });
  }
}

function outputsOf(notebook) {
  return [...notebook.cells].flatMap(({ outputs }) =>
    Array.from({ length: outputs?.length ?? 0 }, (_, index) => outputs.get(index)));
}

function show(output, view) {
  output.setData({ data: { ...output.data, [VIEW]: view }, metadata: output.metadata });
}
