"""Asks libtpu, which compiles in a process of its own.

The process is started when it is first needed, kept, and ended with this one. libtpu aborts
on some programs: then another takes its place.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

from tpunb._util.child_process import ChildLostError, ChildProcess, started
from tpunb._util.deadline import Deadline
from tpunb._util.logs import timed
from tpunb._util.units import byte_count
from tpunb.compiler import environment, kept_verdicts
from tpunb.compiler.fingerprint import Fingerprint
from tpunb.compiler.program import CompilerUnavailableError
from tpunb.compiler.topologies import Target
from tpunb.errors.code_problems import Problem, SourceLine
from tpunb.machine import resources

_LOW_EFFORT = "EFFORT_O0"
"""libtpu's name of a compilation that takes a tenth of the time: the verdict is the same, the
peak of memory within some percent, and its cycles say nothing."""

PYTHON = "TPUNB_COMPILER_PYTHON"
"""The environment variable with a Python that has libtpu and JAX, where this one has not."""

_ENVIRONMENT = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # beside another notebook's, or a TPU's own program
    "JAX_PLATFORMS": "cpu",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",  # else it asks a metadata server
    "TPU_LIBRARY_PATH": "",  # what JAX or TensorFlow found for this process
    "TPU_LOG_DIR": "disabled",
    "TPU_MIN_LOG_LEVEL": "3",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "PYTHONWARNINGS": "ignore",
}
_FLAGS = ("LIBTPU_INIT_ARGS", "XLA_FLAGS")
"""The environment variables of libtpu's and XLA's own options, which change programs."""

_SCRIPT = Path(__file__).with_name("libtpu_process.py")
_INSTALL = (
    "tpunb compiler install (in a cell: !tpunb compiler install). It downloads some 230 MB into "
    "your cache folder and changes no package of yours."
)
_INSTALL_THERE = (
    f"Install {' '.join(f'{name}=={one}' for name, one in environment.PACKAGES.items())} for the "
    f"Python that {PYTHON} names, or unset it."
)


Parameters = Sequence[tuple[str, bool]]
"""Of each argument of the program its name, and whether it is a variable."""

MARK = re.compile(r"~~(\d+)")
"""By which an operation of JAX is known behind its name, as names alone are shared."""


def unmarked(text: str) -> str:
    """A text of libtpu's without our marks."""
    return MARK.sub("", text)


