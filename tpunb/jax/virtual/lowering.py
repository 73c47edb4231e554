"""Lowering of the programs of a virtual TPU: once for the CPU that runs them, once for a TPU.

The CPU runs what JAX lowers for a CPU, so every kernel of JAX's CPU works, and the numbers are
those of plain CPU devices. What a TPU has no rule for is refused, a branch on the platform takes
the TPU's side, and Pallas kernels are interpreted. The second module is what JAX on a TPU would
lower. It is made only for a judge that wants it, because it takes as long as the first.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import math
import re
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tpunb._util.patching import Replaced
from tpunb.jax.virtual.device_identity import PLATFORM
from tpunb.jax.virtual.kernels import (
    kernel_primitives,
    rule_for_a_tpu,
    rule_for_nothing,
    rule_for_the_cpu,
)
from tpunb.jax.virtual.private_names import owner_of, private

_LOWER = "jax._src.interpreters.mlir.lower_jaxpr_to_module"
_REFINE = "jax._src.interpreters.mlir.refine_polymorphic_shapes"
_EXPORTED = "jax._src.export._export.call_exported_p"

_SAME_ON_A_CPU = frozenset(
    {
        "all_gather",
        "all_gather_invariant",
        "check",
        "debug_callback",
        "debug_print",
        "device_put",
        "dot_general",
        "empty",
        "logistic",
    }
)
"""Operations with a rule of their own for a TPU, whose arguments a CPU's rule shows in full."""

_BRANCHES = {
    "jax._src.lax.control_flow.conditionals.platform_index_p": "platforms",
    "jax._src.lax.control_flow.conditionals.cond_p": "branches_platforms",
}
"""The operations of `jax.lax.platform_dependent`, and their options with the platforms."""

_JIT = re.compile(r"(?:jit|pjit|pmap)[(_](.*?)\)?")

_COLLECTIVE = re.compile(r"\b(?:all_reduce|all_gather|reduce_scatter|all_to_all|collective_\w+)\b")

_KERNEL_FOLDER = re.compile(rb"ipykernel_\d+")
"""The folder of a notebook's cells, which differs from process to process."""


@dataclasses.dataclass(eq=False)
class LoweredProgram:
    """A program that JAX has lowered for the virtual TPU.

    Attributes:
        name: The function's name.
        file: The file of the function.
        line: The function's first line in the file.
        module: The module that the CPU runs.
        settles: Whether that module settles what a TPU gets. It does not show, for example, the
            parameters of a Pallas kernel.
        has_kernel: Whether it has a Pallas kernel.
        size: The bytes of its arguments and results, on all devices.
        wraps_jit: Whether it is a `jax.jit` around another `jax.jit`.
        uninterpreted: Why the interpreter cannot run one of its Pallas kernels; None if it can. The
            module must not run then.
        arguments: The types and shapes of its arguments.
        donated: The types of the arguments that it donates.
        traced: The closed jaxpr, until `release`.
        shardings: The shardings of its arguments and of its results.
        for_a_tpu: The same program for a TPU.
    """

    name: str
    file: str
    line: int
    module: weakref.ref[Any]
    settles: bool
    has_kernel: bool
    uninterpreted: Exception | None
    size: int
    wraps_jit: bool
    arguments: tuple[str, ...]
    donated: frozenset[str]
    traced: Any
    shardings: tuple[Sequence[Any], Sequence[Any]]
    for_a_tpu: ProgramForATpu

    @property
    def is_of_jax(self) -> bool:
        """True if the function is JAX's own, such as `jnp.ones`, and not the user's.

        The file of a `jax.pmap`, or of a `jax.shard_map` without `jax.jit`, is JAX's or not known.
        Their collectives tell. `jax.jit(jnp.sort)` is the user's, although `jnp.sort` is JAX's.
        """
        of_jax = Path(sys.modules["jax"].__file__ or "").parent
        if self.file and not Path(self.file).is_relative_to(of_jax):
            return False
        return not self.wraps_jit and not _COLLECTIVE.search(str(self.module()))

    def digest(self) -> str:
        """Return a hash of the program with its lines.

        Raises:
            Exception: As `ProgramForATpu.artifact`, if the module does not settle what a TPU gets.
        """
        if not self.settles:
            return self.for_a_tpu.digest()
        to_bytes = private("jax._src.interpreters.mlir.module_to_bytecode")
        return _hash(to_bytes(self.module()))

    def release(self) -> None:
        """Forget the trace. It would keep the arrays that the function has closed over."""
        self.traced = None
        self.for_a_tpu.release()


class ProgramForATpu:
    """A program that JAX lowers for a TPU when it is asked, in the thread that traced it.

    Args:
        lower: Lowers it, and returns a portable artifact of StableHLO.
    """

    def __init__(self, lower: Callable[[], bytes]) -> None:
        self._lower: Callable[[], bytes] | None = lower
        self._artifact, self._digest = b"", ""

    def artifact(self) -> bytes:
        """Return the program as StableHLO.

        Raises:
            Exception: The error with which JAX refuses the program for a TPU.
        """
        if not self._artifact:
            assert self._lower is not None, "it is asked for after `release`"
            self._artifact = self._lower()
        return self._artifact

    def digest(self) -> str:
        """Return a hash of the artifact, which `release` keeps."""
        self._digest = self._digest or _hash(self.artifact())
        return self._digest

    def release(self) -> None:
        """Forget how to lower it, and the artifact."""
        self._lower, self._artifact = None, b""


