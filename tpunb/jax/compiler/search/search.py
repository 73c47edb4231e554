"""The search for the layout with which a JAX call fits and is fastest.

Each layout is compiled at low effort, which tells its memory and its collectives and ranks its
time, in a quarter of the time of full effort. The fastest ones that fit are compiled at full effort
then, and the results of the best are compared with those of the user's own layout.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tpunb._util.deadline import Deadline
from tpunb._util.interrupts import Stopped
from tpunb._util.units import byte_count
from tpunb.compiler.ask import libtpu
from tpunb.compiler.ask.compile_settings import Settings
from tpunb.compiler.ask.topologies import Target
from tpunb.compiler.ask.verdict import reporting
from tpunb.compiler.fit.candidates import Candidate, Judged, Search
from tpunb.compiler.program import CompileError, TpuProgram
from tpunb.jax.checks.dimensions import axes_in
from tpunb.jax.compiler.compare_meshes import takes_mesh
from tpunb.jax.compiler.fits import argument_names, donation, has_scans, scans_again
from tpunb.jax.compiler.functions import function_for, model_step
from tpunb.jax.compiler.search.code import code_of, keras_code_of
from tpunb.jax.compiler.search.equal import compare_layouts
from tpunb.jax.compiler.search.found import DIFFER, Found, Tried
from tpunb.jax.compiler.search.layouts import FSDP, Layout, layout_of, layouts, own_layout
from tpunb.machine.keras_internals import chooser, model_of

_FOR_RANKING = 0.7
"""The part of the time in which the layouts are ranked. The rest is for the best at full effort."""

_MOST_CHANGED = 3
"""The layouts that are tried with further changes if none fits: those with the least memory."""

_MOST_CONFIRMED = 3
"""The most layouts that are compiled at full effort."""

_CLOSE = 1.5
"""Times at low effort that differ by less may be in another order at full effort. Measured on three
layouts of a transformer: 1.43, 1.03 and 1.08 times the time at full effort."""

AXES = ("data", "fsdp", "model")
"""The names of the axes of meshes, if the user gives none."""

_REMAT = "# Compute layers again: jax.lax.scan(jax.checkpoint(body, prevent_cse=False), …)"


class SearchStopped(Stopped):
    """An interrupt ended a search. Its message has what is known.

    Attributes:
        found: The same.
    """

    def __init__(self, found: Found) -> None:
        super().__init__(f"while looking for a layout. What is known:\n{found}")
        self.found = found


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of a search. `tpunb.search` explains them."""

    meshes: Sequence[Any] | None
    specs: Any
    remat: bool | None
    donate: bool | None
    timeout: float


@dataclasses.dataclass(frozen=True)
class _Variant:
    """A call with a layout and other changes.

    Attributes:
        kind: The target.
        layout: The layout; None for a call that is on no mesh.
        is_own: Whether the layout is the user's own.
        remat: Whether the bodies of scans are computed again for the gradient.
        donate: Whether results may overwrite arguments.
    """

    kind: Target
    layout: Layout | None
    is_own: bool = False
    remat: bool = False
    donate: bool = False

    @property
    def changes(self) -> str:
        """The changes beside the layout, in words."""
        return ", scans computed again" * self.remat + ", donated arguments" * self.donate

    @property
    def mesh(self) -> str:
        """The mesh, in words."""
        return self.layout.shape if self.layout is not None else "none"

    @property
    def name(self) -> str:
        """The layout and its changes, in words."""
        known = "your own" if self.is_own or self.layout is None else self.layout.name
        return f"{known}{self.changes}"


def search(
    fn: Any,
    args: Sequence[Any],
    kinds: Sequence[Target],
    options: Options,
    progress: Callable[[str], None] | None,
) -> Found:
    """Search the layout of a call that fits and is fastest. `tpunb.search` has the arguments.

    Raises:
        CompileError: The layouts of the call cannot be found.
        SearchStopped: An interrupt ended the search, and a layout is known.
    """
    names: Sequence[str] = ()
    weights: set[str] = set()
    if (model := model_of(fn)) is not None:
        fn, args, _, names = model_step(fn, args, 1, in_place=False)
        weights = {weight.path for weight in model.weights}
    variables = [(name, name in weights) for name in names]
    libtpu.start()
    with reporting(progress) as say:
        return _LayoutSearch(fn, args, variables, options, say).run(kinds)


