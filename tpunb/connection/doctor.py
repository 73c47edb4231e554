"""`doctor()`: checks this machine's TPU setup, and lists problems and the next step."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from tpunb._util.plain_text import hanging, plain
from tpunb._util.secret_masking import mask, secrets_in
from tpunb._util.units import byte_count, counted
from tpunb.compiler.ask import environment, libtpu
from tpunb.connection.options import Request
from tpunb.connection.plan import resolve
from tpunb.connection.tpu_connection import latest_connection
from tpunb.errors import TpunbError
from tpunb.machine.framework import JAX
from tpunb.machine.setup import Machine, look
from tpunb.machine.setup_problem import SetupProblem
from tpunb.tpu.default_tpu import DEFAULT_TPU
from tpunb.version import __version__

_WIDTH = 96
_INDENT = "  "

Rows = list[tuple[str, str]]


@dataclasses.dataclass(frozen=True, slots=True)
class Prospect:
    """The expected result of `%tpu_connect` without arguments.

    Attributes:
        kind: The kind of TPU; `"error"` if connecting fails.
        tpu: A TPU type to simulate, `"local"`, a name or addresses; empty for an error.
        says: The action in words, such as `"simulate a v5e-8"`; for an error, its message.
        fix: The fix of an error.
    """

    kind: Literal["hardware", "virtual", "error"]
    tpu: str
    says: str
    fix: str = ""


@dataclasses.dataclass(frozen=True, repr=False)
class DoctorReport:
    """The result of `doctor`, which displays itself in notebooks and terminals.

    Attributes:
        machine: The state of this machine.
        prospect: The expected result of `%tpu_connect` without arguments.
        connected: The current connection; empty if there is none.
        hide: Masks secrets in a text. It is a function rather than a set of secrets, which a
            listing of the attributes would show.
        compiler: The command that installs the TPU's own compiler; empty if it is installed.
        older_compiler: The sentences that the compiler's JAX is older than the notebook's; empty
            if it is not.
    """

    machine: Machine
    prospect: Prospect
    connected: str = ""
    hide: Callable[[str], str] = mask
    compiler: str = ""
    older_compiler: str = ""

    @property
    def problems(self) -> tuple[SetupProblem, ...]:
        """The problems, blocking ones first."""
        problems = list(self.machine.problems)
        fails = self.prospect.kind == "error" and not self.machine.software.stays_with_jax
        if fails and not any(problem.stops for problem in problems):
            problems.insert(0, SetupProblem("%tpu_connect", self.prospect.says, self.prospect.fix))
        if self.older_compiler:
            what, fix = self.older_compiler.split(". ", 1)
            problems.append(SetupProblem("compiler", f"{what}.", fix, stops=False))
        return tuple(problems)

    @property
    def ok(self) -> bool:
        """True if no problem is blocking."""
        return not any(problem.stops for problem in self.problems)

    @property
    def next_step(self) -> str:
        """The next command to type, or the next step in words."""
        if not self.ok:
            first = self.problems[0]
            return self.hide(first.command or first.fix)
        if self.connected:
            return "%tpu_status"
        if self.machine.software.stays_with_jax:
            return self.compiler or f"%%tpu_compile --for {DEFAULT_TPU}"
        if self.prospect.kind == "virtual" and self.prospect.tpu == DEFAULT_TPU:
            return f"%tpu_connect --simulate {DEFAULT_TPU}"
        return "%tpu_connect"

    @property
    def _next(self) -> str:
        """The title of the next step, with the place to type it if that is not a notebook cell."""
        command = self.compiler if self.ok else self.problems[0].command
        if command and command == self.next_step:
            return "Next, in a terminal (or in a cell, with ! before it)"
        return "Next"

    def as_dict(self) -> dict[str, Any]:
        """Return the report as dicts, lists, strings and numbers for JSON, without secrets."""
        search, software = self.machine.search, self.machine.software
        report: dict[str, Any] = {
            "tpunb": __version__,
            "ok": self.ok,
            "platform": {**dataclasses.asdict(search.platform), "name": search.platform.name},
            "tpu": {
                "found": search.tpu,
                "tried": search.tried,
                "notes": search.notes,
                "slice": dataclasses.asdict(search.slice),
            },
            "devices": dataclasses.asdict(search.chips),
            "software": {"system": self.machine.system, **dataclasses.asdict(software)},
            "holding": dataclasses.asdict(self.machine.holding),
            "environment": self.machine.variables,
            "memory": dataclasses.asdict(self.machine.memory),
            "connect": dataclasses.asdict(self.prospect),
            "problems": [dataclasses.asdict(problem) for problem in self.problems],
            "next": self.next_step,
        }
        hidden: dict[str, Any] = _hidden(report, self.hide)
        return hidden

    def sections(self) -> list[tuple[str, Rows]]:
        """Return the sections to display. Each has rows of a name and a value."""
        machine, memory = self.machine, self.machine.memory
        platform = machine.search.platform
        signs = "; ".join(sign for sign in (platform.sign, platform.tpu_sign) if sign)
        where = [
            ("platform", f"{platform.name} ({signs})" if signs else platform.name),
            ("system", machine.system),
        ]
        software = [("Python", machine.software.python), *machine.software.versions.items()]
        if machine.software.libtpu:
            software.append(("libtpu", machine.software.libtpu))
        sizes = []
        if memory.total is not None:
            left = "" if memory.available is None else f", {byte_count(memory.available)} available"
            sizes.append(("memory", f"{byte_count(memory.total)}{left}"))
        if memory.shared is not None:
            sizes.append(("/dev/shm", byte_count(memory.shared)))
        would = "fail: " if self.prospect.kind == "error" else ""
        connecting = [("action", f"would {would}{self.prospect.says}")]
        if self.connected:
            consequence = "another TPU would end it, and models would have to be made again"
            connecting.insert(0, ("connected", f"{self.connected}; connecting to {consequence}"))
        sections = [
            ("Where", where),
            ("TPU", list(self._tpu())),
            ("Software", software),
            ("Environment", list(machine.variables.items())),
            ("Memory", sizes),
            ("%tpu_connect", connecting),
            ("Fix first", _lines(self.problems, stops=True)),
            ("Worth knowing", _lines(self.problems, stops=False)),
        ]
        return [
            (title, [(self.hide(name), self.hide(value)) for name, value in rows])
            for title, rows in sections
            if rows
        ]

    @property
    def headline(self) -> str:
        """The result in one line."""
        if self.ok:
            return "TPU doctor: no problems found"
        count = sum(problem.stops for problem in self.problems)
        return f"TPU doctor: {counted(count, 'problem')} to fix first"

    def __str__(self) -> str:
        sections = self.sections()
        width = max(len(name) for _, rows in sections for name, _ in rows)
        lines = [self.headline]
        for title, rows in sections:
            lines += ["", title]
            lines += [hanging(f"{_INDENT}{name:<{width}}  ", value, _WIDTH) for name, value in rows]
        return plain("\n".join([*lines, "", self._next, f"{_INDENT}{self.next_step}"]))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from tpunb.display.draw.doctor_html import doctor_html

        return doctor_html(self.headline, self.sections(), (self._next, self.next_step), ok=self.ok)

    def _tpu(self) -> Iterator[tuple[str, str]]:
        search, holding = self.machine.search, self.machine.holding
        yield "found", search.tpu or "none"
        if search.slice.accelerator_type:
            yield "type", str(search.slice)
        for number, tried in enumerate(search.tried):
            yield "" if number else "tried", tried
        for number, note in enumerate(search.notes):
            yield "" if number else "note", note
        for lock in holding.locks:
            owner = f"process {lock.pid}" if lock.pid else "an unknown process"
            yield (
                "lock file",
                f"{lock.path}, {'not locked' if lock.stale else f'locked by {owner}'}",
            )
        for number, holder in enumerate(holding.holders):
            me = ", this process" if holder.is_self else ""
            yield "" if number else "in use by", f"{holder.name}{me}: {', '.join(holder.files)}"
        if holding.unseen and search.tpu == "local":
            command = f"sudo lsof -w {' '.join(holding.devices)}".strip()
            yield "not visible", f"processes of other users; {command} shows them"


def _hidden(value: Any, hide: Callable[[str], str]) -> Any:
    """Return a value whose strings have their secrets masked."""
    if isinstance(value, str):
        return hide(value)
    if isinstance(value, Mapping):
        return {key: _hidden(item, hide) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_hidden(item, hide) for item in value]
    return value


def doctor() -> DoctorReport:
    """Check this machine: versions, TPU devices and their users, and the environment.

    The check does not import TensorFlow. It connects to no server except, on Google Cloud,
    the machine's own metadata server.

    Example:
        >>> report = tpunb.doctor()
        >>> sorted(report.as_dict())[:3]
        ['connect', 'devices', 'environment']

        In a notebook, the report displays itself. `report.ok` says whether no problem is in the
        way, and `report.next_step` is what to type next.

    Returns:
        A report that displays itself: the state of the machine, the expected result of
        `%tpu_connect`, problems, and the next step.
    """
    secrets = secrets_in(os.environ)

    def hide(text: str) -> str:
        return mask(text, secrets)

    machine = look()
    prospect = Prospect(**_hidden(dataclasses.asdict(_prospect(machine)), hide))
    connection = latest_connection()
    connected = "" if connection is None else hide(connection.phrase)
    older = _older_compiler(machine.software.versions.get("jax"))
    return DoctorReport(machine, prospect, connected, hide, _compiler(), older)


def _compiler() -> str:
    """Return the command that installs the TPU's own compiler, or an empty string."""
    return "tpunb compiler install" if libtpu.why_unavailable() is not None else ""


