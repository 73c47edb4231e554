// Training curves: the model's received rows (curves_store.js) in panels (curves_panel.js).

import { button, element, groups, keep, listen, numberText, oncePerFrame, onTheme, onWidth, rootOf, slider, themeOf, toggle } from "./common.js";
import { onKernelEnd } from "./kernel_end.js";
import { saveStatically } from "./saving.js";
import { curveStore } from "./curves_store.js";
import { curvePanel, panelToCome } from "./curves_panel.js";

const BRIGHT = ["#5aaee8", "#f58b4c", "#3cc9a0", "#dd94bf", "#cdb53d", "#8cc6ef", "#a99be6", "#d39a77"];
const SILENCE = 30_000; // milliseconds without news after which a speed is no longer true
const DRAWN_BY = ["scale", "smoothing", "spread", "zoom", "hidden"].map((name) => `change:${name}`);

export default () => {
  // One store for each model, because views come and go.
  const store = curveStore();
  return {
    initialize({ model }) {
      saveStatically(model);
      const ask = (holes) => { if (holes) model.send({ kind: "sync" }); };
      const whole = () => ask(store.receiveAll(model.get("snapshot")));
      const part = (content, buffers) => {
        if (content?.kind === "points") ask(store.receive(content, buffers[0]));
      };
      whole();
      const stops = [listen(model, ["change:snapshot"], whole), listen(model, ["msg:custom"], part),
        onKernelEnd(model, () => store.lose())];
      // Request everything, because messages that came while this module was loading are lost.
      model.send({ kind: "sync" });
      return () => stops.forEach((stop) => stop());
    },
    render({ model, el }) { return curvesView(model, el, store); },
  };
};

function curvesView(model, el, store) {
  const root = rootOf(el, "curves", "Training curves");
  const said = element("div", { class: "tpunb-unseen", "aria-live": "polite" });
  const heading = curvesHeading();
  const grid = element("div", { class: "tpunb-curves-grid" });
  const why = element("p", {});
  const toCome = element("div", { class: "tpunb-curves-tocome" });
  const empty = element("div", { class: "tpunb-curves-empty" }, toCome, why);
  const panels = new Map();
  let theme = themeOf(root);
  let cursor = null;
  let width = 0;
  let frames = 0;
  let [watched, stale] = [true, true];

  const set = (name, value) => keep(model, name, value);
  const isHidden = (key) => model.get("hidden").some((each) => JSON.stringify(each) === key);
  const runKey = (run) => JSON.stringify([run]);

  const view = {
    theme: () => theme,
    isLog: () => model.get("scale") === "log",
    weight: () => model.get("smoothing") / 100,
    spread: () => model.get("spread"),
    cursor: () => cursor,
    range() {
      const zoom = model.get("zoom");
      const [low, high] = zoom.length === 2 ? zoom : store.reach();
      return low === high ? [low - 1, high + 1] : [low, high];
    },
    linesOf(panel) {
      const all = store.series.filter((series) => series.panel === panel && !isHidden(runKey(series.run)));
      const several = store.runs.length > 1;
      return all.map((series, place) => {
        const key = JSON.stringify([series.run, series.metric]);
        return { series, key, hidden: isHidden(key), dashed: several && series.validation,
          colour: several ? series.run : place, label: series.label };
      });
    },
    colourOf: (line) => {
      const palette = theme.dark ? BRIGHT : PALETTE;
      return palette[line.colour % palette.length];
    },
    setCursor(step, from = null) {
      if (step === cursor) return;
      cursor = step;
      for (const panel of panels.values()) if (panel.node !== from || step === null) panel.placeCursor();
      if (from) panels.get(from.dataset.panel)?.writeCursor();
    },
    setZoom(zoom) {
      const [low, high] = store.reach();
      const whole = !zoom || (zoom[0] <= low && zoom[1] >= high);
      set("zoom", whole ? [] : [Math.max(zoom[0], low), Math.min(zoom[1], high)]);
    },
    zoomBy(factor, step) {
      const [low, high] = view.range();
      const half = ((high - low) * factor) / 2;
      if (half >= 1) view.setZoom([step - half, step + half]);
    },
    toggleLine: (line) => toggleHidden(line.key),
    say(text) { said.textContent = text; },
  };

  function toggleHidden(key) {
    const kept = model.get("hidden").filter((each) => JSON.stringify(each) !== key);
    set("hidden", isHidden(key) ? kept : [...kept, JSON.parse(key)]);
  }

  const bar = curvesToolbar(model, set, {
    reset: () => view.setZoom(null),
    save: () => saveTable(view, store),
    toggleRun: (run) => toggleHidden(runKey(run)),
    isRunHidden: (run) => isHidden(runKey(run)),
    colourOfRun: (run) => view.colourOf({ colour: run }),
  });
  root.append(heading.node, bar.node, empty, grid, said);

  function draw() {
    const titles = store.panels().filter((title) => view.linesOf(title).length);
    const state = heading.write(store);
    stale = !watched || !width;
    if (stale) {
      tell(state, titles);
      return;
    }
    frames += 1;
    arrange(titles);
    for (const title of titles) panels.get(title).update();
    bar.write(store, view);
    const waits = !store.longest() && (state === "waiting" || state === "running");
    bar.node.hidden = !store.longest() && !waits;
    grid.hidden = !titles.length;
    empty.hidden = Boolean(store.longest());
    toCome.hidden = !waits;
    why.textContent = waits ? "Waiting for the first step" : "No step was made";
    tell(state, titles);
  }

  function tell(state, titles) {
    if (root.dataset.state && root.dataset.state !== state && state !== "running") {
      view.say(state === "lost" ? "The kernel ended while this ran" : `Training ${state}`);
    }
    const step = Math.max(...store.runs.map((run) => run.step ?? -1), -1);
    Object.assign(root.dataset, {
      points: store.longest(), metrics: new Set(store.series.map((series) => series.metric)).size,
      panels: titles.length, runs: store.runs.length, step: step < 0 ? "" : step, state,
      scale: model.get("scale"), smoothing: model.get("smoothing"), frames,
      zoom: model.get("zoom").map((each) => Math.round(each)).join(" "),
    });
  }

  function arrange(titles) {
    // Before the first step, show as many empty panels as there will be.
    const awaited = titles.length ? 0 : Math.max(1, model.get("awaited"));
    const most = width < 620 ? 1 : width < 960 ? 2 : 3;
    const count = titles.length || awaited;
    const across = Math.min(most, count === 4 ? 2 : count);
    const each = Math.floor((width - (across - 1) * 14) / across) - 26;
    grid.style.gridTemplateColumns = toCome.style.gridTemplateColumns = `repeat(${across}, minmax(0, 1fr))`;
    if (toCome.children.length !== awaited) {
      toCome.replaceChildren(...Array.from({ length: awaited }, () => panelToCome()));
    }
    for (const [title, panel] of panels) {
      if (titles.includes(title)) continue;
      panel.destroy();
      panel.node.remove();
      panels.delete(title);
    }
    for (const title of titles) {
      if (!panels.has(title)) {
        panels.set(title, curvePanel(view, title));
        grid.append(panels.get(title).node);
      }
      panels.get(title).resize(each);
    }
  }

  const request = oncePerFrame(draw);
  const redraw = () => {
    theme = themeOf(root);
    draw();
  };
  const stops = [request.cancel, store.listen(request), listen(model, DRAWN_BY, request), onTheme(redraw),
    onWidth(root, (next) => {
      width = next - 4;
      redraw(); // a root that is not on the page yet has no style
    })];
  // Draw only visible views.
  const watcher = new IntersectionObserver(([entry]) => {
    watched = entry.isIntersecting;
    if (watched && stale) request();
  }, { rootMargin: "100px" });
  watcher.observe(root);
  const timer = setInterval(() => { if (root.dataset.state === "running") request(); }, SILENCE / 6);
  tell(heading.write(store), []);
  return () => {
    watcher.disconnect();
    clearInterval(timer);
    stops.forEach((stop) => stop());
    for (const panel of panels.values()) panel.destroy();
    root.remove();
  };
}

