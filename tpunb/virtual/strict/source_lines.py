"""From a node of a traced function to the line of Python that made it."""

from __future__ import annotations

import functools
import itertools
from typing import Any

from tpunb.errors.code_problems import SourceLine, is_library, is_of_this_package
from tpunb.virtual._tensorflow import GraphDebugInfo, atomic_function
from tpunb.virtual.graph.traced_function import gathered_origins, nearest_trace


class SourceLines:
    """The places from which the nodes of a traced function came.

    They are gathered when the first is asked for.

    Args:
        traced: The function.
    """

    def __init__(self, traced: atomic_function.AtomicFunction) -> None:
        self._traced = traced

    def frames(self, path: str) -> list[SourceLine]:
        """The calls that led to a node, innermost first.

        Args:
            path: The node's name, with those of the calls around it.
        """
        info, known = self._known
        name = path if path in known else self._inner.get(path, path)
        trace = nearest_trace(name, known)
        if trace is None:
            return []
        return [_place(info, number) for number in reversed(info.traces_by_id[trace].frame_id)]

    def knows(self, path: str) -> bool:
        """Returns whether a node of exactly this name was traced, even in a loop or branch."""
        return path in self._known[1] or path in self._inner

    def own(self, path: str) -> list[SourceLine]:
        """The calls within the replica function that lie in the user's code, innermost first."""
        inside = itertools.takewhile(
            lambda place: not is_of_this_package(place.file), self.frames(path)
        )
        return [place for place in inside if not is_library(place.file)]

    @functools.cached_property
    def _known(self) -> tuple[GraphDebugInfo, dict[str, int]]:
        return gathered_origins(self._traced)

    @functools.cached_property
    def _inner(self) -> dict[str, str]:
        """Nodes of bodies by their own names, by which the compiler knows them."""
        known = self._known[1]
        found: dict[str, str] = {}
        for name in known:
            parts = name.split("/")
            for place in range(1, len(parts)):
                if "/".join(parts[:place]) in known:
                    found.setdefault("/".join(parts[place:]), name)
        return found


def _place(info: GraphDebugInfo, number: int) -> SourceLine:
    frame: Any = info.frames_by_id[number]
    return SourceLine(info.files[frame.file_index], frame.line)
