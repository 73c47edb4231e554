// What JupyterLab and Notebook 7 write into the notebook's file.
//
// A saved notebook outlives its kernel, and a live view without one is an error message in the
// place of the picture beside it. So the file gets our displays' static forms, and the reference
// to the live form goes into the output's metadata, from where a page that is opened while the
// kernel still runs takes it back. What has changed since it was shown, as curves that have grown,
// has its last static forms in the model. Other front ends have no such notebook model: nothing happens.
//
// Where people share a notebook, its outputs come by another way than the messages of widgets, and
// a display can be there before its model: JupyterLab then shows an error message for good. Once
// the model is there, such a display is drawn again.

const VIEW = "application/vnd.jupyter.widget-view+json";
const MARK = "tpunb";
const MODELS = Symbol.for("tpunb.models");
const TIME_TO_DRAW = 1000; // milliseconds from a model to the first view of it

/** Makes the page's notebook save static forms, and brings this model's displays back to life. */
export function saveStatically(model) {
  const notebook = model.widget_manager?.context?.model;
  if (typeof notebook?.toJSON !== "function" || !notebook.cells) return;
  if (!notebook[MODELS]) {
    const toJSON = notebook.toJSON.bind(notebook);
    notebook[MODELS] = new Map();
    notebook.toJSON = () => withoutViews(toJSON(), notebook[MODELS]);
  }
  const id = model.get("_live_id");
  notebook[MODELS].set(id, model);
  revive(notebook, id);
  // Not waited for: the model is there for others when this function has ended.
  drawAgain(notebook, id, model.widget_manager).catch(() => {});
}

/** A notebook whose outputs of ours have their live form in the metadata only. */
function withoutViews(content, models) {
  for (const cell of content.cells ?? []) {
    if (cell.outputs) cell.outputs = cell.outputs.flatMap((output) => savedForm(output, models));
  }
  return content;
}

/** What the file gets of an output: as a list, for of some it gets nothing. */
function savedForm(output, models) {
  const { [MARK]: ours, ...metadata } = output.metadata ?? {};
  if (!ours) return [output];
  // What is only for the person who is there: times, for example.
  if ("file" in ours) return ours.file ? [{ ...output, data: ours.file, metadata }] : [];
  const { [VIEW]: view, ...data } = output.data ?? {};
  if (!view) return [output];
  const last = models.get(view.model_id)?.get("_static");
  return [{ ...output, data: { ...data, ...last }, metadata: { ...metadata, [MARK]: { view } } }];
}

/** Puts the live form back where a saved output remembers it. */
function revive(notebook, id) {
  for (const output of outputsOf(notebook)) {
    const view = output.metadata?.[MARK]?.view;
    if (view?.model_id === id && !output.data[VIEW]) show(output, view);
  }
}

/** Draws displays again that came before their model: it has no view of any. */
async function drawAgain(notebook, id, manager) {
  const { views } = await manager.get_model(id);
  await new Promise((done) => setTimeout(done, TIME_TO_DRAW));
  if (!views || Object.keys(views).length) return;
  for (const output of outputsOf(notebook)) {
    const { [VIEW]: view, ...data } = output.data;
    if (view?.model_id !== id || !output.metadata?.[MARK]) continue;
    // What does not change is not drawn: the static form stands there in between.
    output.setData({ data, metadata: output.metadata });
    show(output, view);
  }
}

function outputsOf(notebook) {
  return [...notebook.cells].flatMap(({ outputs }) =>
    Array.from({ length: outputs?.length ?? 0 }, (_, index) => outputs.get(index)));
}

function show(output, view) {
  output.setData({ data: { ...output.data, [VIEW]: view }, metadata: output.metadata });
}