/** Return the title and the training's progress. */
function curvesHeading() {
  const title = element("h3", { class: "tpunb-title" }, "Training curves");
  const dot = element("i", { class: "tpunb-curves-dot" });
  const facts = element("span", {});
  const filled = element("div", {});
  const progress = element("div", { class: "tpunb-curves-progress", role: "progressbar",
    "aria-label": "steps made", "aria-valuemin": 0 }, filled);
  const status = element("div", { class: "tpunb-curves-status" }, dot, facts);
  const noted = element("div", { class: "tpunb-curves-notes", role: "status" });
  const node = element("header", { class: "tpunb-curves-heading" }, title, status, noted, progress);

  function write({ runs, notes, longest, reach, omissions, lost, silence }) {
    if (noted.children.length !== notes.length) noted.replaceChildren(...notes.map((note) => element("p", {}, note)));
    const last = stateOfRuns(runs);
    const state = lost && (last === "running" || last === "waiting") ? "lost" : last;
    if (runs.length === 1 && runs[0].name) title.textContent = runs[0].name;
    const current = runs.find((run) => run.state === "running") ?? runs[runs.length - 1] ?? {};
    status.dataset.state = state;
    const text = statusText(state, current, runs.length, longest(), reach()[0], silence());
    facts.textContent = [text, ...omissions].join(" · ");
    const share = current.total && current.step !== null ? Math.min(1, current.step / current.total) : 0;
    progress.hidden = !(current.total && state === "running");
    progress.setAttribute("aria-valuemax", current.total ?? 0);
    progress.setAttribute("aria-valuenow", current.step ?? 0);
    filled.style.width = `${100 * share}%`;
    return state;
  }
  return { node, write };
}

function stateOfRuns(runs) {
  for (const state of ["running", "stopped"]) if (runs.some((run) => run.state === state)) return state;
  return runs.length && runs.every((run) => run.state === "finished") ? "finished" : "waiting";
}

