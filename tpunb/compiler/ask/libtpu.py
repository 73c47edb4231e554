"""Requests to libtpu, which compiles in a separate process.

The process starts when it is first needed, stays alive, and ends with this process. libtpu aborts
on some programs; then a new process replaces it.
"""

from __future__ import annotations

import atexit
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
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import IO, Any, Protocol

from tpunb._util.child_process import ChildLostError, ChildProcess, start_child
from tpunb._util.deadline import Deadline
from tpunb._util.logs import timed
from tpunb._util.plain_values import record_from
from tpunb._util.units import byte_count
from tpunb.compiler.ask import environment, kept_verdicts, recorded_verdicts, versions
from tpunb.compiler.ask.answers import Compiled, Refused, Schedule
from tpunb.compiler.ask.fingerprint import Fingerprint
from tpunb.compiler.ask.topologies import Target
from tpunb.compiler.program import CompilerUnavailableError
from tpunb.errors import NotKnownError
from tpunb.errors.code_problems import Problem, SourceLine
from tpunb.machine import resources
from tpunb.tpu.compiled_program import Provenance

_LOW_EFFORT = "EFFORT_O0"
"""libtpu's name of a compilation that takes a tenth of the time. The verdict is the same, the peak
of memory differs by a few percent, and its cycles are meaningless."""

PYTHON = "TPUNB_COMPILER_PYTHON"
"""The environment variable that names a Python with libtpu and JAX, if this Python lacks them."""

_ENVIRONMENT = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # beside another notebook's, or the program of a real TPU
    "JAX_PLATFORMS": "cpu",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",  # otherwise libtpu asks a metadata server
    "TPU_LIBRARY_PATH": "",  # JAX or TensorFlow may have set it for this process
    "TPU_LOG_DIR": "disabled",
    "TPU_MIN_LOG_LEVEL": "3",
    "TPU_SKIP_MDS_QUERY": "1",  # libtpu asks 30 times otherwise (jax-ml/jax#11668)
    "TPU_STDERR_LOG_LEVEL": "3",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "PYTHONWARNINGS": "ignore",
}
_SECONDS_FOR_RELEASES = 60.0
_FLAGS = ("LIBTPU_INIT_ARGS", "XLA_FLAGS")
"""The environment variables with the options of libtpu and XLA, which change programs."""

_WRITE_SCHEDULES = (
    "--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true "
    "--xla_jf_dump_llo_pass_label_regex=(final_bundles|final_hlo|dedup)"
)
"""libtpu's flags that write the schedules to a folder. It reads them when it is loaded."""

_SCRIPT = Path(__file__).with_name("libtpu_process.py")
_READER = Path(__file__).parents[1] / "read" / "bundles.py"
_INSTALL = (
    "tpunb compiler install (in a cell: !tpunb compiler install). It downloads "
    f"{environment.DOWNLOAD}, 1 GiB on disk, into your cache folder and does not change your "
    "packages."
)
_PACKAGES_HERE = environment.listed(environment.packages_for(sys.version_info[:2]))
_INSTALL_THERE = f"Install {_PACKAGES_HERE} for the Python that {PYTHON} names, or unset {PYTHON}."


Parameters = Sequence[tuple[str, bool]]
"""For each argument of the program, its name and whether it is a variable."""

MARK = re.compile(r"~~(\d+)")
"""The mark after the name of a JAX operation that makes it unique, because names are shared."""


def unmarked(text: str) -> str:
    """Return a text from libtpu without tpunb's marks."""
    return MARK.sub("", text)


def reason_in(error: str) -> str:
    """Return the first line of an error without its full stop."""
    return next(iter(unmarked(error).strip().splitlines()), "it gives no reason").rstrip(".:")