class Origins(Protocol):
    """The places that the instructions of a program come from, by the names of their nodes."""

    def places(self, node: str) -> tuple[SourceLine, ...]:
        """The lines of the user's code that led to a node, innermost first."""

    def line(self, node: str) -> SourceLine | None:
        """The line that is shown for it."""

    def layer(self, node: str) -> str:
        """Its layer; empty where there is none."""

    def operation(self, node: str) -> str:
        """The framework's operation; empty where it is not known."""


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A replica function that libtpu can be asked about, or cannot.

    Attributes:
        origins: Where its operations came from.
        errors: What a TPU refuses before its compiler is asked.
        unknown: Why the compiler cannot be asked; empty where it can.
        module: A serialized `HloModuleProto`, of JAX a module of StableHLO; empty where there
            is none.
        jax: Whether it is JAX's.
        parameters: The module's arguments.
        held_bytes: What its arguments take, or its results if that is more, without padding: of
            TensorFlow on a replica, of JAX on all cores; 0 where it is not known.
        notes: What a reader has to know of the figures.
        fingerprint: The module's, under which its verdicts are kept; None to keep none.
        unsized: Why the figures of the module say nothing about the function's own: it has
            arguments of unknown sizes. Empty where it has none.
        bounded: What to do if the compiler refuses the module, where sizes are only bounded.
    """

    origins: Origins
    errors: tuple[Problem, ...] = ()
    unknown: str = ""
    module: bytes = b""
    jax: bool = False
    parameters: Parameters = ()
    held_bytes: int = 0
    notes: tuple[str, ...] = ()
    unsized: str = ""
    bounded: Bounded | None = None
    fingerprint: Fingerprint | None = None

    def least_bytes(self, target: Target) -> int:
        """Return what its arguments or results take of a core: the program takes more."""
        return self.held_bytes // (target.cores if self.jax else target.partitions)


@dataclasses.dataclass(frozen=True)
class Bounded:
    """A program some of whose sizes are only bounded, as those of batches that are not fixed.

    Attributes:
        fixed: Lowers the same program with fixed sizes.
        problem: Makes the error that the compiler does not take bounded sizes from its message
            and the node that the message names.
        fix: How the sizes become fixed.
    """

    fixed: Callable[[], Prepared]
    problem: Callable[[str, str], Problem]
    fix: str


@dataclasses.dataclass(frozen=True, slots=True)
class Kernel:
    """The work of all steps of a Pallas kernel, without and with what stands under a condition.

    Attributes:
        steps: Of its grid.
        flops: Multiplications and additions of its products, as many as in bfloat16 take as long.
        cycles: Of the vector unit.
        bytes: Copied from HBM and to it.
        declared: Multiplications and additions, and bytes, that the kernel's author declared: the
            compiler's roofline has these.
    """

    steps: int
    flops: tuple[float, float]
    cycles: tuple[float, float]
    bytes: tuple[float, float]
    declared: tuple[float, float]


@dataclasses.dataclass(frozen=True, slots=True)
class Compiled:
    """A module that libtpu compiled; sizes are in bytes per core.

    Attributes:
        peak: The most memory in use at a time.
        arguments: Memory of the arguments.
        outputs: Of the results, with those that take an argument's place.
        aliased: Of those.
        code: Of the program.
        text: The optimised HLO; empty where libtpu did not give it.
        cost: Its cost analysis.
        kernels: Its Pallas kernels, by the names of their instructions.
        bounded: Whether some sizes have only a bound.
    """

    peak: int
    arguments: int
    outputs: int
    aliased: int
    code: int
    text: str
    cost: Mapping[str, float]
    kernels: Mapping[str, Kernel]
    bounded: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Refused:
    """The reason why libtpu does not compile a module.

    Attributes:
        message: Its error.
    """

    message: str


def why_unavailable() -> CompilerUnavailableError | None:
    """Return why the compiler is not available here, or None; imports no package."""
    if python := os.environ.get(PYTHON):
        if shutil.which(python):
            return None
        return CompilerUnavailableError(
            f"{PYTHON} names {python}, which is not an executable file.",
            fix="Unset it, or name a Python that has JAX and libtpu.",
        )
    if error := environment.why_not_here():
        return error
    if ((made := environment.find()) and not made.problem) or _own() == environment.PACKAGES:
        return None
    if made:
        why = f"The TPU's compiler in {made.folder} cannot be used: {made.problem}."
    elif own := _own():
        have, need = environment.listed(own), environment.listed(environment.PACKAGES)
        why = f"The TPU's compiler is not installed: here is {have}, and tpunb needs {need}."
    else:
        why = "The TPU's compiler is not installed."
    return CompilerUnavailableError(why, fix=_INSTALL)


def described() -> str:
    """Return the compiler's name and version in words; there has to be one."""
    if python := os.environ.get(PYTHON):
        return f"{python}, which {PYTHON} names"
    if (made := environment.find()) and not made.problem:
        return str(made.folder)
    return f"{sys.executable}, which has {environment.listed(_own())}"


def _own() -> dict[str, str]:
    """The releases of JAX and libtpu that this process would import."""
    found = {}
    for name in environment.PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def require() -> None:
    """Fails where there is no compiler.

    Raises:
        CompilerUnavailableError: There is none.
    """
    if error := why_unavailable():
        raise error


def start() -> None:
    """Starts the compiler, whose imports take seconds, beside what has to be done before.

    Raises:
        CompilerUnavailableError: There is none.
    """
    require()
    _child().start()


@timed("compiler", "compile with libtpu")
def ask(
    prepared: Prepared, target: Target, *, deadline: Deadline, low_effort: bool, text: bool
) -> Compiled | Refused:
    """Compiles a function, unless the answer about an equal program is kept.

    Args:
        prepared: The function; one of JAX is partitioned over all cores.
        target: What to compile for.
        deadline: When the answer has to be there.
        low_effort: Whether the figures may differ by some percent, in a tenth of the time.
        text: Whether the program is wanted.

    Raises:
        ChildLostError: The compiler crashed or took too long; the message is a sentence.
        CompilerUnavailableError: It cannot be started.
    """
    request = {
        "module": prepared.module,
        "topology": target.topology,
        "chip": target.chip,
        "replicas": target.replicas,
        "partitions": target.partitions,
        "effort": _LOW_EFFORT if low_effort else "",
        "text": text,
        "jax": prepared.jax,
    }
    answer = _kept_or_answered(prepared.fingerprint, request, deadline)
    if "error" in answer:
        return Refused(answer["error"])
    kernels = {name: Kernel(*work) for name, work in answer["kernels"].items()}
    return Compiled(**{**answer, "kernels": kernels})


