"""`doctor()`: what of this machine matters for TPUs, what is in the way, and what to do next."""

from __future__ import annotations

import dataclasses
import os
import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from tpunb.errors import TpunbError
from tpunb.machine import Finding, Machine, look
from tpunb.masking import mask, secrets_in
from tpunb.request import DEFAULT_TYPE, resolve
from tpunb.version import __version__

__all__ = ["DoctorReport", "Prospect", "doctor"]

_GIB = 2**30
_WIDTH = 96
_INDENT = "  "
_FAIL = "fail: "

Rows = list[tuple[str, str]]


@dataclasses.dataclass(frozen=True, slots=True)
class Prospect:
    """What `%tpu_connect` without arguments would do.

    Attributes:
        kind: What it would connect to; `"error"` if it would not.
        tpu: A TPU type to simulate, `"local"`, a name or addresses; empty for an error.
        says: The same in a sentence.
        mend: What to do about an error.
    """

    kind: Literal["hardware", "virtual", "error"]
    tpu: str
    says: str
    mend: str = ""


@dataclasses.dataclass(frozen=True, repr=False)
class DoctorReport:
    """What `doctor` found; shows itself in a notebook and a terminal.

    Attributes:
        machine: What of the machine matters.
        prospect: What `%tpu_connect` would do.
        hide: Takes secrets out of a text that is about to be shown. A function, as what
            lists an object's attributes would show a set of secrets.
    """

    machine: Machine
    prospect: Prospect
    hide: Callable[[str], str] = mask

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What is in the way or worth knowing; what has to be mended first comes first."""
        found = list(self.machine.findings)
        if self.prospect.kind == "error" and not any(finding.stops for finding in found):
            message = self.prospect.says.removeprefix(_FAIL)
            found.insert(0, Finding("%tpu_connect", message, self.prospect.mend))
        return tuple(found)

    @property
    def ok(self) -> bool:
        """Whether nothing has to be mended first."""
        return not any(finding.stops for finding in self.findings)

    @property
    def next_step(self) -> str:
        """The one thing to type next; or to do, where there is nothing to type."""
        if not self.ok:
            first = self.findings[0]
            return self.hide(first.command or first.mend)
        if self.prospect.kind == "virtual" and self.prospect.tpu == DEFAULT_TYPE:
            return f"%tpu_connect --simulate {DEFAULT_TYPE}"
        return "%tpu_connect"

    @property
    def _next(self) -> str:
        """Where the next step is to be typed, if that has to be said."""
        if not self.ok and self.findings[0].command:
            return "Next, in a terminal (or in a cell, with ! before it)"
        return "Next"

    def as_dict(self) -> dict[str, Any]:
        """All of it as dicts, lists, strings and numbers, for JSON; without secrets."""
        search, software = self.machine.search, self.machine.software
        found: dict[str, Any] = {
            "tpunb": __version__,
            "ok": self.ok,
            "place": {**dataclasses.asdict(search.place), "name": search.place.name},
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
            "findings": [dataclasses.asdict(finding) for finding in self.findings],
            "next": self.next_step,
        }
        hidden: dict[str, Any] = self._hidden(found)
        return hidden

    def sections(self) -> list[tuple[str, Rows]]:
        """What is shown: sections of rows, each a name and a value."""
        found = [
            ("Where", list(self._where())),
            ("TPU", list(self._tpu())),
            ("Software", list(self._software())),
            ("Environment", list(self.machine.variables.items())),
            ("Memory", list(self._memory())),
            ("%tpu_connect", [("would", self.prospect.says)]),
            ("To mend first", _lines(self.findings, stops=True)),
            ("Worth knowing", _lines(self.findings, stops=False)),
        ]
        return [
            (title, [(self.hide(name), self.hide(value)) for name, value in rows])
            for title, rows in found
            if rows
        ]

    @property
    def headline(self) -> str:
        """How things stand, in a line."""
        if self.ok:
            return "TPU doctor: all is in order"
        count = sum(finding.stops for finding in self.findings)
        return f"TPU doctor: {count} {'thing' if count == 1 else 'things'} to mend first"

    def __str__(self) -> str:
        sections = self.sections()
        width = max(len(name) for _, rows in sections for name, _ in rows)
        lines = [self.headline]
        for title, rows in sections:
            lines += ["", title, *(_row(name, value, width) for name, value in rows)]
        return "\n".join([*lines, "", self._next, f"{_INDENT}{self.next_step}"])

    __repr__ = __str__

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text("DoctorReport(...)" if cycle else str(self))

    def _repr_html_(self) -> str:
        from tpunb.draw.checkup import checkup_html

        return checkup_html(
            self.headline, self.sections(), (self._next, self.next_step), ok=self.ok
        )

    def _where(self) -> Iterator[tuple[str, str]]:
        place = self.machine.search.place
        signs = "; ".join(sign for sign in (place.sign, place.tpu_sign) if sign)
        yield "place", f"{place.name} ({signs})" if signs else place.name
        yield "system", self.machine.system

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
            held = "held by none" if lock.stale else f"held by process {lock.pid}"
            yield "lock file", f"{lock.path}, {held if lock.stale or lock.pid else 'unknown whose'}"
        for number, holder in enumerate(holding.holders):
            me = ", this one" if holder.is_self else ""
            yield "" if number else "held by", f"{holder.name}{me}: {', '.join(holder.files)}"
        if holding.unseen and search.tpu == "local":
            command = f"sudo lsof -w {' '.join(holding.devices)}".strip()
            yield "not seen", f"processes of other users; {command} shows them"

    def _software(self) -> Iterator[tuple[str, str]]:
        yield "Python", self.machine.software.python
        yield from self.machine.software.versions.items()
        if self.machine.software.libtpu:
            yield "libtpu", self.machine.software.libtpu

    def _memory(self) -> Iterator[tuple[str, str]]:
        memory = self.machine.memory
        if memory.total is not None:
            left = "" if memory.available is None else f", {_gib(memory.available)} available"
            yield "memory", f"{_gib(memory.total)}{left}"
        if memory.shared is not None:
            yield "/dev/shm", _gib(memory.shared)

    def _hidden(self, value: Any) -> Any:
        """A value without secrets, in all strings that it is made of."""
        if isinstance(value, str):
            return self.hide(value)
        if isinstance(value, Mapping):
            return {key: self._hidden(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._hidden(item) for item in value]
        return value


def doctor() -> DoctorReport:
    """Looks at this machine: its versions, TPU devices, who holds them, and its environment.

    TensorFlow is not imported, and nothing is connected to but, on Google Cloud, the
    machine's own metadata server.

    Returns:
        What was found, what `%tpu_connect` would do, what is in the way, and the one
        thing to do next; it displays itself.
    """
    secrets = secrets_in(os.environ)

    def hide(text: str) -> str:
        return mask(text, secrets)

    machine = look()
    prospect = _prospect(machine)
    shown = dataclasses.replace(
        prospect, tpu=hide(prospect.tpu), says=hide(prospect.says), mend=hide(prospect.mend)
    )
    return DoctorReport(machine, shown, hide)


def _prospect(machine: Machine) -> Prospect:
    """What connecting would do; nothing is connected to."""
    try:
        request = resolve(found=machine.search)
    except TpunbError as error:
        message = str(error).split("\n")[0]
        return Prospect("error", "", f"{_FAIL}{message}", error.mend)
    stops = next((finding for finding in machine.findings if finding.stops), None)
    named = ", which TPUNB_TPU names" if "TPUNB_TPU" in machine.variables else ""
    if machine.software.tensorflow is None:
        return Prospect("error", "", f"{_FAIL}TensorFlow is not installed", "Install TensorFlow.")
    if request.kind == "virtual":
        why = named or (", because no TPU was found" if machine.search.tpu is None else "")
        return Prospect("virtual", request.tpu, f"simulate a {request.tpu}{why}")
    what = "the TPU of this machine (local)" if request.tpu == "local" else request.tpu
    says = f"connect to {what}{named}"
    if request.fallback:
        says += f", and simulate a {DEFAULT_TYPE} if it cannot be used"
    if stops is not None and request.tpu == "local":
        says += f"; as things stand it cannot: {stops.message}"
    return Prospect("hardware", request.tpu, says)


def _lines(findings: tuple[Finding, ...], *, stops: bool) -> Rows:
    rows = []
    for finding in findings:
        if finding.stops is not stops:
            continue
        rows.append((finding.about, finding.message))
        rows.append(("", finding.mend))
        if finding.command and finding.command not in finding.mend:
            rows.append(("", finding.command))
    return rows


def _row(name: str, value: str, width: int) -> str:
    head = f"{_INDENT}{name:<{width}}  "
    return textwrap.fill(
        value,
        width=_WIDTH,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _gib(count: int) -> str:
    return f"{count / _GIB:.1f} GiB"
