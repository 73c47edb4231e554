"""The verdict of libtpu itself on a function, and that of `tpunb`, side by side."""

from __future__ import annotations

import dataclasses
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from verdicts import documented
from verdicts.specs import Entry

TPU = "v5e-1"
_TOPOLOGY = "v5e:1x1"
_TESTS = Path(__file__).parents[1]
_OTHERWISE = (b"rng-bit-generator", b"ResizeBilinear", b"ResizeNearestNeighbor")
"""What stands in HLO of operations that a TPU has its own generator or kernels for."""
_PYTHON = os.environ.get("TPUNB_COMPILER_PYTHON") or sys.executable


@dataclasses.dataclass(frozen=True)
class Itself:
    """What libtpu says by itself.

    Attributes:
        refused: Why it does not compile; empty if it does.
        peak: Bytes a core.
        otherwise: Whether TensorFlow lowers something in it otherwise for a TPU.
    """

    refused: str = ""
    peak: int = 0
    otherwise: bool = False


@dataclasses.dataclass(frozen=True)
class Ours:
    """What `tpunb` says.

    Attributes:
        compile: The codes of what `tpunb.compile` refuses.
        check: Those of `tpunb.check`.
        rules: Those of the rules alone, without the compiler.
        unknown: Why nothing is known.
        peak: Bytes a core.
    """

    compile: tuple[str, ...] = ()
    check: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    unknown: str = ""
    peak: int = 0


class Compiler:
    """libtpu in a process that shares no code with the package; another one after a crash.

    Args:
        effort: libtpu's name of how much it tries; None for little, empty for all.
    """

    def __init__(self, effort: str | None = None) -> None:
        self._effort = "EFFORT_O0" if effort is None else effort
        self._process: subprocess.Popen[bytes] | None = None

    def __call__(self, module: bytes) -> dict[str, Any]:
        process = self._process = self._process or _start(self._effort)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            pickle.dump(module, process.stdin)
            process.stdin.flush()
            return dict(pickle.load(process.stdout))
        except (EOFError, OSError):
            self._process = None
            return {"refused": f"libtpu: crashed ({process.wait()})"}

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            self._process.communicate()


def _start(effort: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [_PYTHON, "-m", "verdicts.libtpu_alone", _TOPOLOGY, effort],
        cwd=_TESTS,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": ""},  # what is there is for this Python
    )


def itself(entry: Entry, compiler: Callable[[bytes], dict[str, Any]]) -> Itself:
    """TensorFlow's own HLO of a function, compiled by libtpu itself."""
    fn, specs = entry
    try:
        # What has defaults would have them among its arguments.
        lowered = tf.function(lambda *values: fn(*values), jit_compile=True)
        module = lowered.experimental_get_compiler_ir(*specs)(stage="hlo_serialized")
    except Exception as error:
        return Itself(refused=f"TensorFlow: {type(error).__name__}: {error}")
    return alone(module, compiler)


def alone(module: bytes, compiler: Callable[[bytes], dict[str, Any]]) -> Itself:
    """What libtpu says of a module of TensorFlow's."""
    return Itself(**compiler(module), otherwise=any(sign in module for sign in _OTHERWISE))


def ours(entry: Entry) -> Ours:
    """The verdicts of the package."""
    fn, specs = entry
    return verdicts_on(fn, *specs, tpu=TPU)


def verdicts_on(fn: Any, *args: Any, tpu: str) -> Ours:
    """The package's verdicts on a function with some arguments, compiled for a TPU type."""
    from support.rules import check as by_rules

    from tpunb.compiler.check import check
    from tpunb.compiler.compile import compile as compile_for

    try:
        program = compile_for(fn, *args, tpu=tpu)
        rules = by_rules(fn, *args)
        report = check(fn, *args)
    except Exception as error:  # an error of tracing is TensorFlow's own refusal
        name = f"tracing: {type(error).__name__}"
        return Ours((name,), (name,), (name,))
    return Ours(
        codes_of(program.errors),
        codes_of(report.errors),
        codes_of(rules.errors),
        program.unknown,
        program.memory.peak if program.memory else 0,
    )


def codes_of(problems: Any) -> tuple[str, ...]:
    """The codes of problems, each once."""
    return tuple(dict.fromkeys(problem.code for problem in problems))


def difference(name: str, mine: Ours, own: Itself) -> str:
    """What differs and is not documented, in a sentence; empty where all agree."""
    verdicts = {"compile": mine.compile, "check": mine.check, "rules": mine.rules}
    wrong = [kind for kind, codes in verdicts.items() if bool(codes) is not bool(own.refused)]
    if "crashed" in own.refused:  # then the rules decide, and nobody takes it for yes
        wrong = [] if mine.unknown else ["compile"]
    if wrong and name not in documented.VERDICTS:
        reason = own.refused.partition("\n")[0][:300] or "compiles"
        return f"{', '.join(wrong)}: {mine} against libtpu: {reason}"
    if not wrong and name in documented.VERDICTS:
        return "is documented as different, and is not"
    far = abs(mine.peak - own.peak) > 0.01 * max(mine.peak, own.peak)
    if mine.peak and own.peak and far and not own.otherwise:
        return f"a peak of {mine.peak} and not {own.peak} bytes"
    return ""