def read_exported(module: bytes, deadline: Deadline) -> Mapping[str, Any]:
    """Reads what JAX has exported.

    Returns:
        The `module` for `ask`, with an own name for each operation, `<name>~~<number>`; of each
        number its `places`, files and lines from the innermost; of each of its `arguments` the
        name and whether it is donated; how many devices its `mesh` has; a `digest` of it without
        names, and the `names`. Or `error`, why it cannot be read.

    Raises:
        ChildLostError: As `ask`.
        CompilerUnavailableError: It cannot be started.
    """
    return _answered({"exported": True, "module": module}, deadline)


def _kept_or_answered(
    program: Fingerprint | None, request: Mapping[str, Any], deadline: Deadline
) -> Mapping[str, Any]:
    """The answer that is kept about an equal program, or the compiler's."""

    def answered() -> Mapping[str, Any]:
        return _answered(request, deadline)

    if program is None or kept_verdicts.folder() is None:
        return answered()
    releases = _releases(deadline)
    if set(releases) != set(environment.PACKAGES):  # an unknown release may be replaced by another
        return answered()
    compiler = {"releases": releases, "flags": _flags(), "process": _digest_of_script()}
    question = {**request, **compiler, "module": ""}
    return kept_verdicts.answer_for(program, question, answered)


def _releases(deadline: Deadline) -> dict[str, str]:
    """The releases of the packages that compile."""
    if os.environ.get(PYTHON):
        return dict(_answered({"releases": list(environment.PACKAGES)}, deadline))
    if (made := environment.find()) and not made.problem:
        return dict(made.versions)
    return _own()


@functools.cache
def _digest_of_script() -> str:
    return hashlib.sha256(_SCRIPT.read_bytes()).hexdigest()


def _flags() -> tuple[str, ...]:
    """The user's flags for the compiler, which its process reads when it starts."""
    return tuple(os.environ.get(name, "") for name in _FLAGS)


def _answered(request: Mapping[str, Any], deadline: Deadline) -> Mapping[str, Any]:
    try:
        answer: Mapping[str, Any] = _child().ask(request, deadline)
    except ChildLostError as error:
        more = ""
        if error.crashed:
            descriptor, path = tempfile.mkstemp(prefix="tpunb-", suffix=".hlo.pb")
            with os.fdopen(descriptor, "wb") as file:
                file.write(request.get("module", b""))
            more = f"; the program that it crashed on is in {path}"
        elif error.out_of_memory:
            total = resources.measure().total
            of = f" of this machine's {byte_count(total)}" if total else ""
            more = (
                f"{of}. Compile for one TPU type at a time, without `speed`, beside fewer "
                "programs, or on a machine with more memory"
            )
        raise ChildLostError(f"the compiler {error}{more}.", crashed=error.crashed) from None
    if "missing" in answer:
        raise CompilerUnavailableError(
            f"The TPU's compiler cannot be imported: {answer['missing']}.",
            fix=_INSTALL_THERE if os.environ.get(PYTHON) else _INSTALL,
        )
    if "broken" in answer:
        raise ChildLostError(f"the compiler's process failed ({answer['broken']}).")
    return answer


_children: dict[tuple[str, ...], ChildProcess] = {}
"""The process, by the flags that it was started with; one at most."""


def _child() -> ChildProcess:
    flags = _flags()
    if flags not in _children:
        for other in list(_children.values()):
            other.close()
        _children.clear()
        _children[flags] = ChildProcess(_start, seconds=300.0)
    return _children[flags]


def _start() -> subprocess.Popen[bytes]:
    run = f"runpy.run_path({str(_SCRIPT)!r}, run_name='__main__')"
    if python := os.environ.get(PYTHON):
        # Neither our own packages are its, nor is this folder, which has a `libtpu` too.
        code = f"import sys, runpy; sys.path.remove(''); {run}"
        return started([python, "-c", code], {**_ENVIRONMENT, "PYTHONPATH": ""})
    if (made := environment.find()) and not made.problem:
        return started(made.command(f"import runpy; {run}"), _ENVIRONMENT)
    # As this process finds its packages, which need not be as a new one would.
    code = f"import sys, runpy; sys.path[:] = {sys.path!r}; {run}"
    return started([sys.executable, "-c", code], _ENVIRONMENT)
