// A page that runs one widget as a front end does, without a Jupyter around it.
// What a model sends goes to Python through window.toKernel (its id, and state or content).

class Model {
  constructor(id, state) {
    this.id = id;
    this.state = state;
    this.listeners = new Map();
    this.changed = {};
  }
  get(name) { return this.state[name]; }
  set(name, value) {
    this.state[name] = value;
    this.changed[name] = value;
    this.fire(`change:${name}`, value);
    this.fire("change");
  }
  save_changes() {
    window.toKernel({ id: this.id, state: this.changed });
    this.changed = {};
  }
  send(content) { window.toKernel({ id: this.id, content }); }
  on(name, callback) {
    if (!this.listeners.has(name)) this.listeners.set(name, new Set());
    this.listeners.get(name).add(callback);
  }
  off(name, callback) {
    if (callback) this.listeners.get(name)?.delete(callback);
    else this.listeners.delete(name);
  }
  fire(name, ...parts) {
    for (const callback of [...(this.listeners.get(name) ?? [])]) callback(...parts);
  }
  // From the kernel:
  update(state, buffers) {
    Object.assign(this.state, withBuffers(state, buffers));
    for (const name of Object.keys(state)) this.fire(`change:${name}`, this.state[name]);
    this.fire("change");
  }
  receive(content, buffers) { this.fire("msg:custom", content, buffers.map(decoded)); }
}

function decoded(base64) {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  return new DataView(bytes.buffer);
}

function withBuffers(state, buffers) {
  const whole = { ...state };
  for (const [name, data] of Object.entries(buffers)) whole[name] = decoded(data);
  return whole;
}

/** Starts a widget; `window.widgets` has its model and view by id. */
window.widgets = {};
window.mount = async (id, state, buffers, place = document.body) => {
  const model = new Model(id, withBuffers(state, buffers));
  const style = document.createElement("style");
  style.textContent = state._css;
  document.head.append(style);
  const url = URL.createObjectURL(new Blob([state._esm], { type: "text/javascript" }));
  const module = await import(url);
  const definition = typeof module.default === "function" ? await module.default() : module.default;
  await definition.initialize?.({ model });
  window.widgets[id] = { model, definition, stop: null, el: null, place };
  await window.show(id);
};

/** Makes a view of a model; a view that was there goes. */
window.show = async (id) => {
  const widget = window.widgets[id];
  await window.hide(id);
  widget.el = document.createElement("div");
  widget.place.append(widget.el);
  widget.stop = await widget.definition.render({ model: widget.model, el: widget.el });
};

window.hide = async (id) => {
  const widget = window.widgets[id];
  if (typeof widget.stop === "function") await widget.stop();
  widget.el?.remove();
  widget.stop = null;
};
