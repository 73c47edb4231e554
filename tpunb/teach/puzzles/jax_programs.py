"""Programs of JAX: traced once, kept as StableHLO, and run and compiled from it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from tpunb.compiler.ask.compile_settings import CompileOptions
from tpunb.compiler.exported_files import STABLEHLO, ExportedFile, compile_exported
from tpunb.compiler.program import TpuProgram
from tpunb.jax.virtual.import_jax import import_jax
from tpunb.jax.virtual.kernels import kernel_primitives, rule_for_the_cpu
from tpunb.jax.virtual.private_names import private
from tpunb.teach.puzzles.framework import AnswerError, Numbers, Traced

Spec = tuple[str | None, ...]
"""The mesh axis of each axis of an array, as for `jax.sharding.PartitionSpec`."""

CORES = 8
"""The cores of the mesh, whose axis is `"core"`."""

_KERNEL = "tpu_custom_call"
_CALLBACKS = frozenset({"pure_callback", "io_callback", "debug_callback", "outside_call"})
_CUSTOM = re.compile(r"stablehlo\.custom_call @(\w+)")
_OWN_CALLS = frozenset({_KERNEL, "Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape"})
ARITHMETIC = frozenset(
    f"stablehlo.{name}" for name in ("add", "subtract", "multiply", "divide", "dot_general")
)
_TYPES = re.compile(r"tensor<[^>]*>|sdy\.sharding = #sdy\.sharding<[^>]*>")
_SHARDINGS = re.compile(r"(?:in|out)_shardings=\[.*?\](?= \w|$)|manual_axes=\{.*?\}")


@dataclasses.dataclass(frozen=True)
class Jax:
    """Programs of JAX for one core.

    Attributes:
        kernel: Whether a Pallas kernel has to do all arithmetic.
        jitted: Whether the function is a `jax.jit`, whose donation counts.
    """

    kernel: bool = False
    jitted: bool = False
    tpu: ClassVar[str] = "v5e-1"
    cores: ClassVar[int] = 1

    def traced(self, fn: Callable[..., Any], args: Sequence[Any]) -> Traced:
        """Trace a function, once, and return its module for a TPU."""
        jax = jax_module()
        leaves, tree = jax.tree_util.tree_flatten(list(args))
        types = self._types(leaves)

        def flat(*arrays: Any) -> Any:
            return fn(*jax.tree_util.tree_unflatten(tree, arrays))

        jitted: Any = (
            fn if self.jitted else jax.jit(self._whole(functools.update_wrapper(flat, fn)))
        )
        traced = jitted.trace(*types)
        _refuse_callbacks(traced.jaxpr.jaxpr)
        infos = jax.tree_util.tree_leaves(traced.args_info, is_leaf=lambda x: hasattr(x, "donated"))
        donated = [place for place, info in enumerate(infos) if self.jitted and info.donated]
        run = jax.extend.core.jaxpr_as_fun(traced.jaxpr)
        program = jax.jit(run, keep_unused=True, donate_argnums=donated)
        with _without_lines() if self.kernel else contextlib.nullcontext():
            exported = jax.export.export(program, platforms=["tpu"])(*types)
        return {
            "module": exported.mlir_module_serialized,
            "results": [(list(each.shape), each.dtype.name) for each in exported.out_avals],
            **({"interpreted": _interpreted(program, types)} if self.kernel else {}),
        }

    def runner(self, traced: Traced, leaves: Sequence[Numbers]) -> Callable[..., list[Numbers]]:
        """Return a function that runs the TPU's module on the virtual TPU."""
        jax, types = jax_module(), self._types(leaves)
        frame = self._frame(types, traced["results"])
        safe = jax.export.DisabledSafetyCheck.platform()
        program = dataclasses.replace(
            frame, mlir_module_serialized=traced["module"], disabled_safety_checks=(safe,)
        )
        text = program.mlir_module()
        if _outline(text) != _outline(frame.mlir_module()):
            raise AnswerError("The program has other arguments or results than the puzzle says.")
        self._refuse_other_work(text)
        if self.kernel:
            program = dataclasses.replace(program, mlir_module_serialized=traced["interpreted"])
        run, places = jax.jit(program.call), [each.sharding for each in types]

        def numbers(*arrays: Any) -> list[Numbers]:
            return [np.asarray(r, "float64") for r in run(*map(jax.device_put, arrays, places))]

        return numbers

    def compiled(
        self, traced: Traced, leaves: Sequence[Numbers], options: CompileOptions
    ) -> TpuProgram:
        """Return the module as the TPU's compiler compiles it."""
        return compile_exported(ExportedFile(STABLEHLO, traced["module"]), options)[0]

    def _whole(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function of whole arrays."""
        return fn

    def _types(self, leaves: Sequence[Any]) -> list[Any]:
        jax = jax_module()
        return [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in map(np.asarray, leaves)]

    def _frame(self, types: Sequence[Any], results: Sequence[Any]) -> Any:
        """Return an exported program with the same arguments and results."""
        jax = jax_module()
        of_core = [(self._part(shape), dtype) for shape, dtype in results]

        def nothing(*_: Any) -> Any:
            return tuple(jax.numpy.zeros(*each) for each in of_core)

        empty = jax.jit(self._whole(nothing), keep_unused=True)
        return jax.export.export(empty, platforms=["tpu"])(*types)

    def _part(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of a core's part of a result."""
        return tuple(shape)

    def _refuse_other_work(self, text: str) -> None:
        """Refuse a module that computes outside of the TPU, or outside of a kernel.

        Raises:
            AnswerError: It does.
        """
        allowed = _OWN_CALLS if self.kernel else _OWN_CALLS - {_KERNEL}
        if others := set(_CUSTOM.findall(text)) - allowed:
            raise AnswerError(f"The program calls {min(others)}. Compute with JAX alone.")
        if not self.kernel:
            return
        from tpunb.teach.puzzles.live_operations import live_operations

        names = {operation.name for operation in live_operations(text)}
        if _KERNEL not in names:
            raise AnswerError("The answer has to use pallas_call, and to return what it computes.")
        if names & ARITHMETIC:
            raise AnswerError("All arithmetic has to be in pallas_call, and not outside of it.")


@dataclasses.dataclass(frozen=True)
class JaxOnMesh(Jax):
    """A function of arrays that are cut over the cores of a mesh.

    Attributes:
        parts: How each argument is cut, in the arguments' order.
    """

    parts: tuple[Spec, ...] = ()
    tpu: ClassVar[str] = "v5e-8"
    cores: ClassVar[int] = CORES

    def _types(self, leaves: Sequence[Any]) -> list[Any]:
        jax, all_cores = jax_module(), mesh()
        places = (
            jax.sharding.NamedSharding(all_cores, jax.sharding.PartitionSpec(*part))
            for part in self.parts
        )
        return [
            jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=place)
            for each, place in zip(map(np.asarray, leaves), places, strict=True)
        ]


