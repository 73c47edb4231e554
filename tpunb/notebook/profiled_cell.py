"""A cell's body, run in the notebook with the profiler around it."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.display import display

from tpunb import framework
from tpunb._util.units import counted
from tpunb.cells.reading.cell_errors import syntax_error
from tpunb.compiler.program import TpuProgram
from tpunb.training.input_speed import latest_input_speed
from tpunb.training.profile import Profile

_OPTIONS = re.compile(r"""\s*(?:(?:-o|--out|--keep)(?:=|\s+)(?:'[^']*'|"[^"]*"|\S+)(?:\s+|$))*""")

if TYPE_CHECKING:
    from tpunb.tensorflow.connection.connection import Connection


def split_line(line: str) -> tuple[str, str]:
    """Return the options of `%tpu_profile`, and the statement after them.

    Raises:
        UsageError: The statement is missing.
    """
    match = _OPTIONS.match(line)
    end = match.end() if match else 0
    if line[end:].startswith("--"):  # an unknown option
        return line, ""
    if not line[end:].strip():
        raise UsageError("%tpu_profile takes a statement; %%tpu_profile is for a whole cell.")
    return line[:end], line[end:]


def options_of_another_magic(line: str) -> str:
    """Return the part of `%%tpu_profile`'s line behind its own options."""
    match = _OPTIONS.match(line)
    return line[match.end() if match else 0 :].strip()


def run_profiled(shell: Any, source: str, keep: str | Path | None) -> Profile:
    """Run code, show the value of its last expression, and return its profile.

    Args:
        shell: An IPython shell, in whose namespace the code runs.
        source: A cell's body, below an empty line for the magic's own, or a statement. The body may
            have magics of its own.
        keep: The argument `keep` of `tpunb.profile`.

    Raises:
        CellError: The code is not valid Python.
    """
    __tracebackhide__ = True  # IPython shows an error of the cell without this frame
    body, last = _compiled(shell, source)
    with framework.tensorflow("%tpu_profile").profile(keep) as recorded:
        exec(body, shell.user_ns)
        value = None if last is None else eval(last, shell.user_ns)  # noqa: S307  the user's
    # Keras's History shows as an address, which says nothing above the profile.
    if value is not None and type(value).__name__ != "History":
        display(value)
    return recorded


def unrecorded_cores(connection: Connection | None) -> tuple[str, ...]:
    """Return a sentence if the cores belong to another process, as those of a TPU's workers."""
    devices = () if connection is None else connection.strategy.extended.worker_devices
    elsewhere = sum("/job:worker/" in device for device in devices)
    if not elsewhere:
        return ()
    text = (
        f"The {counted(elsewhere, 'core')} belong to other processes, and only this process is "
        "recorded: what they compute and exchange is host time here, spent waiting for them."
    )
    return (text,)


def about_a_tpus_input(recorded: Profile) -> tuple[str, ...]:
    """Return a sentence on a TPU's input wait, about which a run on processors says nothing."""
    if recorded.on_tpu:
        return ()
    known = latest_input_speed()
    if known is not None and known.needs:
        return (f"The input alone, measured before: {known.headline}",)
    text = (
        "A TPU's steps are shorter than these: tpunb.input_speed(dataset) measures the input alone "
        "and compares it with a TPU."
    )
    return (text,)


def compiler_estimates(connection: Connection | None) -> tuple[str, ...]:
    """Return a sentence on each estimated time on TPUs of the cell that was last compiled."""
    program = None if connection is None else connection.program
    if program is None:
        return ()
    programs = [program] if isinstance(program, TpuProgram) else program
    return tuple(
        f"The TPU's compiler estimates {one.time} for a call on {one.label} (last %%tpu_compile)."
        for one in programs
        if one.time is not None
    )


def _compiled(shell: Any, source: str) -> tuple[Any, Any]:
    """Return the code of the body, and of its last expression, whose value is shown."""
    head = "\n" if source.startswith("\n") else ""  # the transformation would remove it
    transformed = head + shell.transform_cell(source.removeprefix("\n"))
    running = getattr(shell.displayhook.exec_result, "execution_count", None)
    try:
        tree = shell.transform_ast(shell.compile.ast_parse(transformed))
        name = shell.compile.cache(transformed, running or shell.execution_count, source)
        last = None
        quiet = source.rstrip().endswith(";")
        if tree.body and isinstance(tree.body[-1], ast.Expr) and not quiet:
            last = shell.compile(ast.Expression(tree.body.pop().value), name, "eval")
        return shell.compile(tree, name, "exec"), last
    except SyntaxError as error:
        raise syntax_error(error) from None