def _hash(data: bytes) -> str:
    return hashlib.sha256(_KERNEL_FOLDER.sub(b"ipykernel", data)).hexdigest()


class Lowering:
    """The lowered programs of one client.

    Args:
        client: The client of the virtual devices.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._programs: dict[int, LoweredProgram] = {}
        self._state = threading.local()

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Lower the client's programs here, within a block."""
        with (
            Replaced(*owner_of(_LOWER), self._lower),
            Replaced(*owner_of(_REFINE), self._refine),
        ):
            yield

    def program_of(self, module: Any) -> LoweredProgram | None:
        """Return the program that a module was lowered from."""
        return self._programs.get(id(module))

    def _lower(self, original: Any, name: str, jaxpr: Any, **options: Any) -> Any:
        __tracebackhide__ = True
        exported = options["lowering_parameters"].for_export
        if exported or options.get("backend") is not self._client:
            return original(name, jaxpr, **options)
        self._state.differs = self._state.has_kernel = False
        self._state.uninterpreted = None

        def lowered_by(rule_for_kernels: Callable[..., Any]) -> Any:
            rules = self._rules(rule_for_kernels)
            parameters = _with_rules(options["lowering_parameters"], rules)
            run = {"backend": None, "platforms": ("cpu",), "lowering_parameters": parameters}
            with _said_of_a_tpu():
                return original(name, jaxpr, **{**options, **run})

        try:
            lowered = lowered_by(rule_for_the_cpu)
        except Exception:
            if self._state.uninterpreted is None:
                raise
            lowered = lowered_by(rule_for_nothing)
        open_jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
        debug_info = open_jaxpr.debug_info
        kinds = tuple(str(aval) for aval in options["in_avals"])
        self._programs[id(lowered.module)] = LoweredProgram(
            plain_name(name),
            debug_info.func_filename or "",
            debug_info.func_lineno or 0,
            self._watched(lowered.module),
            not self._state.differs,
            self._state.has_kernel,
            self._state.uninterpreted,
            _bytes([*options["in_avals"], *getattr(jaxpr, "out_avals", ())]),
            _wraps_jit(plain_name(name), open_jaxpr.eqns),
            kinds,
            frozenset(itertools.compress(kinds, options.get("donated_args") or ())),
            jaxpr,
            (options.get("arg_shardings") or (), options.get("result_shardings") or ()),
            ProgramForATpu(lambda: _for_a_tpu(original, name, jaxpr, options)),
        )
        return lowered

    def _refine(self, original: Any, module: Any) -> Any:
        """Note that a module takes the place of another one."""
        refined = original(module)
        if (program := self.program_of(module)) is not None:
            program = dataclasses.replace(program, module=self._watched(refined))
            self._programs[id(refined)] = program
        return refined

    def _watched(self, module: Any) -> weakref.ref[Any]:
        """Return a reference to a module, whose program is forgotten with it."""
        number = id(module)
        return weakref.ref(module, lambda _: self._programs.pop(number, None))

    def _rules(self, rule_for_kernels: Callable[..., Any]) -> Iterator[tuple[Any, Any]]:
        """Yield the operations that are lowered in another way than on a CPU.

        Args:
            rule_for_kernels: Turns JAX's rule of Pallas kernels into the rule to use.
        """
        tables = private("jax._src.interpreters.mlir._platform_specific_lowerings")
        common = private("jax._src.interpreters.mlir._lowerings")
        for primitive in tables["cpu"]:
            if primitive not in tables[PLATFORM] and primitive not in common:
                yield primitive, _refused(primitive, _rule(tables["cpu"][primitive]))
        for primitive in tables[PLATFORM]:
            own = tables["cpu"].get(primitive) or common.get(primitive)
            if own is not None and primitive.name not in _SAME_ON_A_CPU:
                yield primitive, self._noting(_rule(own))
        for name, platforms in _BRANCHES.items():
            yield (branch := private(name)), _taking_its_side(_rule(common[branch]), platforms)
        yield (call := private(_EXPORTED)), self._noting(_of_exported(_rule(common[call])))
        for kernel in kernel_primitives():
            interpreted = rule_for_kernels(_rule(common[kernel]))
            yield kernel, self._noting(interpreted, has_kernel=True)

    def _noting(self, rule: Any, *, has_kernel: bool = False) -> Any:
        """Return a rule that notes that a TPU's module may differ where this one does not."""

        def lower(*args: Any, **options: Any) -> Any:
            self._state.differs = True
            self._state.has_kernel |= has_kernel
            try:
                return rule(*args, **options)
            except Exception as error:
                if has_kernel:
                    self._state.uninterpreted = error
                raise

        return lower


