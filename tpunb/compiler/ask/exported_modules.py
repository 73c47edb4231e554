"""StableHLO modules that a framework has exported, as requests for libtpu.

No framework is needed: libtpu's process reads the module.
"""

from __future__ import annotations

import functools
import itertools
import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from tpunb._util.plain_text import listed
from tpunb.compiler.ask import libtpu
from tpunb.compiler.ask.compile_settings import Settings
from tpunb.compiler.ask.fingerprint import Fingerprint
from tpunb.compiler.ask.libtpu import MARK, Prepared, unmarked
from tpunb.compiler.program import CompileError
from tpunb.errors.code_problems import Choose, SourceLine, is_library, is_of_this_package

_TRANSFORM = re.compile(r"(\w+)\((.*)\)")
_CALLS = frozenset({"jit", "pjit"})
_CONTROL = re.compile(
    r"while|cond|(?:body|cond)_pred|body|branch_\d+_fun|closed_call|checkpoint"
    r"|rematted_computation|shard_map|custom_\w+_call|pallas_call|.*->.*"
)
"""The parts of an operation's name that are not the user's scopes: JAX's own, and einsum axes."""


def prepared_module(
    module: bytes, settings: Settings, *, own: bool = False
) -> tuple[Prepared, int]:
    """Return the request for libtpu about a StableHLO module, and the number of its devices.

    Args:
        module: The module as text or as bytecode, which any framework may have exported.
        settings: The settings of the compilation.
        own: Whether this process made it, so that its lines are this machine's.

    Raises:
        CompileError: The module cannot be read, has open sizes, or is for several replicas.
    """
    answer = libtpu.read_exported(module, settings.deadline)
    if "error" in answer and own:
        raise CompileError(libtpu.why_unreadable(answer["error"], sys.modules["jax"].__version__))
    if "error" in answer:
        raise CompileError(
            f"The StableHLO cannot be read: {answer['error'].strip()}.",
            fix="Export it again, with a release of StableHLO that is not newer than the "
            "compiler's.",
        )
    if answer["open"]:
        raise CompileError(
            f"The program has open sizes: {answer['open']}.", fix="Export it with numbers."
        )
    replicas, partitions = answer["devices"]
    if replicas > 1 and not own:
        raise CompileError(
            f"The program is for {replicas} replicas.",
            fix="Export it with a mesh and shardings (jax.jit), not with jax.pmap.",
        )
    places = answer["places"]
    if not own:  # a stranger's export must not show lines of this machine's other files
        places = [[place for place in each if place[0].endswith(".py")] for each in places]
    prepared = prepared_from(
        answer,
        Origins(places, settings.choose, ()),
        parameters=answer["arguments"],
        held_bytes=answer["bytes"],
        replicated=replicas > 1,
    )
    return prepared, max(replicas, devices_of_meshes(partitions, answer["meshes"]))


def prepared_from(answer: Mapping[str, Any], origins: Origins, **own: Any) -> Prepared:
    """Return the request for libtpu about a module that its process has read."""
    mesh = tuple((str(name), int(size)) for name, size in answer["axes"])
    program = Fingerprint(answer["digest"], tuple(answer["names"]))
    own |= {"module": answer["module"], "shapes": set(map(tuple, answer["shapes"]))}
    return Prepared(origins, jax=True, fingerprint=program, mesh=mesh, **own)


def devices_of_meshes(devices: int, meshes: Iterable[int]) -> int:
    """Return the number of devices of a program.

    A mesh may be in the function only: in `jax.shard_map`, or in a constraint on a sharding.

    Args:
        devices: The devices of the meshes of the arguments and results; 1 without meshes.
        meshes: The numbers of devices of all meshes in the program.

    Raises:
        CompileError: The meshes have different numbers of devices.
    """
    sizes = sorted({devices, *meshes} - {1})
    if len(sizes) > 1:
        raise CompileError(
            f"The function has meshes of {listed(list(map(str, sizes)))} devices, but a program "
            "runs on one number of devices.",
            fix="Use meshes of equal numbers of devices for its arguments, in jax.shard_map and "
            "in jax.lax.with_sharding_constraint.",
        )
    return sizes[0] if sizes else 1


class Origins:
    """The places in the user's code that the operations of an exported program come from.

    Args:
        places: Files and lines, by the number at the end of an operation's name.
        choose: Chooses the line to show.
        layers: The names of the layers; empty to use the user's scopes instead.
    """

    def __init__(
        self, places: Sequence[Sequence[tuple[str, int]]], choose: Choose, layers: Collection[str]
    ) -> None:
        self._places, self._choose, self._layers = places, choose, layers
        self.line = functools.cache(self._line)
        self.layer = functools.cache(self._layer)

    def places(self, node: str) -> tuple[SourceLine, ...]:
        """Return the lines of the user's code that led to an operation, innermost first."""
        frames = [
            SourceLine(*place)
            for number in reversed(MARK.findall(node))
            for place in itertools.takewhile(
                lambda place: not is_of_this_package(place[0]), self._places[int(number)]
            )
        ]
        return tuple(dict.fromkeys(frame for frame in frames if not is_library(frame.file)))

    def _line(self, node: str) -> SourceLine | None:
        chosen = self._choose(self.places(node)) if MARK.search(node) else None
        return SourceLine(*chosen) if chosen else None

    def _layer(self, node: str) -> str:
        """Return the innermost layer in an operation's name, or else the user's scopes."""
        scopes = []
        for part in unmarked(node).partition(";")[0].split("/")[:-1]:
            while transform := _TRANSFORM.fullmatch(part):
                part = "" if transform[1] in _CALLS else transform[2]
            if part and not _CONTROL.fullmatch(part):
                scopes.append(part)
        if self._layers:
            return next((scope for scope in reversed(scopes) if scope in self._layers), "")
        return "/".join(scopes) if MARK.search(node) else ""

    def operation(self, node: str) -> str:
        """Return JAX's primitive, or an empty string for other operations."""
        return unmarked(node).partition(";")[0].rpartition("/")[2] if MARK.search(node) else ""