class Origins(Protocol):
    """The places that a program's instructions come from, by the names of their nodes."""

    def places(self, node: str) -> tuple[SourceLine, ...]:
        """Return the lines of the user's code that led to a node, innermost first."""

    def line(self, node: str) -> SourceLine | None:
        """Return the line to show for a node."""

    def layer(self, node: str) -> str:
        """Return a node's layer, or an empty string if it has none."""

    def operation(self, node: str) -> str:
        """Return the framework's operation, or an empty string if unknown."""


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A replica function that is ready for libtpu, or that libtpu cannot be asked about.

    Attributes:
        origins: The places that its operations come from.
        errors: The refusals of a TPU before its compiler is asked.
        unknown: Why the compiler cannot be asked; empty if it can.
        module: A serialized `HloModuleProto`, or for JAX a StableHLO module; empty without
            a module.
        jax: Whether the function is JAX's.
        parameters: The module's arguments.
        held_bytes: The bytes of its arguments, or of its results if they are larger, without
            padding: on a replica for TensorFlow, on all cores for JAX; 0 if unknown.
        notes: Remarks that a reader of the figures needs.
        fingerprint: The module's fingerprint, to store its verdicts under; None to store none.
        unsized: Why the module's figures do not apply to the function: its arguments have open
            sizes. Empty if they have none.
        bounded: The next steps if the compiler refuses a module with sizes that are only bounded.
        replicated: Whether a JAX module is one replica's, as of `jax.pmap`, and not partitioned.
        options: The user's options for the compiler, as in `jax.jit(compiler_options=...)`.
        mesh: The name and the size of each axis of the mesh of its cores; empty without names.
        shapes: The sizes of a JAX module's arguments and results, on all cores together.
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
    replicated: bool = False
    options: tuple[tuple[str, str], ...] = ()
    mesh: tuple[tuple[str, int], ...] = ()
    shapes: Collection[tuple[int, ...]] = ()

    def least_bytes(self, target: Target) -> int:
        """Return the bytes of its arguments or results on a core. The program needs more."""
        partitioned = self.jax and not self.replicated
        return self.held_bytes // (target.cores if partitioned else target.partitions)


@dataclasses.dataclass(frozen=True)
class Bounded:
    """A program with sizes that are only bounded, like the sizes of open batches.

    Attributes:
        fixed: Lowers the same program with fixed sizes.
        problem: Makes the error about bounded sizes from the compiler's message and the node that
            the message names.
        fix: The way to fix the sizes.
    """

    fixed: Callable[[], Prepared]
    problem: Callable[[str, str], Problem]
    fix: str


def why_unavailable() -> CompilerUnavailableError | None:
    """Return why the compiler is not available, or None if it is. This imports no package."""
    if python := os.environ.get(PYTHON):
        if shutil.which(python):
            return None
        return CompilerUnavailableError(
            f"{PYTHON} names {python}, which is not an executable file.",
            fix=f"Unset {PYTHON}, or name a Python that has JAX and libtpu.",
        )
    if error := environment.why_not_here():
        return error
    installed = environment.find()
    if (installed and not installed.problem) or environment.fits(_own()):
        return None
    if installed:
        why = f"The TPU's compiler in {installed.folder} cannot be used: {installed.problem}."
    elif own := _own():
        have, need = map(environment.listed, (own, environment.packages_for(sys.version_info[:2])))
        why = (
            f"The TPU's compiler is not installed: tpunb needs {need}, but this Python has {have}."
        )
    else:
        why = "The TPU's compiler is not installed."
    return CompilerUnavailableError(why, fix=_INSTALL)


def described() -> str:
    """Describe the compiler in use, which must exist."""
    if python := os.environ.get(PYTHON):
        return f"{python}, which {PYTHON} names"
    if (installed := environment.find()) and not installed.problem:
        return str(installed.folder)
    return f"{sys.executable}, which has {environment.listed(_own())}"


def _own() -> dict[str, str]:
    """Return the releases of JAX and libtpu that this process would import."""
    releases = {}
    for name in environment.PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            releases[name] = metadata.version(name)
    return releases


def require() -> None:
    """Raise an error if neither the compiler nor recorded verdicts are available.

    Raises:
        CompilerUnavailableError: Neither is available.
    """
    if error := why_unavailable():
        recorded_verdicts.require(error)


