// Helpers that the widgets share: elements, colours, sizes, numbers, selection. Text reaches the
// page only through textContent, so that data is never markup. Python defines the constants that
// the saved forms use too, such as PALETTE: see page_data.py.

/**
 * Return an element with attributes and children; strings become text. Attributes that are
 * functions are listeners, named after their event.
 */
export function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== undefined && value !== null) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** Return a widget's root, with the classes and attributes that tests and style sheets use. */
export function rootOf(el, name, label) {
  el.classList.add("tpunb-host");
  const root = element("section", {
    class: `tpunb tpunb-${name}`, "data-testid": `tpunb-${name}`, "aria-label": label,
    // Otherwise JupyterLab takes the arrow keys and Enter for its own commands.
    "data-lm-suppress-shortcuts": "true",
  });
  el.append(root);
  return root;
}

/** Return a button with a short visible label and a longer description. */
export function button(label, description, onPress) {
  return element("button", { type: "button", class: "tpunb-button", title: description,
    "aria-label": description, click: onPress }, label);
}

/** Return a button that is on or off. `set(on)` changes it without a call of `onChange`. */
export function toggle(label, description, on, onChange) {
  const node = button(label, description, () => {
    node.set(node.getAttribute("aria-pressed") !== "true");
    onChange(node.getAttribute("aria-pressed") === "true");
  });
  node.set = (state) => node.setAttribute("aria-pressed", String(state));
  node.set(on);
  return node;
}

/** Return a labelled slider of whole numbers that shows its value. */
export function slider(label, { min = 0, max, value = min, show = String }, onInput) {
  const output = element("output", {}, show(value));
  const input = element("input", { type: "range", class: "tpunb-slider", min, max, step: 1, value,
    "aria-label": label, input: () => {
      output.textContent = show(Number(input.value));
      onInput(Number(input.value));
    } });
  const node = element("label", { class: "tpunb-field" }, element("span", {}, label), input, output);
  node.input = input;
  node.set = (next) => { input.value = next; output.textContent = show(Number(next)); };
  return node;
}

/** Add a tip to a root: text beside a part of the page, which screen readers announce. */
export function tipOf(root) {
  const node = element("div", { class: "tpunb-tip", hidden: true });
  const spoken = element("div", { class: "tpunb-unseen", "aria-live": "polite" });
  root.append(node, spoken);
  return {
    /** Show lines of text beside a box in the window's coordinates, inside the root. */
    tell(text, { left, right, top }) {
      node.textContent = text;
      spoken.textContent = text.replaceAll("\n", ", ");
      node.hidden = false;
      node.style.left = 0; // the room at the right would limit the width
      const outer = root.getBoundingClientRect();
      const beside = right - outer.left + 14;
      const fits = beside + node.offsetWidth <= outer.width;
      node.style.left = `${fits ? beside : Math.max(0, left - outer.left - 14 - node.offsetWidth)}px`;
      node.style.top = `${Math.max(0, Math.min(top - outer.top, outer.height - node.offsetHeight))}px`;
    },
    hide() {
      node.hidden = true;
      spoken.textContent = "";
    },
  };
}

/** Set a model's trait, in the kernel too. */
export function keep(model, name, value) {
  model.set(name, value);
  model.save_changes();
}

/** Listen to a model's events; return a function that stops this. */
export function listen(model, names, callback) {
  for (const name of names) model.on(name, callback);
  return () => names.forEach((name) => model.off(name, callback));
}

/** Return the columns that page_data.py packed, as typed arrays by name. */
export function unpack(layout, buffer) {
  const bytes = bytesOf(buffer);
  const columns = {};
  for (const [name, [type, offset, length]] of Object.entries(layout)) {
    columns[name] = new globalThis[type](bytes, offset, length);
  }
  return columns;
}

/** Return the bytes of a column. A front end gives a DataView on a buffer that may hold more. */
function bytesOf(buffer) {
  if (buffer instanceof ArrayBuffer) return buffer;
  const { buffer: whole, byteOffset, byteLength } = buffer;
  return whole.slice(byteOffset, byteOffset + byteLength);
}

/** Return the theme's colours as the style sheet has resolved them for an element. */
export function themeOf(node) {
  const style = getComputedStyle(node);
  const read = (name) => style.getPropertyValue(`--tpunb-${name}`).trim();
  const names = ["paper", "ink", "muted", "line", "faint"];
  const theme = Object.fromEntries(names.map((name) => [name, read(name)]));
  theme.dark = luminance(theme.paper) < 0.5;
  theme.font = style.fontFamily;
  return theme;
}

function luminance(colour) {
  const context = document.createElement("canvas").getContext("2d");
  context.fillStyle = colour;
  const hex = context.fillStyle;
  if (!hex.startsWith("#")) return 1;
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  return (0.299 * red + 0.587 * green + 0.114 * blue) / 255;
}

