"""A compiled program as `tpunb.compile` returns it, and the errors of compiling."""

from __future__ import annotations

import dataclasses
from typing import Any

from tpunb._util.plain_text import plain
from tpunb.errors import TpunbError
from tpunb.tpu.compiled_program import Program


class CompileError(TpunbError, ValueError):
    """A program that the TPU's compiler refuses, or that it cannot be given."""


class CompilerUnavailableError(TpunbError, RuntimeError):
    """The TPU's compiler is not installed, or has no wheels for this machine."""


class TpuProgram(Program):
    """A function as the TPU's own compiler compiled it, or why it did not.

    It shows itself as text and HTML. Its attributes are those of `Program` in
    `tpunb/tpu/compiled_program.py`: `tpu`, `replicas`, `memory`, `time`, `errors` and more.
    """

    def as_text(self) -> str:
        """The program as the compiler scheduled it: optimised HLO.

        Raises:
            CompileError: There is none, as the function does not compile or the
                compiler does not give it for this TPU.
        """
        if not self.text:
            reason = self.unknown or "the compiler gave none for it."
            if self.errors:
                reason = "it does not compile."
            raise CompileError(f"There is no program for {self.tpu}: {reason}")
        return self.text

    def raise_if_refused(self) -> None:
        """For scripts and tests: fails where it does not compile, or nothing is known.

        Raises:
            CompileError: It does not.
        """
        if self.unknown:
            raise CompileError(
                self.headline,
                fix="Compile again, with a longer timeout or on a machine with more memory.",
            )
        if self.errors:
            raise CompileError(self.headline, fix=self.errors[0].fix)

    def as_dict(self) -> dict[str, Any]:
        """Everything but the HLO, as dicts, lists, numbers and strings."""
        found: dict[str, Any] = _plain(dataclasses.replace(self, text=""))
        del found["text"]
        return {
            **found,
            "ok": self.ok,
            "examples_per_second_per_core": self.examples_per_second_per_core,
        }

    def __str__(self) -> str:
        return str(self._repr_mimebundle_()["text/plain"])

    def __repr__(self) -> str:
        return f"<TpuProgram {plain(self.headline)}>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from tpunb.display.draw.programs_html import programs_bundle

        del include, exclude
        return programs_bundle([self])

    def _repr_html_(self) -> str:
        return str(self._repr_mimebundle_()["text/html"])


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    return [_plain(item) for item in value] if isinstance(value, tuple) else value