class _LayoutSearch:
    """A search.

    Args:
        fn: The function.
        args: Its arguments.
        variables: For a Keras model, the paths of its variables, whose arrays come first, and
            whether they are weights.
        options: The options.
        say: Called with each next step.
    """

    def __init__(
        self,
        fn: Any,
        args: Sequence[Any],
        variables: Sequence[tuple[str, bool]],
        options: Options,
        say: Callable[[str], None],
    ) -> None:
        self._variables = variables
        self._fn, self._args, self._options = fn, list(args), options
        self._own = own_layout(args)
        # What does not depend on the mesh is read from the function on a mesh of one core.
        self._on_a_core = self._with_mesh(Layout("", tuple(dict.fromkeys(AXES, 1).items()), ()))
        whole, ranking = Deadline(options.timeout), Deadline(options.timeout * _FOR_RANKING)
        settings = Settings(chooser(fn), ranking, details=False, rough=True, progress=say)
        self._search = Search(settings)
        self._full = Search(
            dataclasses.replace(settings, deadline=whole, rough=False, speed=True, details=True)
        )
        self._equal: dict[_Variant, str] = {}

    def run(self, kinds: Sequence[Target]) -> Found:
        try:
            for kind in kinds:
                self._rank(kind, self._variants(kind))
                self._rank_changed(kind)
            self._confirm()
        except KeyboardInterrupt:
            if not self._search.judged:
                raise
            raise SearchStopped(self._found("The search was stopped.")) from None
        return self._found()

    def _variants(self, kind: Target) -> list[_Variant]:
        """Return the layouts on a TPU type, those first that are most likely to fit."""
        own = _Variant(kind, self._own, is_own=True)
        by_mesh: dict[str, list[_Variant]] = {}
        for layout in self._layouts(kind.tpu.num_devices):
            by_mesh.setdefault(layout.shape, []).append(_Variant(kind, layout))
        # A search that is stopped early has tried each mesh.
        turns = itertools.zip_longest(*by_mesh.values())
        others = [each for turn in turns for each in turn if each is not None]
        smallest = sorted(others, key=self._bound)[:1]
        return list(dict.fromkeys([own, *smallest, *others]))

    def _layouts(self, cores: int) -> Iterator[Layout]:
        meshes, specs = self._options.meshes, self._options.specs
        if isinstance(specs, str):
            if specs != "auto":
                raise CompileError(f"specs={specs!r} is unknown.", fix='Write specs="auto".')
            wanted = None if meshes is None else {tuple(_mesh(each).values()) for each in meshes}
            names = [path for path, _ in self._variables]
            for layout in layouts(self._on_a_core, self._args, cores, names=names):
                sizes = dict(layout.mesh)
                if FSDP in sizes and self._variables:  # Keras shards a batch along one axis only
                    continue
                if wanted is None or tuple(sizes.values()) in wanted:
                    yield layout
            return
        known = [_mesh(each) for each in meshes or ()]
        if not known and self._own is not None:
            known = [dict(self._own.mesh)]
        for mesh in known:
            for place, each in enumerate(specs):
                layout = layout_of(self._args, mesh, each)
                named = set().union(*map(axes_in, layout.axes))
                if missing := sorted(named - mesh.keys()):
                    raise CompileError(
                        f"specs[{place}] names the axis {missing[0]!r}, and the mesh has "
                        f"{', '.join(map(repr, mesh))}.",
                        fix='Name the axes of each mesh: meshes=[{"data": 4, "model": 2}].',
                    )
                yield dataclasses.replace(layout, name=f"specs[{place}]")

    def _rank_changed(self, kind: Target) -> None:
        """Judge the smallest layouts with donation, then also with recomputation.

        Both are tried if they are wanted, or if nothing fits without.
        """
        donate, remat = self._options.donate, self._options.remat
        ways = []
        if donate is not False:
            ways.append((donate, {"donate": True}))
        if remat is not False and has_scans(self._on_a_core, self._args):
            ways.append((remat, {"remat": True, "donate": donate is not False}))
        known = [each for each in self._search.judged if each.candidate.of.kind == kind]
        sized = [each for each in known if each.program is not None and each.program.memory]
        smallest = [each.candidate.of for each in sorted(sized, key=_peak)[:_MOST_CHANGED]]
        for is_wanted, changes in ways:
            known = [each for each in self._search.judged if each.candidate.of.kind == kind]
            if is_wanted or not any(each.program and each.program.ok for each in known):
                self._rank(kind, [dataclasses.replace(each, **changes) for each in smallest])

    def _bound(self, variant: _Variant) -> int:
        layout = variant.layout
        return 0 if layout is None else layout.bytes_per_core(self._args)

    def _rank(self, kind: Target, variants: Sequence[_Variant]) -> None:
        """Judge variants at low effort."""
        for number, variant in enumerate(variants, start=1):
            least, hopeless = 0 if variant.is_own else self._bound(variant), ""
            if least > kind.hardware.usable_bytes:
                hopeless = f"left out: its arguments alone take {byte_count(least)} a core"
            place = f"candidate {number} of {len(variants)}: {kind.tpu.name}"
            label = f"{place}, mesh {variant.mesh}, {variant.name}"
            compiled = functools.partial(self._compiled, variant)
            self._search.judge(Candidate(label, compiled, of=variant, hopeless=hopeless))

    def _compiled(self, variant: _Variant, settings: Settings) -> TpuProgram:
        fn, args = self._call(variant)
        with scans_again(set()) if variant.remat else contextlib.nullcontext():
            if variant.donate and (given := donation(fn, args)) is not None:
                return given.on(variant.kind, settings)
            return function_for(fn, args, settings).on(variant.kind, settings)

    def _call(self, variant: _Variant) -> tuple[Any, Sequence[Any]]:
        layout = variant.layout
        if layout is None:
            return self._on_a_core, self._args
        if variant.is_own:
            return self._with_mesh(layout), self._args
        return self._with_mesh(layout), layout.applied(self._args)

    def _with_mesh(self, layout: Layout) -> Any:
        if not takes_mesh(self._fn):
            return self._fn
        return functools.partial(self._fn, mesh=layout.abstract_mesh())

    def _confirm(self) -> None:
        """Compile the fastest and the user's own at full effort, and compare their results."""
        own: list[TpuProgram] = []
        for each in self._search.judged:
            if each.candidate.of.is_own and each.program is not None and each.program.ok:
                own.append(self._at_full_effort(each))
        for variant in self._confirmed():
            if variant.is_own:
                return
            self._equal[variant] = self._compared(variant)
            if not self._equal[variant].startswith(DIFFER):
                return

    def _confirmed(self) -> list[_Variant]:
        """Return the fastest layouts that fit at full effort too, the fastest first."""
        known: list[tuple[float, _Variant]] = []
        ranked = self._ranked()[:_MOST_CONFIRMED]
        for each in ranked:
            (is_timeless, rough), (first_is_timeless, least) = _seconds(each), _seconds(ranked[0])
            is_close = is_timeless or rough <= _CLOSE * least
            if is_timeless != first_is_timeless or not is_close:
                break
            program = self._at_full_effort(each)
            if program.ok and program.memory is not None:
                seconds = program.time.estimate if program.time is not None else math.inf
                known.append((seconds, each.candidate.of))
        return [variant for _, variant in sorted(known, key=operator.itemgetter(0))]

    def _at_full_effort(self, judged: Judged) -> TpuProgram:
        variant = judged.candidate.of
        for each in self._full.judged:
            if each.candidate.of == variant and each.program is not None:
                return each.program
        label = f"{variant.kind.tpu.name}, mesh {variant.mesh}, {variant.name}, at full effort"
        again = dataclasses.replace(judged.candidate, label=label)
        return self._full.judge(again).program or TpuProgram(variant.kind.tpu.name, 1)

    def _compared(self, variant: _Variant) -> str:
        """Return whether the results of a layout equal the own layout's, in words."""
        self._full.settings.progress(f"comparing the results of {variant.name} with your own")
        return compare_layouts(self._fn, self._args, [self._own, variant.layout])

    def _ranked(self) -> list[Judged]:
        """Return the candidates that fit, the fastest first."""
        fitting = [
            each for each in self._search.judged if each.program is not None and each.program.ok
        ]
        return sorted(fitting, key=_seconds)

    def _found(self, note: str = "") -> Found:
        full = {
            each.candidate.of: each.program
            for each in self._full.judged
            if each.program is not None and not each.program.unknown
        }
        rows = []
        for each in self._search.judged:
            variant: _Variant = each.candidate.of
            rows.append(
                Tried(
                    variant.kind.tpu.name,
                    variant.mesh,
                    variant.name,
                    full.get(variant) or each.program,
                    each.why,
                    is_own=variant.is_own and not variant.changes,
                    is_confirmed=variant in full,
                    results=self._equal.get(variant, ""),
                    code=self._code(variant),
                )
            )
        return Found(tuple(rows), note)

    def _code(self, variant: _Variant) -> str:
        """Return the code of a variant, to paste."""
        lines = []
        if variant.layout is not None and self._variables and not variant.is_own:
            known = zip(self._variables, variant.layout.axes, strict=False)
            weights = [(path, axes) for (path, is_weight), axes in known if is_weight]
            lines.append(keras_code_of(variant.layout, *zip(*weights, strict=True)))
        elif variant.layout is not None and not variant.is_own:
            lines.append(code_of(variant.layout, self._args, argument_names(self._fn, self._args)))
        if variant.remat:
            lines.append(_REMAT)
        if variant.donate and (given := donation(self._on_a_core, self._args)) is not None:
            lines.append(f"# Donate arguments: {given.how}")
        return "\n".join(lines)


def _mesh(given: Any) -> dict[str, int]:
    if isinstance(given, Mapping):
        return dict(given)
    sizes = tuple(given)
    names = AXES[::2] if len(sizes) < 3 else AXES
    return dict(zip(names, sizes, strict=False))


def _peak(judged: Judged) -> int:
    memory = judged.program.memory if judged.program is not None else None
    return memory.needs if memory is not None else 0


def _seconds(judged: Judged) -> tuple[bool, float]:
    """Return the time of a call, or its collectives' bytes: a Pallas kernel has no rough time."""
    program = judged.program
    if program is None or program.time is None:
        return True, sum(each.bytes for each in program.collectives) if program is not None else 0
    return False, program.time.estimate
