"""The parts of pages that only the site has: the known errors, and the options of the commands.

A page says where the part belongs: between `<!-- generated: NAME -->` and `<!-- /generated -->`.
The text there tells a reader of the repository where to find it.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from interface import commands, described, exit_codes, meaning, options, pytest_options, usage

from tpunb._util.tables import escaped
from tpunb._util.units import byte_count
from tpunb.cli.explain import errors_page
from tpunb.compiler.program import TpuProgram, load_program
from tpunb.errors.catalogue import CHAPTERS, ENTRIES

ROOT = Path(__file__).parents[1]
PYODIDE = ROOT / "build" / "pyodide" / "package"
PROGRAMS = ROOT / "docs" / "programs"

_PLACE = re.compile(r"<!-- generated: (\w+) -->\n.*?<!-- /generated -->\n", re.DOTALL)
_ENTRY = re.compile(r"^### (\w+)\. .*", re.MULTILINE)


def with_generated(page: str) -> str:
    """Return a page as the site has it, with the parts that are made from the code."""
    return _PLACE.sub(lambda place: _PARTS[place[1]](), page)


def _errors() -> str:
    """Return the entries of the catalogue, each with its anchor, and links to the chapters."""
    _, _, entries = errors_page().partition("\n## ")
    marked = _ENTRY.sub(_heading, f"## {entries}")
    links = (f"[{name}](#{_slug(name)})" for name in CHAPTERS)
    return f"On this page: {' · '.join(links)}\n\n{marked}"


def _slug(heading: str) -> str:
    """Return the anchor of a heading."""
    return re.sub(r"[^\w ]", "", heading.lower()).replace(" ", "-")


def _heading(match: re.Match[str]) -> str:
    # Markdown would print names like `__init__` in bold.
    title = re.sub(r"\S*__\S*", r"`\g<0>`", match[0])
    return f'<a id="{ENTRIES[match[1]].anchor}"></a>\n\n{title}'


def _options() -> str:
    return "\n".join([*_commands(), *_pytest()])


def _commands() -> Iterator[str]:
    for name, parser in commands().items():
        yield f"### `{name}`\n"
        yield f"{_markdown(described(parser))}\n"
        yield from _table(parser)
        if codes := exit_codes(parser):
            yield f"E{_markdown(codes)[1:]}.\n".replace("..", ".")


def _pytest() -> Iterator[str]:
    yield "### pytest\n"
    yield "The plugin is part of tpunb, and pytest finds it. The fixture is `tpu_compiler`.\n"
    yield from _rows((usage(each), each.help or "") for each in pytest_options())


def _table(parser: argparse.ArgumentParser) -> Iterator[str]:
    yield from _rows((usage(each), meaning(parser, each)) for each in options(parser))


def _rows(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    lines = [f"| `{_cell(option)}` | {_cell(_markdown(text))} |" for option, text in rows]
    if lines:
        yield "| option | meaning |\n|---|---|"
        yield from [*lines, ""]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _markdown(text: str) -> str:
    """Return a text on one line, with names that Markdown would change as code."""
    text = " ".join(text.replace("``", "`").split())
    return re.sub(
        r"(?<![`\w.-])(%%?\w+|--?[a-z][\w-]*|[\w.]*_\w+(?:=\w+)?)(?![`\w])", r"`\1`", text
    )


def _browser() -> str:
    """Return the form of the page that runs tpunb, which `docs/static/browser.js` makes live."""
    if not PYODIDE.is_dir():
        return "This copy of the site has no Pyodide, because `make site` found no npm.\n"
    names = sorted(path.name for path in PROGRAMS.glob("*.tpuprogram"))
    return _FORM.format(programs="\n".join(map(_choice, names)))


def _choice(name: str) -> str:
    """Return the line of a program that can be chosen, with its verdict."""
    program = load_program(PROGRAMS / name)
    assert isinstance(program, TpuProgram)
    assert program.memory
    used = f"{byte_count(program.memory.peak)} of {byte_count(program.memory.available)} a core"
    verdict = f"{'fits' if program.ok else 'does not fit'}, {used}"
    label = escaped(name.removesuffix(".tpuprogram"))
    return f'<label><input type="checkbox" value="{escaped(name)}"> {label}: {verdict}</label>'


_FORM = """\
<form id="tpunb-browser" onsubmit="return false">
<p role="status">This page needs JavaScript.</p>
<fieldset disabled>
<h2>Compiled programs</h2>
{programs}
<p><button name="open">Show, or compare several</button> <label>Your own: <input type="file" name="file" accept=".tpuprogram"></label></p>
<h2>An error</h2>
<textarea name="error" rows="4" aria-label="Error" placeholder="A message, a traceback or a log"></textarea>
<button name="explain">Explain</button>
<h2>Python</h2>
<textarea name="code" rows="4" aria-label="Python" spellcheck="false">tpunb.draw.chip("v5e-8")</textarea>
<button name="run">Run</button>
</fieldset>
<output></output>
</form>
"""

_PARTS = {"browser": _browser, "errors": _errors, "options": _options}