@dataclasses.dataclass(frozen=True)
class JaxOnEachCore(JaxOnMesh):
    """A function that each core runs on its own parts of the arguments: `jax.shard_map`'s.

    Attributes:
        result: How the cores' results are put together.
    """

    result: Spec = ()

    def _whole(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        jax, spec = jax_module(), jax_module().sharding.PartitionSpec
        cut = tuple(spec(*part) for part in self.parts)
        whole = jax.shard_map(fn, mesh=mesh(), in_specs=cut, out_specs=spec(*self.result))
        return functools.update_wrapper(whole, fn)

    def _part(self, shape: Sequence[int]) -> tuple[int, ...]:
        axes = dict(enumerate(self.result))
        return tuple(size // CORES if axes.get(n) else size for n, size in enumerate(shape))


def jax_module() -> Any:
    """Return JAX.

    Raises:
        ConnectError: JAX is not installed, or it is too old.
    """
    import_jax()
    importlib.import_module("jax.extend.core")
    importlib.import_module("jax.export")
    return sys.modules["jax"]


def mesh() -> Any:
    """Return a mesh of the virtual TPU's devices.

    Raises:
        AnswerError: There is another number of devices.
    """
    jax = jax_module()
    if len(jax.devices()) != CORES:
        raise AnswerError(
            f"This puzzle needs {CORES} devices, and JAX has {len(jax.devices())}.",
            fix="%tpu_connect --simulate v5e-8 --framework jax --judge off",
        )
    return jax.make_mesh((CORES,), ("core",), axis_types=(jax.sharding.AxisType.Auto,))


def _interpreted(program: Any, types: Sequence[Any]) -> bytes:
    """Return the same program for the CPU, with its kernels interpreted."""
    known = private("jax._src.interpreters.mlir._lowerings")
    rules = tuple(
        (kernel, rule_for_the_cpu(getattr(known[kernel], "rule", known[kernel])))
        for kernel in kernel_primitives()
    )
    export = jax_module().export.export
    exported = export(program, platforms=["cpu"], _override_lowering_rules=rules)(*types)
    return bytes(exported.mlir_module_serialized)


def _outline(text: str) -> list[str]:
    """Return the types and shardings of a module's arguments and results."""
    lines = [line for line in text.splitlines() if " @main(" in line or "sdy.manual_" in line]
    return [part for line in lines for part in (*_TYPES.findall(line), *_SHARDINGS.findall(line))]


@contextlib.contextmanager
def _without_lines() -> Iterator[None]:
    """Within a block, lower programs without the lines of their code.

    A Pallas kernel is a part of its program with its lines and files, and the file of a notebook's
    cell is another in each process. So a recorded verdict would never fit. (JAX 0.10.2)
    """
    config = jax_module().config
    former = config.jax_traceback_in_locations_limit
    config.update("jax_traceback_in_locations_limit", 0)
    try:
        yield
    finally:
        config.update("jax_traceback_in_locations_limit", former)


def _refuse_callbacks(jaxpr: Any) -> None:
    """Refuse a program in which the host computes: it could not be exported.

    Raises:
        AnswerError: The host computes.
    """
    if found := set(_primitives(jaxpr)) & _CALLBACKS:
        raise AnswerError(
            f"The host computes here ({min(found)}), so the TPU's program says nothing. "
            "Compute with JAX alone."
        )


def _primitives(jaxpr: Any) -> Iterator[str]:
    """Yield the names of a program's primitives, with those inside of all."""
    for eqn in jaxpr.eqns:
        yield eqn.primitive.name
        for value in eqn.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from _primitives(inner)
