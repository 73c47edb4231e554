"""Tab completion of the magics' options and of their values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from IPython.core.completer import CompletionContext, SimpleCompletion, context_matcher

from tpunb.tpu.types import accelerator_types
from tpunb.virtual.arithmetic import ARITHMETICS
from tpunb.virtual.strictness import RULES

_LINE = re.compile(r"\s*(?:\w+\s*=\s*)?%%?(\w+)\s(.*)")

# A name, or several names, on the left of `=` or an operator such as `+=`, but not of `==`.
_ASSIGNED = re.compile(r"^[ \t]*(\w+(?:[ \t]*,[ \t]*\w+)*)[ \t]*[-+*/@]*=(?!=)", re.MULTILINE)

_FIXED: dict[object, Callable[[], Iterable[str]]] = {
    "TYPE": accelerator_types,
    "ARITHMETIC": lambda: ARITHMETICS,
    "RULE": lambda: RULES,
}


def magic_matcher(
    magics: Mapping[str, Callable[..., Any]], namespace: Mapping[str, Any]
) -> Callable[..., Any]:
    """Return a matcher for IPython's completer.

    Args:
        magics: The magics by name; their own parsers tell their options.
        namespace: The notebook's names, for options that take data.

    Returns:
        A matcher (IPython's matcher API v2).
    """

    @context_matcher(identifier="tpunb.notebook.magics", priority=200)
    def matcher(context: CompletionContext) -> dict[str, Any]:
        line = _LINE.fullmatch(context.line_with_cursor[: context.cursor_position])
        if line is None or line[1] not in magics:
            return {"completions": []}  # a new list each time, because IPython writes into it
        *before, start = re.split(r"\s+", line[2])
        choices = _choices(magics[line[1]], before, start, namespace, context.full_text)
        found = [word for word in choices if word.startswith(start)]
        # The completer replaces its own idea of a token, which starts after "-" and ".".
        skipped = len(start) - len(context.token) if start.endswith(context.token) else 0
        completions = [SimpleCompletion(text=word[skipped:], type="option") for word in found]
        return {"completions": completions, "suppress": bool(completions), "ordered": True}

    made: Callable[..., Any] = matcher
    return made


def _choices(
    magic: Callable[..., Any],
    before: list[str],
    start: str,
    namespace: Mapping[str, Any],
    cell: str,
) -> list[str]:
    """Return the words that may follow the words before the cursor."""
    actions = magic.parser._actions  # type: ignore[attr-defined]
    previous = before[-1] if before else ""
    asked = [action for action in actions if previous in action.option_strings]
    if asked and asked[0].nargs != 0 and not (asked[0].nargs == "?" and start.startswith("-")):
        # In a list, complete the last item.
        typed, comma, last = start.rpartition(",")
        values = _values(asked[0], last, namespace, cell)
        return [f"{typed}{comma}{value}" for value in values]
    options = [
        name for action in actions for name in action.option_strings if name.startswith("--")
    ]
    types = [action for action in actions if action.dest == "type" and not action.option_strings]
    if types and not start.startswith("-"):
        return list(accelerator_types())
    return [name for name in options if name not in before]


def _values(option: Any, start: str, namespace: Mapping[str, Any], cell: str) -> Iterable[str]:
    """Yield the values that an option may have."""
    if option.dest == "data":
        # A dataset, an iterator or an array.
        marks = ("element_spec", "__next__", "__array__")
        named = ((name, type(value)) for name, value in namespace.items() if name[0] != "_")
        return [name for name, kind in named if any(hasattr(kind, mark) for mark in marks)]
    if option.dest == "reduce":
        name, equals, _ = start.partition("=")
        return [f"{name}={how}" for how in ("mean", "sum")] if equals else _assigned(cell)
    if option.dest in {"gather", "plot"}:
        return _assigned(cell)
    return _FIXED.get(option.metavar, tuple)()


def _assigned(cell: str) -> list[str]:
    """Return the names that a cell assigns, as far as the cell is written."""
    assigned = (name for names in _ASSIGNED.findall(cell) for name in names.split(","))
    return list(dict.fromkeys(name.strip() for name in assigned))