function statusText(state, { step, total, pace, name }, runs, points, first, silence) {
  if (state === "lost") {
    if (!points) return "the kernel ended before the first step";
    return `the kernel ended while this ran · ${reachedText(step, total)}`;
  }
  if (!points) return total ? `${state} · ${groups(total)} steps to come` : state;
  const several = runs > 1;
  if (state === "running") {
    const seconds = Math.round(silence / 1000);
    const news = silence < SILENCE ? pace : [`no news for ${seconds < 90 ? `${seconds} s` : `${Math.round(seconds / 60)} min`}`];
    return [several ? `${name}: running` : "running", reachedText(step, total), ...news].join(" · ");
  }
  const parts = [state];
  if (several) parts.push(`${runs} runs`);
  else parts.push(state === "stopped" && total ? reachedText(step, total) : stepsText(step + (first === 0 ? 1 : 0)));
  return [...parts, ...(several ? [] : pace)].join(" · ");
}

function reachedText(step, total) {
  const made = step === null || step === undefined ? "" : groups(step);
  return total ? `step ${made} of ${groups(total)}` : `step ${made}`;
}

function stepsText(count) { return `${groups(count)} ${count === 1 ? "step" : "steps"}`; }

/** Return the controls; `write` brings them up to date. */
function curvesToolbar(model, set, act) {
  const linear = toggle("Linear", "Linear scale of values", true, () => set("scale", "linear"));
  const log = toggle("Log", "Logarithmic scale of values", false, () => set("scale", "log"));
  const smoothing = slider("Smoothing", { max: 99, value: model.get("smoothing"), show: (value) => `${value} %` },
    (value) => set("smoothing", value));
  const spread = toggle("Spread", "Least and greatest value of the replicas", true, (on) => set("spread", on));
  const reset = button("Reset zoom", "Show all steps (double click, or Escape)", act.reset);
  const save = button("CSV", "Download what is shown as a CSV file", act.save);
  const runs = element("div", { class: "tpunb-curves-runs", role: "group", "aria-label": "Runs" });
  const node = element("div", { class: "tpunb-toolbar" },
    element("span", { class: "tpunb-group", role: "group", "aria-label": "Scale of values" }, linear, log),
    smoothing, runs, spread, element("span", { class: "tpunb-curves-right" }, reset, save));
  return {
    node,
    write(store, view) {
      linear.set(!view.isLog());
      log.set(view.isLog());
      if (Number(smoothing.input.value) !== model.get("smoothing")) smoothing.set(model.get("smoothing"));
      spread.set(view.spread());
      // The control keeps its place, so that the first step does not add a line of tools.
      spread.style.visibility = store.series.some((series) => series.lows) ? "" : "hidden";
      reset.hidden = model.get("zoom").length !== 2;
      runs.hidden = store.runs.length < 2;
      store.runs.forEach((run, number) => {
        const chip = runs.children[number] ?? runs.appendChild(runChip(number, act));
        chip.write(run.name);
      });
    },
  };
}

function runChip(run, act) {
  const name = element("span", {});
  const swatch = element("i", {});
  const chip = element("button", { type: "button", class: "tpunb-button tpunb-curves-run",
    click: () => act.toggleRun(run) }, swatch, name);
  chip.write = (text) => {
    name.textContent = text;
    swatch.style.background = act.colourOfRun(run);
    const shown = !act.isRunHidden(run);
    chip.setAttribute("aria-pressed", String(shown));
    chip.title = `${shown ? "Hide" : "Show"} ${text}`;
  };
  return chip;
}

/** Download the lines and steps that are shown, as a table. */
function saveTable(view, store) {
  const lines = store.panels().flatMap((title) => view.linesOf(title)).filter((line) => !line.hidden);
  const url = URL.createObjectURL(new Blob([tableText(lines, view.range(), store.runs)], { type: "text/csv" }));
  element("a", { href: url, download: "training-curves.csv" }).click();
  URL.revokeObjectURL(url);
}

function tableText(lines, [low, high], runs) {
  const rows = new Map();
  const names = [];
  for (const { series } of lines) {
    const prefix = runs.length > 1 ? `${runs[series.run].name}: ` : "";
    const columns = [["", series.values], [" min", series.lows], [" max", series.highs]];
    for (const [suffix, column] of columns) {
      if (!column) continue;
      const place = names.push(`${prefix}${series.metric}${suffix}`) - 1;
      for (let row = series.rowAt(low); row < series.length && series.steps[row] <= high; row += 1) {
        const step = series.steps[row];
        if (!rows.has(step)) rows.set(step, []);
        rows.get(step)[place] = column[row];
      }
    }
  }
  const steps = [...rows.keys()].sort((a, b) => a - b);
  const text = steps.map((step) => [step, ...names.map((_, place) => rows.get(step)[place] ?? "")].join(","));
  return `${["step", ...names].map(quoted).join(",")}\n${text.join("\n")}\n`;
}

function quoted(text) { return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text; }