def start(*, speed: bool = False) -> None:
    """Start the compiler, whose imports take seconds, so that other work can go on meanwhile.

    Args:
        speed: Whether the time will be asked for, which another process estimates.

    Raises:
        CompilerUnavailableError: Neither the compiler nor recorded verdicts are available.
    """
    require()
    if why_unavailable() is None:
        _child(speed).start()


@timed("compiler", "compile with libtpu")
def ask(
    prepared: Prepared,
    target: Target,
    *,
    deadline: Deadline,
    low_effort: bool,
    text: bool,
    refused: bool = False,
    schedule: bool = False,
) -> Compiled | Refused:
    """Compile a function, unless the answer about an equal program is stored.

    Args:
        prepared: The function. A JAX function is partitioned over all cores, or runs on each.
        target: The target of the compilation.
        deadline: The deadline for the answer.
        low_effort: Whether the figures may be off by a few percent, in a tenth of the time.
        text: Whether to return the program's text.
        refused: Whether the function is known not to fit, and its text is wanted.
        schedule: Whether to return the figures of its kernels' schedules.

    Raises:
        CompilerLostError: The compiler crashed or took too long.
        CompilerUnavailableError: The compiler cannot be started.
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
        **({"replicated": True} if prepared.replicated else {}),
        **({"options": prepared.options} if prepared.options else {}),
    }
    if refused:
        request["refused_text"] = True
    if schedule:
        request["schedule"] = True
    answer = _kept_or_answered(prepared.fingerprint, request, target.tpu.name, deadline)
    provenance = _provenance(answer["made"], recorded=answer.get("recorded", False))
    if "error" in answer:
        return Refused(answer["error"], provenance, answer.get("text", ""))
    names = {field.name for field in dataclasses.fields(Compiled)} & answer.keys()
    figures = {name: answer[name] for name in names}
    for part in {"schedule", "product"} & names:
        figures[part] = {name: record_from(Schedule, each) for name, each in answer[part].items()}
    return Compiled(**{**figures, "provenance": provenance})


def _provenance(made: Mapping[str, Any], *, recorded: bool) -> Provenance:
    compiler = versions.releases(made["compiler"])
    # A verdict of this machine is about a program that this process has traced.
    traced_by = made["software"] if recorded else versions.software()
    return Provenance(made["time"], compiler, versions.releases(traced_by), recorded)


def why_unreadable(error: str, jax: str) -> str:
    """Return the reason why the compiler cannot read what JAX exports.

    Args:
        error: The error of the compiler's process.
        jax: The release of the JAX that exports.
    """
    releases = _releases(Deadline(_SECONDS_FOR_RELEASES))
    older = environment.older_than(releases.get("jax", jax), jax)
    return f"the compiler cannot read what JAX {jax} exports ({reason_in(error)}). {older}".rstrip()


def read_exported(module: bytes, deadline: Deadline) -> Mapping[str, Any]:
    """Read a program that JAX or another framework has exported: StableHLO, as text or bytecode.

    Returns:
        The `module` for `ask`, with a unique name `<name>~~<number>` for each operation. For
        each number its `places`: files and lines from the innermost. For each of its `arguments`
        the name and whether it is donated, and the first type with `open` sizes, if any. The
        `bytes` of its arguments, or of its results if they are larger. The numbers of devices
        of its `meshes`, the `axes` of the first mesh, and its `devices`: the numbers of replicas
        and partitions. A `digest` of the module without names, and the `names`. Or an `error`:
        the reason why it cannot be read.

    Raises:
        CompilerLostError: As for `ask`.
        CompilerUnavailableError: The compiler cannot be started.
    """
    return _answered({"exported": True, "module": module}, deadline)


def _kept_or_answered(
    program: Fingerprint | None, request: Mapping[str, Any], tpu: str, deadline: Deadline
) -> Mapping[str, Any]:
    """Return the stored answer about an equal program, or the compiler's answer.

    Raises:
        NotRecordedError: There is no compiler, and the answer is not among the recorded verdicts.
    """
    question = {**request, "module": ""}
    recordings = recorded_verdicts.folder()
    asked = {**question, "flags": recorded_verdicts.flags_for_tpus(_flags())}
    asked.pop("schedule", None)  # recorded answers without schedules are answers too
    if recordings is not None and (unavailable := why_unavailable()):
        return recorded_verdicts.recorded_answer(recordings, program, asked, tpu, unavailable)

    is_kept = program is not None and kept_verdicts.folder() is not None
    compiler = identity(deadline) if is_kept else None

    def answered() -> Mapping[str, Any]:
        answer = _answered(request, deadline)
        # The time limit may be over now, but it must not cost the answer.
        releases = compiler["releases"] if compiler else _releases(Deadline(_SECONDS_FOR_RELEASES))
        made = {"time": versions.now(), "compiler": releases, "software": versions.software()}
        return {**answer, "made": made}

    if program is None or compiler is None:
        answer = answered()
    else:
        answer = kept_verdicts.answer_for(program, {**question, **compiler}, answered)
    if recordings is not None and program is not None:
        made = {**answer["made"], "software": versions.software()}
        recorded_verdicts.record(recordings, program, asked, {**answer, "made": made})
    return answer


def identity(deadline: Deadline) -> Mapping[str, Any] | None:
    """Return everything about the compiler that its answers depend on, as JSON values.

    Returns:
        The releases, the user's flags and tpunb's own part; None if a release is not known, which
        may change later.
    """
    releases = _releases(deadline)
    if set(releases) != set(environment.PACKAGES):
        return None
    return {"releases": releases, "flags": _flags(), "process": _digest_of_script()}


def _releases(deadline: Deadline) -> dict[str, str]:
    """Return the releases of the compiler's packages."""
    if os.environ.get(PYTHON):
        return dict(_answered({"releases": list(environment.PACKAGES)}, deadline))
    if (installed := environment.find()) and not installed.problem:
        return dict(installed.versions)
    return _own()