def _older_compiler(jax: str | None) -> str:
    """Return the sentences that the installed compiler is older than JAX; empty if it is not."""
    installed = environment.find()
    if jax is None or installed is None or os.environ.get(libtpu.PYTHON):
        return ""
    return environment.older_than(installed.versions.get("jax", jax), jax)


def _prospect(machine: Machine) -> Prospect:
    """Predict the result of connecting, without connecting."""
    try:
        plan = resolve(Request(), machine.search)
    except TpunbError as error:
        return Prospect("error", "", str(error).split("\n")[0], error.fix)
    stops = next((problem for problem in machine.problems if problem.stops), None)
    named = ", which TPUNB_TPU names" if "TPUNB_TPU" in machine.variables else ""
    if plan.framework == JAX:
        if stops is not None and stops.about == "jax":
            return Prospect("error", "", stops.message, stops.fix)
        says = f"simulate a {plan.tpu} for JAX"
        if plan.kind == "hardware":
            says = "use the TPU of this machine (local) for JAX"
        return Prospect(plan.kind, plan.tpu, says)
    if machine.software.tensorflow is None:
        says = "TensorFlow is not installed"
        says += "; for JAX, add --framework jax" if machine.software.stays_with_jax else ""
        return Prospect("error", "", says, "Install TensorFlow.")
    if plan.kind == "virtual":
        why = named or (", because no TPU was found" if machine.search.tpu is None else "")
        return Prospect("virtual", plan.tpu, f"simulate a {plan.tpu}{why}")
    tpu = "the TPU of this machine (local)" if plan.tpu == "local" else plan.tpu
    says = f"connect to {tpu}{named}"
    if plan.fallback:
        says += f", and simulate a {DEFAULT_TPU} if it cannot be used"
    if stops is not None and plan.tpu == "local":
        says += f"; currently blocked: {stops.message}"
    return Prospect("hardware", plan.tpu, says)


def _lines(problems: tuple[SetupProblem, ...], *, stops: bool) -> Rows:
    rows = []
    for problem in problems:
        if problem.stops is not stops:
            continue
        rows.append((problem.about, problem.message))
        rows.append(("", problem.fix))
        if problem.command and problem.command not in problem.fix:
            rows.append(("", problem.command))
    return rows
