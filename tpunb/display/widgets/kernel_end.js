// The end of a kernel that was running something, as a page can notice it.
//
// JupyterLab and Notebook 7 report the kernel's status. If the server restarts a dead kernel, they
// do not tell the models (ipywidgets 8.1), so the status is the only sign. In other front ends a
// model that has lost its channel to the kernel says so.

const ENDED = new Set(["autorestarting", "dead", "restarting", "terminating"]);

/** Call back when the kernel of a model has ended; return a function that stops this. */
export function onKernelEnd(model, callback) {
  const manager = model.widget_manager;
  const session = manager?.context?.sessionContext ?? manager?.kernel;
  const status = (_, now) => { if (ENDED.has(now)) callback(); };
  session?.statusChanged?.connect(status);
  const channel = async () => {
    const { comm_live: live } = await model.widget_manager.get_model(model.get("_live_id"));
    if (live === false) callback();
  };
  const look = () => { channel().catch(() => {}); }; // a front end may have no manager
  model.on("comm_live_update", look);
  return () => {
    session?.statusChanged?.disconnect(status);
    model.off("comm_live_update", look);
  };
}