@functools.cache
def _digest_of_script() -> str:
    return hashlib.sha256(_SCRIPT.read_bytes() + _READER.read_bytes()).hexdigest()


def flags() -> dict[str, str]:
    """Return the environment variables that change the compiler's answers, if they are set."""
    return {name: os.environ[name] for name in _FLAGS if os.environ.get(name)}


def _flags() -> tuple[str, ...]:
    """Return the user's flags for the compiler, which its process reads when it starts."""
    return tuple(os.environ.get(name, "") for name in _FLAGS)


class CompilerLostError(ChildLostError, NotKnownError):
    """The compiler's process gave no answer. The message is a sentence."""


def _answered(request: Mapping[str, Any], deadline: Deadline) -> Mapping[str, Any]:
    # Whichever process runs can read a module.
    schedule = "schedule" in request or ("topology" not in request and _runs_for_time_only())
    if "schedule" in request:
        request = {**request, "schedule": _folder_for_schedules(os.getpid())}
    try:
        answer: Mapping[str, Any] = _child(schedule).ask(request, deadline)
    except ChildLostError as error:
        more = ""
        if error.crashed and (refused := _REFUSED_FLAG.search(_errors_of_child())):
            raise CompilerUnavailableError(
                f"The TPU's compiler refuses a flag of yours: {refused[1].rstrip('.')}.",
                fix="Correct or remove it in os.environ['LIBTPU_INIT_ARGS'] or "
                "os.environ['XLA_FLAGS'].",
            ) from None
        if error.crashed:
            descriptor, path = tempfile.mkstemp(prefix="tpunb-", suffix=".hlo.pb")
            with os.fdopen(descriptor, "wb") as file:
                file.write(request.get("module", b""))
            more = f"; the program that caused this is in {path}"
        elif error.out_of_memory:
            total = resources.measure().total
            machine = f" of this machine's {byte_count(total)}" if total else ""
            more = (
                f"{machine}. Compile for one TPU type at a time, without `speed`, close other "
                "programs, or use a machine with more memory"
            )
        raise CompilerLostError(f"the compiler {error}{more}.", crashed=error.crashed) from None
    if "missing" in answer:
        raise CompilerUnavailableError(
            f"The TPU's compiler cannot be imported: {answer['missing']}.",
            fix=_INSTALL_THERE if os.environ.get(PYTHON) else _INSTALL,
        )
    if "broken" in answer:
        raise CompilerLostError(f"the compiler's process failed ({answer['broken']}).")
    return answer


