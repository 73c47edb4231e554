"""Names that connecting binds in a notebook, without losing the names that the notebook has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_MISSING = object()


class BoundNames:
    """The names of a notebook that were bound for it, and may be bound again or removed.

    Args:
        namespace: The notebook's names.
    """

    def __init__(self, namespace: dict[str, Any]) -> None:
        self._namespace = namespace
        self._bound: dict[str, Any] = {}

    def bind(self, name: str, value: Any) -> Any:
        """Bind a name, and return the notebook's value that it hides, or None."""
        hidden = None if self._is_free(name) else self._namespace[name]
        self._namespace[name] = self._bound[name] = value
        return None if hidden is value else hidden

    def bind_if_free(self, name: str, value: Any) -> bool:
        """Bind a name unless the notebook uses it for another value; return whether it is bound."""
        if self._is_free(name):
            self._namespace[name] = self._bound[name] = value
        return self._namespace[name] is value

    def remove(self) -> None:
        """Remove the names, except those that the notebook has bound to something else since."""
        for name, value in self._bound.items():
            if self._namespace.get(name) is value:
                del self._namespace[name]
        self._bound = {}

    def _is_free(self, name: str) -> bool:
        now = self._namespace.get(name, _MISSING)
        return now is _MISSING or now is self._bound.get(name, _MISSING)


def notice_of_strategy(name: str, hidden: Any) -> str:
    """Return the sentence that the strategy has replaced a value of the notebook under a name."""
    if hidden is None:
        return ""
    return (
        f"`{name}` was {_described(hidden)} and is the strategy now: "
        "%tpu_connect --as NAME gives the strategy another name."
    )


def notice_of_kept(kept: Mapping[str, Any], *, reachable: bool) -> str:
    """Return the sentence that the notebook keeps names, and how to reach the connection's values.

    Args:
        kept: The notebook's values under the names.
        reachable: Whether `connection` is the connection in the notebook.
    """
    if not kept:
        return ""
    values = " and ".join(f"`{name}` stays {_described(value)}" for name, value in kept.items())
    reached = " and ".join(f"`{'connection' if reachable else 'tpu'}.{name}`" for name in kept)
    where = (
        "The connection's: " if reachable else "The connection's, after `tpu = %tpu_connect …`: "
    )
    return f"{values}, as the notebook has bound it. {where}{reached}."


def _described(value: Any) -> str:
    kind = type(value).__name__
    return f"{'an' if kind[0].lower() in 'aeiou' else 'a'} {kind}"
