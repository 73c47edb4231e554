// The page that runs tpunb in Pyodide: generated_pages.py writes its form, and Python draws what it shows.

import { loadPyodide } from "./pyodide/pyodide.mjs";

const form = document.querySelector("#tpunb-browser");
const { code, error, file, open, explain, run } = form.elements;
const [status, output] = form.querySelectorAll("[role=status], output");

const SETUP = `
import ast, html, sys
sys.path.insert(0, ".")
import tpunb
from tpunb.compiler.program import TpuProgram, TpuPrograms

def shown(code, names={"tpunb": tpunb}):
    """Run code, and return its last expression's value as HTML."""
    body = ast.parse(code).body
    last = body.pop().value if body and isinstance(body[-1], ast.Expr) else ast.Constant(None)
    exec(compile(ast.Module(body, []), "<page>", "exec"), names)
    value = eval(compile(ast.Expression(last), "<page>", "eval"), names)
    if isinstance(value, list) and value and all(isinstance(each, TpuProgram) for each in value):
        value = TpuPrograms(value)
    if hasattr(value, "_repr_html_"):
        return value._repr_html_()
    return f"<pre>{html.escape(str(value))}</pre>"

`;

/** Start Python with tpunb and the programs. */
async function start() {
  const python = await loadPyodide({ indexURL: new URL("pyodide/", import.meta.url).href });
  const archive = await fetch(new URL("browser.zip", import.meta.url));
  python.unpackArchive(await archive.arrayBuffer(), "zip");
  python.runPython(SETUP);
  return python;
}

/** Run code, and show its value. */
function show(text) {
  code.value = text;
  output.dataset.state = "running";
  try {
    output.innerHTML = python.globals.get("shown")(text);
    output.dataset.state = "done";
  } catch (problem) {
    const lines = problem.message.trimEnd().split("\n");
    output.replaceChildren(Object.assign(document.createElement("pre"), { textContent: lines.slice(-3).join("\n") }));
    output.dataset.state = "failed";
  }
  output.scrollIntoView({ block: "nearest" });
}

const quoted = (text) => JSON.stringify(text);

open.addEventListener("click", () => {
  const names = [...form.querySelectorAll("[type=checkbox]:checked")].map(({ value }) => value);
  const calls = names.map((name) => `tpunb.load_program(${quoted(name)})`);
  show(calls.length === 1 ? calls[0] : `[\n${calls.map((call) => `    ${call},\n`).join("")}]`);
});
explain.addEventListener("click", () => show(`tpunb.explain(${quoted(error.value)}) or "tpunb does not know this error."`));
run.addEventListener("click", () => show(code.value));
file.addEventListener("change", async () => {
  const [{ name }] = file.files;
  python.FS.writeFile(name, new Uint8Array(await file.files[0].arrayBuffer()));
  show(`tpunb.load_program(${quoted(name)})`);
});

status.textContent = "Python starts: 14 MB are loaded once.";
const python = await start();
status.textContent = `tpunb ${python.runPython("tpunb.__version__")} in Python ${python.runPython("sys.version.split()[0]")}`;
form.querySelector("fieldset").disabled = false;
