// The gallery's displays without a kernel. tests/live_displays.py records what a kernel would answer.
// host.js shows the widgets.

const here = document.currentScript.src;
const recorded = {};

/** Show a display in its place; the script of the display calls this. */
window.live = async (name, data) => {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const { state, buffers, ...views } = await new Response(stream).json();
  recorded[name] = views;
  const place = document.querySelector(`[data-display="${name}"]`);
  await window.mount(name, state, buffers, place);
  place.classList.add("alive"); // the style sheet hides the pictures
};

/** Answer a widget whose control has set a trait. */
window.toKernel = ({ id, state }) => {
  if (!state) return;
  const { model } = window.widgets[id];
  const html = recorded[id].views[recorded[id].traits.map((trait) => model.get(trait)).join()];
  if (html) model.update({ html }, {});
};

const observer = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    if (!isIntersecting) continue;
    observer.unobserve(target);
    const script = document.createElement("script");
    script.src = new URL(`live/${target.dataset.display}.js`, here);
    document.head.append(script);
  }
}, { rootMargin: "400px" });
document.querySelectorAll("[data-display]").forEach((place) => observer.observe(place));
