"""Which calls of a virtual TPU are computed.

A call that this machine cannot hold is refused before it runs. A dry run computes small calls only;
the others give arrays that are not computed.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tpunb._util.patching import Replaced, attribute
from tpunb.jax.virtual import host_memory
from tpunb.jax.virtual.dry_checkpoints import without_files
from tpunb.jax.virtual.host_memory import HostMemory, bytes_of, physical, size_of
from tpunb.jax.virtual.lowering import plain_name
from tpunb.jax.virtual.private_names import owner_of, private
from tpunb.jax.virtual.uncomputed import LARGE, Uncomputed, uncomputed_arrays

_EXECUTED = "jax._src.interpreters.pxla.ExecuteReplicated"
_EXECUTABLE = "jax._src.interpreters.pxla.MeshExecutable"
_FAST = "jax._src.pjit._get_fastpath_data"
_PUT = "jax._src.interpreters.pxla.batched_device_put"

_TOGETHER = 2**29
"""The bytes that all computed arrays of a dry run may take together."""

_PMAP = "parallel computation"
"""JAX's name for each program of `jax.pmap`, until it became a `jax.jit` (0.8)."""

_REPLACE = operator.attrgetter("_refs._buf._replace_with")
"""The method that gives a reference of JAX (`jax.new_ref`) another array."""

_UNOPTIMISED = (
    ("xla_backend_optimization_level", "0"),
    ("xla_llvm_disable_expensive_passes", "True"),
)
"""The options of XLA for a CPU's program that is compiled and not executed."""


class _Program:
    """A program that is executed.

    Args:
        executed: JAX's object that executes it.

    Attributes:
        results: The bytes of its results, on all devices together.
        needs: The bytes of its results and temporaries, on all devices together.
    """

    def __init__(self, executed: Any) -> None:
        handler = executed.out_handler
        self._handlers = handler.handlers
        self._kinds = list(zip(handler.out_avals, handler.out_shardings, strict=True))
        self.results = sum(itertools.starmap(size_of, self._kinds))
        program = executed.xla_executable
        stats = program.get_compiled_memory_stats()
        new = stats.temp_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes
        self.needs = int(max(0, new) * len(program.local_devices()))
        self._makers: list[Callable[[], Any]] = []

    @property
    def is_large(self) -> bool:
        """Whether its calls are compared with this machine's free memory."""
        return self.needs >= host_memory.LOOKED_AT

    def uncomputed(self, uncomputed: Uncomputed) -> list[Any]:
        """Return results that are not computed."""
        if not all(hasattr(aval, "dtype") for aval, _ in self._kinds):
            raise NotImplementedError("A dry run cannot leave out a call that returns a token.")
        if not self._makers:
            known: dict[Any, Any] = {}  # equal kinds are the same objects, to be compared fast
            kinds = [known.setdefault(kind, kind) for kind in self._kinds]
            made = zip(kinds, self._handlers, strict=True)
            self._makers = [_maker(uncomputed, kind, handler) for kind, handler in made]
        return [make() for make in self._makers]


def _maker(uncomputed: Uncomputed, kind: tuple[Any, Any], handler: Any) -> Callable[[], Any]:
    """Return a function that makes a program's result.

    Args:
        uncomputed: The arrays that are not computed.
        kind: The abstract value and the sharding of the result.
        handler: JAX's function that makes the result from its parts.
    """
    make = uncomputed.maker(*physical(*kind))
    result = handler(make(True)._arrays)
    if hasattr(result, "_base_array"):  # of random keys
        return lambda: handler(make(True)._arrays)
    return functools.partial(make, result.committed)


