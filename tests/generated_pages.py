"""The parts of pages that only the site has: the known errors, and the options of the commands.

A page says where the part belongs: between `<!-- generated: NAME -->` and `<!-- /generated -->`.
The text there tells a reader of the repository where to find it.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator

from interface import commands, described, exit_codes, meaning, options, pytest_options, usage

from tpunb.cli.explain import errors_page
from tpunb.errors.catalogue import CHAPTERS, ENTRIES

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


_PARTS = {"errors": _errors, "options": _options}