def _wraps_jit(name: str, equations: Sequence[Any]) -> bool:
    """Return whether a program only calls a `jax.jit` of the same name."""
    calls = [each for each in equations if each.primitive.name in {"jit", "pjit"}]
    return len(equations) == 1 and [each.params["name"] for each in calls] == [name]


def _bytes(avals: Iterable[Any]) -> int:
    """Return the bytes of arrays. JAX's own types, such as random keys, are small."""
    plain = (aval for aval in avals if hasattr(getattr(aval, "dtype", None), "itemsize"))
    return sum(math.prod(aval.shape) * aval.dtype.itemsize for aval in plain)


def plain_name(name: str) -> str:
    """Return a function's name without JAX's `jit(…)`, or `jit_` before JAX 0.7."""
    plain = match[1] if (match := _JIT.fullmatch(name)) else name
    return "shard_map" if plain.startswith("<unnamed") else plain


def _with_rules(parameters: Any, rules: Iterator[tuple[Any, Any]]) -> Any:
    before = parameters.override_lowering_rules or ()
    return dataclasses.replace(parameters, override_lowering_rules=(*before, *rules))


def _rule(entry: Any) -> Any:
    """Return the rule in an entry of JAX's tables."""
    return getattr(entry, "rule", entry)


def _is_for_the_host(context: Any) -> bool:
    """Return whether an operation is in `jax.experimental.compute_on("device_host")`."""
    equation = getattr(context, "jaxpr_eqn_ctx", None)
    return getattr(equation, "compute_type", None) == "device_host"


def _refused(primitive: Any, rule: Any) -> Any:
    """Return the rule of an operation that a TPU's host has, but a TPU does not."""

    def lower(context: Any, *args: Any, **options: Any) -> Any:
        if _is_for_the_host(context):
            return rule(context, *args, **options)
        raise NotImplementedError(
            f"MLIR translation rule for primitive '{primitive.name}' not found for platform "
            f"{PLATFORM}"
        )

    return lower


def _taking_its_side(rule: Any, platforms: str) -> Any:
    """Return the rule of a branch on the platform that takes a TPU's side on a CPU.

    Args:
        rule: The operation's rule.
        platforms: The name of the option with the platforms of each side; None for the default.
    """

    def lower(context: Any, *args: Any, **options: Any) -> Any:
        sides = options.get(platforms)
        if sides is not None and not _is_for_the_host(context):
            of_a_tpu = next((names for names in sides if names is None or PLATFORM in names), ())
            options[platforms] = tuple(("cpu",) if names is of_a_tpu else () for names in sides)
        return rule(context, *args, **options)

    return lower


def _of_exported(rule: Any) -> Any:
    """Return the rule of calls of exported functions, which have to be exported for a TPU too."""

    def lower(*args: Any, exported: Any, **options: Any) -> Any:
        platforms = exported.platforms
        if PLATFORM not in platforms and not exported.disabled_safety_checks:
            raise ValueError(
                f"Function '{exported.fun_name}' was exported for platforms '{platforms}' but it "
                f"is used on '{(PLATFORM,)}'."
            )
        if "cpu" not in platforms and not exported.disabled_safety_checks:
            raise NotImplementedError(
                f"The virtual TPU cannot run {exported.fun_name}, which was exported for a TPU "
                'alone. Export it with platforms=["cpu", "tpu"].'
            )
        return rule(*args, exported=exported, **options)

    return lower


@contextlib.contextmanager
def _said_of_a_tpu() -> Iterator[None]:
    """Say that a CPU has no kernel for an operation that a TPU has, instead of JAX's sentence."""
    try:
        yield
    except NotImplementedError as error:
        if "platform cpu" not in str(error):
            raise
        raise NotImplementedError(
            f"The virtual TPU cannot run this: {error}. tpunb.compile still says what the TPU's "
            "compiler makes of it."
        ) from error


def _for_a_tpu(original: Any, name: str, jaxpr: Any, options: dict[str, Any]) -> bytes:
    # For export, so that a compiler of another release can read Pallas kernels.
    parameters = dataclasses.replace(options["lowering_parameters"], for_export=True)
    common = private("jax._src.interpreters.mlir._lowerings")
    rules = ((kernel, rule_for_a_tpu(_rule(common[kernel]))) for kernel in kernel_primitives())
    parameters = _with_rules(parameters, rules)
    options = {**options, "backend": _TpuBackend(), "platforms": (PLATFORM,)}
    lowered = original(name, jaxpr, **{**options, "lowering_parameters": parameters})
    module = lowered.module
    if lowered.shape_poly_state.uses_dim_vars:
        module = private(_REFINE)(module)
    artifact: bytes = private("jax._src.export._export._module_to_bytecode")(module)
    return artifact


class _TpuBackend:
    """The backend of a TPU's lowering, which asks it for the host's side of a callback."""

    platform = PLATFORM
    platform_version = runtime_type = ""

    def make_python_callback_from_host_send_and_recv(self, *_: Any, **__: Any) -> None:
        """Return nothing: the module is compiled, and not run."""