# Libtpu 0.0.52 ends the process with "ERROR: Unknown command line flag 'xla_tpu_nosuch'" or "ERROR:
# Illegal value 'bad' specified for flag 'xla_tpu_…'; Unrecognized flag option: bad. Valid options
# are: auto, false, …", and jaxlib 0.10.2 with "Unknown flag in XLA_FLAGS: --xla_nosuch".
_REFUSED_FLAG = re.compile(
    r"(?:ERROR: )?((?:Unknown command line flag|Illegal value|Unknown flags? in XLA_FLAGS).{1,500})"
)
_MOST_ERRORS = 1 << 20
"""The bytes of the process's standard error that are kept."""


@functools.cache
def _errors() -> IO[bytes]:
    """Return the file with the standard error of the compiler's process."""
    file = tempfile.TemporaryFile(mode="ab+")  # noqa: SIM115  it lives as long as this process
    atexit.register(file.close)
    return file


def _errors_of_child() -> str:
    """Return what the compiler's process wrote last to its standard error."""
    file = _errors()
    file.seek(max(0, file.seek(0, os.SEEK_END) - _MOST_ERRORS))
    return file.read().decode("utf-8", errors="replace")


_children: dict[tuple[tuple[str, ...], bool], ChildProcess] = {}
"""The processes, by the flags that they were started with, and whether libtpu writes schedules."""


def _child(schedule: bool = False) -> ChildProcess:
    key = _flags(), schedule
    if key not in _children:
        for other in [other for other in _children if other[0] != key[0]]:
            _children.pop(other).close()
        _children[key] = ChildProcess(functools.partial(_start, schedule), seconds=300.0)
    return _children[key]


def _runs_for_time_only() -> bool:
    return (_flags(), True) in _children and (_flags(), False) not in _children


_REMOVE = 'read _; until rm -rf "$0"; do sleep 1; done'
"""What a shell does when its standard input ends, as it does with this process in any way."""


@functools.cache
def _folder_for_schedules(process: int) -> str:
    """Return a private folder that is removed when this process ends, however it ends.

    Args:
        process: The number of this process: a fork gets a folder of its own.
    """
    spaced = " " in tempfile.gettempdir()  # libtpu's flags cannot have one
    folder = tempfile.mkdtemp(prefix="tpunb-", dir="/tmp" if spaced else None)
    shell = subprocess.Popen(
        ["sh", "-c", _REMOVE, folder], stdin=subprocess.PIPE, start_new_session=True
    )

    def remove() -> None:
        if process == os.getpid():
            shell.communicate()

    atexit.register(remove)
    return folder


def _start(schedule: bool = False) -> subprocess.Popen[bytes]:
    errors = _errors()
    errors.truncate(0)
    environ = dict(_ENVIRONMENT)
    if schedule:
        written = _WRITE_SCHEDULES.format(folder=_folder_for_schedules(os.getpid()))
        own = os.environ.get("LIBTPU_INIT_ARGS", "")
        environ["LIBTPU_INIT_ARGS"] = f"{own} {written}".strip()
    run = f"import runpy; runpy.run_path({str(_SCRIPT)!r}, run_name='__main__')"
    # Beside recorded verdicts, the process may only have to read exports of JAX. This Python's JAX
    # does that where there is no compiler.
    reads_only = recorded_verdicts.folder() is not None and why_unavailable() is not None
    if not reads_only and (python := os.environ.get(PYTHON)):
        # Its Python has its own packages; and this folder may hide them, so remove it.
        path = "import sys; sys.path[:] = filter(None, sys.path)"
        environ["PYTHONPATH"] = ""
        return start_child(
            run, lambda code: [python, "-c", f"{path}; {code}"], environ, errors=errors
        )
    if not reads_only and (installed := environment.find()) and not installed.problem:
        return start_child(run, installed.command, environ, errors=errors)
    return start_child(run, environment=environ, errors=errors)