/** Call back when the front end's theme changes; return a function that stops this. */
export function onTheme(callback) {
  let pending = 0;
  const later = () => {
    cancelAnimationFrame(pending);
    pending = requestAnimationFrame(callback);
  };
  const observer = new MutationObserver(later);
  for (const node of [document.documentElement, document.body]) {
    observer.observe(node, { attributes: true,
      attributeFilter: ["class", "style", "theme", "data-jp-theme-light", "data-jp-theme-name", "data-theme", "data-vscode-theme-kind"] });
  }
  const media = matchMedia("(prefers-color-scheme: dark)");
  media.addEventListener("change", later);
  // A theme's style sheet may arrive after the attribute that names it.
  document.head.addEventListener("load", later, true);
  return () => {
    observer.disconnect();
    media.removeEventListener("change", later);
    document.head.removeEventListener("load", later, true);
    cancelAnimationFrame(pending);
  };
}

/** Call back with an element's width when it is first laid out and whenever it changes. */
export function onWidth(node, callback) {
  let last = 0;
  const observer = new ResizeObserver((entries) => {
    const width = Math.floor(entries[entries.length - 1].contentRect.width);
    if (width > 0 && width !== last) {
      last = width;
      callback(width);
    }
  });
  observer.observe(node);
  return () => observer.disconnect();
}

/** Return a function that draws at most once a frame, however often it is called. */
export function oncePerFrame(draw) {
  let pending = 0;
  const request = () => {
    if (pending) return;
    pending = requestAnimationFrame(() => {
      pending = 0;
      draw();
    });
  };
  request.cancel = () => {
    cancelAnimationFrame(pending);
    pending = 0;
  };
  return request;
}

/**
 * Return a number as `number_text` in `units.py` does: four significant digits, seven between a
 * thousand and ten million. Integers have all digits, if the page knows them.
 */
export function numberText(value, integral = false) {
  if (value === null || value === undefined) return "–";
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "nan" : value > 0 ? "inf" : "-inf";
  if (integral && Number.isSafeInteger(value)) return String(value);
  const size = Math.abs(value);
  const rounded = Number(value.toPrecision(size >= 1e3 && size < 1e7 ? 7 : 4));
  if (!rounded || (Math.abs(rounded) >= 1e-4 && Math.abs(rounded) < 1e7)) return String(rounded);
  const [digits, exponent] = rounded.toExponential().split("e");
  return `${digits}e${exponent[0]}${exponent.slice(1).padStart(2, "0")}`;
}

/** Return the ticks of an axis as texts, with as many digits as tell them apart. */
export function tickTexts(ticks) {
  const pace = Math.abs(ticks[ticks.length - 1] - ticks[0]) / Math.max(1, ticks.length - 1);
  // Ticks that an addition made have rounding errors, and a zero among them is not quite zero.
  const tidy = ticks.map((tick) => (Math.abs(tick) < pace / 1e6 ? 0 : Number(tick.toPrecision(14))));
  const short = tidy.map((tick) => numberText(tick));
  return new Set(short).size === new Set(tidy).size ? short : tidy.map(String);
}

/** Return some five round numbers between two ends. */
export function evenTicks(low, high) {
  // Divide first, because the difference of very large numbers is infinite.
  const rough = 2 * (high / 10 - low / 10);
  if (!(rough > 0)) return [low];
  const unit = 10 ** Math.floor(Math.log10(rough));
  const pace = unit * ([1, 2, 5, 10].find((times) => times * unit >= rough) ?? 10);
  const ticks = [];
  for (let tick = Math.ceil(low / pace); tick * pace <= high && ticks.length < 12; tick += 1) {
    ticks.push(Number((tick * pace).toPrecision(12)));
  }
  return ticks;
}

/** Return a count with commas from five digits on, as `grouped` in `units.py` does. */
export function groups(count) {
  return Math.abs(count) < 1e4 ? String(count) : String(count).replace(/\B(?=(\d{3})+(?!\d))/g, ",");
}

const SELECTED = "tpunb:selected";

/**
 * Share the selected replicas with the other widgets of the same link on the page. Returns
 * `select(replicas)`, `toggle(replicas, more)` and `stop()`; `onSelect` is called on every change.
 */
export function sharedSelection(model, onSelect) {
  const hear = (event) => {
    if (event.detail.link !== model.get("link") || !model.get("link")) return;
    if (!isSelected(event.detail.replicas)) keep(model, "selected", event.detail.replicas);
  };
  const select = (replicas) => {
    if (isSelected(replicas)) return;
    keep(model, "selected", replicas);
    const detail = { link: model.get("link"), replicas };
    window.dispatchEvent(new CustomEvent(SELECTED, { detail }));
  };
  const isSelected = (replicas) => String(replicas) === String(model.get("selected"));
  window.addEventListener(SELECTED, hear);
  const stop = listen(model, ["change:selected"], onSelect);
  return {
    select,
    /** Select replicas, alone or with others; if they are selected already, deselect them. */
    toggle(replicas, more) {
      const selected = model.get("selected");
      const others = more ? selected.filter((other) => !replicas.includes(other)) : [];
      const off = replicas.every((replica) => selected.includes(replica))
        && (more || selected.length === replicas.length);
      select([...others, ...(off ? [] : replicas)].sort((a, b) => a - b));
    },
    stop() {
      window.removeEventListener(SELECTED, hear);
      stop();
    },
  };
}