class Execution:
    """The execution of the programs of one client.

    Args:
        client: The client of the virtual devices.
        donated: Returns the places of the donated arguments of an executable of XLA.
        note: Notes a call of a dry run: the executable, the arguments, and whether it is computed.
            None if this is no dry run.

    Attributes:
        uncomputed: The arrays that were not computed; None if this is no dry run.
    """

    def __init__(
        self,
        client: Any,
        donated: Callable[[Any], Sequence[int]],
        note: Callable[[Any, Sequence[Any], bool], None] | None,
    ) -> None:
        self._client, self._donated, self._note = client, donated, note
        self.uncomputed = None if note is None else uncomputed_arrays()
        self._programs: weakref.WeakKeyDictionary[Any, _Program] = weakref.WeakKeyDictionary()
        self._host = HostMemory(client)
        self._called: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._computed = 0

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Decide about the calls of the client's programs within a block."""
        with contextlib.ExitStack() as undo:
            if self.uncomputed is not None:
                undo.enter_context(attribute(self.uncomputed, "client", self._client))
                undo.enter_context(without_files(self.uncomputed))
            undo.enter_context(Replaced(private(_EXECUTED), "__call__", self._execute))
            undo.enter_context(Replaced(private(_EXECUTABLE), "create_cpp_call", self._call_ahead))
            undo.enter_context(Replaced(*owner_of(_FAST), self._fast))
            undo.enter_context(Replaced(*owner_of(_PUT), self._put))
            yield

    def compile_options(self, options: Any, size: int, args: Sequence[Any]) -> None:
        """Change the options for a program that will be compiled and not executed.

        Args:
            options: JAX's options for the compiler.
            size: The bytes of the program's arguments and results.
            args: The arguments of the call; empty if they are not known.
        """
        uncomputed = self.uncomputed
        if uncomputed is not None and (size >= LARGE or any(map(uncomputed.has, args))):
            options.env_option_overrides = [*options.env_option_overrides, *_UNOPTIMISED]

    def call(self, original: Any, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """Call a program, without asking JAX for it again after a call with such arguments.

        JAX compares the arguments with a program's in Python, which takes longer than a step may.

        Args:
            original: JAX's function, which returns the results, the executable, a profiler, and the
                constants that are arguments.
            args: The arguments of the call.
            options: The options of JAX's function.
        """
        __tracebackhide__ = True
        uncomputed = self.uncomputed
        if uncomputed is None or not any(map(uncomputed.has, args)):
            return original(*args, **options)
        jaxpr = options["jaxpr"]  # which has the shapes and the types
        kept = [value for name, value in options.items() if name != "jaxpr"]
        kept += [getattr(arg, "sharding", None) for arg in args]
        kept += [getattr(arg, "_committed", True) for arg in args]
        before, known = self._called.get(jaxpr, (None, ()))
        if before == kept:
            return known[0].unsafe_call(*args), *known
        results, *rest = original(*args, **options)
        if not rest[-1]:
            self._called[jaxpr] = kept, rest
        return results, *rest

    def _execute(self, original: Any, executed: Any, *args: Any) -> Any:
        """Execute a program, or refuse it, or return uncomputed results."""
        __tracebackhide__ = True
        if executed.backend is not self._client:
            return original(executed, *args)
        program = self._program_of(executed)
        uncomputed, computed = self.uncomputed, True
        if executed.name == _PMAP and (uncomputed is not None or program.is_large):
            executed.has_host_callbacks = True  # so that JAX looks at the next call too
        if uncomputed is not None:
            computed = not any(map(uncomputed.has, args)) and self._is_computed(
                program.results, program.needs
            )
            assert self._note is not None
            self._note(executed, args, computed)
        if uncomputed is not None and not computed:
            return self._left_out(program.uncomputed(uncomputed), executed, args)
        self._host.require(program.needs, plain_name(executed.name))
        results = original(executed, *args)
        if program.is_large:
            arrays = (getattr(result, "_base_array", result) for result in results)
            self._host.running(arrays)
        return results

    def _left_out(self, results: list[Any], executed: Any, args: Sequence[Any]) -> list[Any]:
        """Return the results of a call as JAX does: references and donated arrays change."""
        kept = [arg for place, arg in enumerate(args) if place in executed.kept_var_idx]
        kind = private("jax._src.array.ArrayImpl")
        for arg in kept:
            if isinstance(arg, kind):
                arg._check_if_deleted()
        if (changed := executed.mut) is not None:
            kept += changed.in_mut
            into = list(zip(changed.out_mut, results, strict=True))
            results = [result for place, result in into if place is None]
            for place, result in into:
                if place is not None:
                    _REPLACE(kept[place])(result)
        tokens = len(executed.ordered_effects)
        donated = (kept[place - tokens] for place in self._donated(executed.xla_executable))
        assert self.uncomputed is not None
        self.uncomputed.delete(arg for arg in donated if isinstance(arg, kind))
        return results

    def _program_of(self, executed: Any) -> _Program:
        program = self._programs.get(executed)
        if program is None:
            program = self._programs[executed] = _Program(executed)
        return program

    def _is_computed(self, results: int, needs: int) -> bool:
        """Return whether a dry run computes a call with computed arguments, or copies an array.

        Args:
            results: The bytes of the results, on all devices together.
            needs: The bytes of its results and temporaries.
        """
        if results >= LARGE or self._host.too_little(needs) is not None:
            return False
        self._computed += results
        if self._computed >= _TOGETHER:
            self._computed = self._alive() + results
        return self._computed < _TOGETHER

    def _alive(self) -> int:
        """Return the bytes of the computed arrays that are alive."""
        assert self.uncomputed is not None
        arrays = self._client.live_arrays()
        return sum(bytes_of(array) for array in arrays if not self.uncomputed.has(array))

    def _fast(self, original: Any, executable: Any, *args: Any, **named: Any) -> Any:
        """Leave out JAX's fast way for calls that have to be looked at each time."""
        if self._is_looked_at(executable):
            return None
        return original(executable, *args, **named)

    def _call_ahead(self, original: Any, executable: Any, *args: Any) -> Any:
        return None if self._is_looked_at(executable) else original(executable, *args)

    def _is_looked_at(self, executable: Any) -> bool:
        executed = getattr(executable, "unsafe_call", None)
        if getattr(executed, "backend", None) is not self._client:
            return False
        return self.uncomputed is not None or self._program_of(executed).is_large

    def _put(
        self,
        original: Any,
        aval: Any,
        sharding: Any,
        xs: Sequence[Any],
        devices: Any,
        *args: Any,
        **named: Any,
    ) -> Any:
        """Put arrays on devices, or refuse it, or return an uncomputed array."""
        __tracebackhide__ = True
        devices = list(devices)
        if not devices or devices[0].client is not self._client:
            return original(aval, sharding, xs, devices, *args, **named)
        new = [x for x, device in zip(xs, devices, strict=True) if not _is_on(x, device)]
        size = len(new) * size_of(aval, sharding) // max(1, len(devices))
        uncomputed = self.uncomputed
        if uncomputed is None:
            self._host.require(size, "jax.device_put")
            return original(aval, sharding, xs, devices, *args, **named)
        part = next(filter(uncomputed.has, new), None)
        if part is not None or (new and not self._is_computed(size, size)):
            committed = args[0] if args else named.get("committed", True)
            return uncomputed.make(aval, sharding, committed=committed, of=part)
        return original(aval, sharding, xs, devices, *args, **named)


def _is_on(x: Any, device: Any) -> bool:
    """Return whether a value is an array on a device, which need not be copied to it."""
    return getattr(x, "devices", None) is not None and x.devices() == {device}


def donated_in(module: Any) -> tuple[int, ...]:
    """Return the places of the donated arguments of a program, by its module of StableHLO."""
    mains = (each for each in module.body.operations if each.attributes["sym_name"].value == "main")
    attributes = next(mains).attributes
    each = attributes["arg_attrs"] if "arg_attrs" in attributes else ()  # noqa: SIM401 - it has no get
    return tuple(place for place, has in enumerate(each) if any(name in has for name in _DONATED))


_DONATED = ("tf.aliasing_output", "jax.buffer_donor")
"""The attributes with which JAX marks donated arguments."""
