"""The table of checks of a traced step of JAX: one function each, which yields what it finds."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterable

from tpunb._util.internal_errors import report_internal_error
from tpunb._util.logs import logger
from tpunb._util.plain_text import shortened
from tpunb.errors.code_problems import Choose, Problem, innermost
from tpunb.jax.checks import collectives, layouts, memory, numbers, shared_work, unsharded
from tpunb.jax.checks.call import Call

Row = Callable[[Call], Iterable[Problem]]

ROWS: tuple[Row, ...] = (
    collectives.repeated_sums,
    collectives.sums_of_means,
    collectives.differing_results,
    numbers.one_key,
    numbers.float64,
    memory.host_calls,
    memory.constants,
    memory.moved_arguments,
    shared_work.repeated_work,
    unsharded.unused_axes,
    unsharded.left_whole,
    layouts.unmatched_layouts,
)
"""The checks, the gravest first: wrong numbers before time and memory."""

_LONGEST_LINE = 80

_shown_elsewhere: set[str] = set()
"""The files of functions whose findings are shown where they are traced: cells of `%%tpu_run`."""


def findings_in_cell(call: Call, file: str) -> list[Problem]:
    """Return what a traced cell costs, with the lines of its own file. Nothing else shows it."""
    _shown_elsewhere.add(file)
    return _findings(call, lambda places: innermost([each for each in places if each.file == file]))


def findings(call: Call, choose: Choose = innermost) -> list[Problem]:
    """Return what a traced call costs, each cause once for each of the user's lines.

    Args:
        call: The call.
        choose: Chooses the line to show.
    """
    file = call.program.jaxpr.debug_info.func_filename
    return [] if is_shown_elsewhere(file) else _findings(call, choose)


def is_shown_elsewhere(file: str | None) -> bool:
    """Return whether a function's file is a cell of `%%tpu_run`."""
    return file in _shown_elsewhere


def _findings(call: Call, choose: Choose) -> list[Problem]:
    found: list[Problem] = []
    for row in ROWS:
        try:
            found += [problem.shown(choose) for problem in row(call)]
        except Exception as error:  # a check must not end the user's program
            report_internal_error(error, logger("checks"), f"{call.name} is not checked.")
    return list({(each.code, each.file, each.line): each for each in found}.values())


def sentence(problem: Problem) -> str:
    """Return a problem in a sentence or two, with the user's line."""
    return f"{_line_of(problem)}{problem.reason} {problem.fix}"


def _line_of(problem: Problem) -> str:
    if problem.line is None:
        return ""
    text = linecache.getline(problem.file, problem.line).strip()
    at = f"line {problem.line}"
    return f"{at}, `{shortened(text, _LONGEST_LINE)}`: " if text else f"{at}: "
