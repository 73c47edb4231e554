"""Compare libtpu's own verdict on a function with the verdict of `tpunb`."""

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
"""Names in the HLO of operations for which a TPU has its own generator or kernels."""
_PYTHON = os.environ.get("TPUNB_COMPILER_PYTHON") or sys.executable


@dataclasses.dataclass(frozen=True)
class Itself:
    """The verdict of libtpu itself.

    Attributes:
        refused: Why the function does not compile; empty if it does.
        peak: The peak memory of a core in bytes.
        otherwise: Whether TensorFlow lowers one of its operations differently for a TPU.
    """

    refused: str = ""
    peak: int = 0
    otherwise: bool = False


@dataclasses.dataclass(frozen=True)
class Ours:
    """The verdict of `tpunb`.

    Attributes:
        compile: The codes of the errors of `tpunb.compile`.
        check: The codes of the errors of `tpunb.check`.
        rules: The codes of the errors of the rules alone, without the compiler.
        unknown: Why there is no verdict.
        peak: The peak memory of a core in bytes.
    """

    compile: tuple[str, ...] = ()
    check: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    unknown: str = ""
    peak: int = 0


class Compiler:
    """libtpu in a process that shares no code with the package; a crash starts a new process.

    Args:
        effort: libtpu's name of the compilation effort; None for low effort, empty for full effort.
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
        """End the process."""
        if self._process is not None:
            self._process.communicate()


def _start(effort: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [_PYTHON, "-m", "verdicts.libtpu_alone", _TOPOLOGY, effort],
        cwd=_TESTS,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": ""},  # the variable is for this Python
    )


def itself(entry: Entry, compiler: Callable[[bytes], dict[str, Any]]) -> Itself:
    """libtpu's verdict on TensorFlow's own HLO of a function."""
    fn, specs = entry
    try:
        # Passing values only: parameters with defaults would become arguments of the HLO.
        lowered = tf.function(lambda *values: fn(*values), jit_compile=True)
        module = lowered.experimental_get_compiler_ir(*specs)(stage="hlo_serialized")
    except Exception as error:
        return Itself(refused=f"TensorFlow: {type(error).__name__}: {error}")
    return alone(module, compiler)


def alone(module: bytes, compiler: Callable[[bytes], dict[str, Any]]) -> Itself:
    """libtpu's verdict on a module that TensorFlow lowered."""
    return Itself(**compiler(module), otherwise=any(sign in module for sign in _OTHERWISE))


def ours(entry: Entry) -> Ours:
    """The package's verdict on a function."""
    fn, specs = entry
    return verdicts_on(fn, *specs, tpu=TPU)


def verdicts_on(fn: Any, *args: Any, tpu: str) -> Ours:
    """The package's verdict on a function with these arguments, compiled for a TPU type."""
    from support.rules import check as by_rules

    from tpunb.compiler.compile import compile as compile_for
    from tpunb.tensorflow.compiler.check import check

    try:
        program = compile_for(fn, *args, tpu=tpu)
        rules = by_rules(fn, *args)
        report = check(fn, *args)
    except Exception as error:  # TensorFlow itself refuses to trace the function.
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
    """The codes of problems, without duplicates."""
    return tuple(dict.fromkeys(problem.code for problem in problems))


def difference(name: str, package: Ours, libtpu: Itself) -> str:
    """Describe the undocumented differences in a sentence; return an empty text if all agree."""
    verdicts = {"compile": package.compile, "check": package.check, "rules": package.rules}
    wrong = [kind for kind, codes in verdicts.items() if bool(codes) is not bool(libtpu.refused)]
    if "crashed" in libtpu.refused:  # the rules decide then, so the verdict must be unknown
        wrong = [] if package.unknown else ["compile"]
    if wrong and name not in documented.VERDICTS:
        reason = libtpu.refused.partition("\n")[0][:300] or "compiles"
        return f"{', '.join(wrong)}: {package} against libtpu: {reason}"
    if not wrong and name in documented.VERDICTS:
        return "is documented as different, and is not"
    far = abs(package.peak - libtpu.peak) > 0.01 * max(package.peak, libtpu.peak)
    if package.peak and libtpu.peak and far and not libtpu.otherwise:
        return f"a peak of {package.peak} bytes, not {libtpu.peak}"
    return ""
