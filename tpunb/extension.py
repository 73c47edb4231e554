"""What `%load_ext tpunb` does, and how `%unload_ext tpunb` undoes it."""

from __future__ import annotations

from typing import Any

from tpunb.completion import magic_matcher
from tpunb.displays import FORMATTERS, nest_bundle
from tpunb.magics import TpuMagics

__all__ = ["load", "unload"]

_NESTS = ("tuple", "list", "dict")
_ATTRIBUTE = "_tpunb_extension"


class _Extension:
    """Everything that loading added to one shell."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        self.magics = TpuMagics(shell)
        self.matcher: Any = None
        self.before: list[tuple[tuple[str, str], Any]] = []

    def load(self) -> None:
        self.shell.register_magics(self.magics)
        found = {
            name: method for kind in self.magics.magics.values() for name, method in kind.items()
        }
        self.matcher = magic_matcher({name: getattr(self.magics, name) for name in found})
        self.shell.Completer.custom_matchers.append(self.matcher)
        formatter = self.shell.display_formatter.mimebundle_formatter
        named = [*FORMATTERS, *(("builtins", kind, nest_bundle) for kind in _NESTS)]
        for module, name, function in named:
            self.before.append(((module, name), formatter.for_type_by_name(module, name, function)))

    def unload(self) -> None:
        self.magics.session.disconnect()
        for kind, methods in self.magics.magics.items():
            table = self.shell.magics_manager.magics[kind]
            for name in methods:
                # What the user has redefined since is the user's.
                if getattr(table.get(name), "__self__", None) is self.magics:
                    del table[name]
        registry = self.shell.magics_manager.registry
        if registry.get("TpuMagics") is self.magics:
            del registry["TpuMagics"]
        matchers = self.shell.Completer.custom_matchers
        if self.matcher in matchers:
            matchers.remove(self.matcher)
        self._restore_formatters()

    def _restore_formatters(self) -> None:
        formatter = self.shell.display_formatter.mimebundle_formatter
        for (module, name), before in self.before:
            deferred, known = (module, name), _known_type(formatter, module, name)
            table, key = (
                (formatter.type_printers, known) if known else (formatter.deferred_printers, deferred)
            )
            if before is not None:
                table[key] = before
            else:
                table.pop(key, None)


def _known_type(formatter: Any, module: str, name: str) -> type | None:
    """The class, if IPython has met it and moved its formatter there."""
    for cls in formatter.type_printers:
        if cls.__module__ == module and cls.__name__ == name:
            found: type = cls
            return found
    return None


def load(shell: Any) -> None:
    """Adds the magics, their completion and the displays to a shell."""
    if getattr(shell, _ATTRIBUTE, None) is not None:
        return
    extension = _Extension(shell)
    extension.load()
    setattr(shell, _ATTRIBUTE, extension)


def unload(shell: Any) -> None:
    """Takes away what `load` added, and closes the connection."""
    extension = getattr(shell, _ATTRIBUTE, None)
    if extension is None:
        return
    extension.unload()
    delattr(shell, _ATTRIBUTE)
