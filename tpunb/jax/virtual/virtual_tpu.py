"""The virtual TPU for JAX: its client, identity and lowering, put in place and taken back."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol

from tpunb._util.patching import Replaced
from tpunb.jax.virtual.compiled import NotOfVirtualTpuError, answering_for_a_tpu
from tpunb.jax.virtual.device_identity import identify
from tpunb.jax.virtual.devices import default_client, make_client, require_free_platform
from tpunb.jax.virtual.dry_record import DryRecord
from tpunb.jax.virtual.execution import Execution, donated_in
from tpunb.jax.virtual.kernels import tracing_kernels
from tpunb.jax.virtual.lowering import LoweredProgram, Lowering
from tpunb.jax.virtual.memory import DeviceMemory, LiveArray, moved_arrays
from tpunb.jax.virtual.private_names import owner_of, require_all
from tpunb.tpu.compiled_program import Program
from tpunb.tpu.families import HARDWARE
from tpunb.tpu.types import Accelerator
from tpunb.virtual import current_type

_COMPILE = "jax._src.compiler.compile_or_get_cached"
_CALL = "jax._src.pjit._pjit_call_impl_python"

_OF_THIS_CPU = ("UNIMPLEMENTED", "CPU/GPU backend does not support", "No registered implementation")
"""Parts of XLA's errors about programs that other platforms can run."""


_OF_A_TPU = ("xla_tpu_", "xla_jf_", "xla_sc_", "xla_vf_")
"""The beginnings of the names of libtpu's own options, which `jax.jit` takes by name."""

Options = tuple[tuple[str, str], ...]
"""Names and values of options for a compiler."""


class Judgement(Protocol):
    """The verdict on a program, which may not be known yet."""

    def require(self) -> None:
        """Wait for the verdict, and raise an error if a TPU refuses the program."""

    def program(self, *, wait: bool) -> Program | None:
        """Return the program with its figures; None if they are not known.

        Args:
            wait: Whether to wait for them.
        """


class Judge(Protocol):
    """A judge of the programs that JAX compiles for the virtual devices."""

    def begin(
        self,
        program: LoweredProgram,
        devices: int,
        options: Options,
        beside: Callable[[int], str],
        moved: Sequence[LiveArray],
    ) -> Judgement:
        """Begin to judge a program, while the CPU compiles it.

        Args:
            program: The program.
            devices: The number of devices that run it.
            options: The user's options for a TPU's compiler.
            beside: Returns what takes more than some bytes on these devices, beside the arguments
                of the call; empty if nothing does. See `DeviceMemory.beside`.
            moved: The large arguments that each call copies from one device to several.
        """


class VirtualTpu:
    """The devices of a TPU type in JAX, until `close`.

    Args:
        tpu: The TPU type.
        judge: What is asked about each program.
        namespace: The notebook's names, for messages about arrays.
        dry: Notes the calls of a dry run, in which large calls are judged and not computed; None
            if this is no dry run.

    Attributes:
        client: JAX's client of the devices.
        memory: What is in the memory of the devices.

    Raises:
        ConnectError: JAX cannot get a virtual TPU here. Nothing has changed then.
    """

    def __init__(
        self,
        tpu: Accelerator,
        judge: Judge,
        namespace: Mapping[str, Any],
        dry: DryRecord | None = None,
    ) -> None:
        require_all()
        require_free_platform()
        self._tpu, self._judge, self._namespace = tpu, judge, namespace
        self._calls = threading.local()
        self.client = make_client(tpu.num_devices)
        self._compiled: dict[int, _Compiled] = {}
        self.memory = DeviceMemory(self.client, namespace, self._code)
        self._lowering = Lowering(self.client)
        self._execution = Execution(self.client, self._donated, self._note if dry else None)
        self._dry = dry
        with contextlib.ExitStack() as undo:
            undo.enter_context(identify(self.client, tpu, self._memory_stats))
            undo.enter_context(self._lowering.installed())
            undo.enter_context(self._execution.installed())
            undo.enter_context(tracing_kernels(self.client))
            for name, replacement in ((_COMPILE, self._compile), (_CALL, self._call)):
                undo.enter_context(Replaced(*owner_of(name), replacement))
            undo.enter_context(answering_for_a_tpu(self._program_of))
            undo.enter_context(default_client(self.client))
            self._undo = undo.pop_all()
        current_type.remember(tpu, self.memory)

    def close(self) -> None:
        """Restore everything that was changed. Arrays on the devices stay readable."""
        current_type.forget()
        self._undo.close()

    def _memory_stats(self, device: Any) -> dict[str, int]:
        """Return the use of a device's memory, under the names of a TPU's statistics."""
        arrays = self.memory.arrays(device.id)
        in_use = self.memory.in_use()[device.id]
        limit = HARDWARE[self._tpu.family].usable_bytes
        return {
            "num_allocs": len(arrays),
            "bytes_in_use": in_use,
            "peak_bytes_in_use": self.memory.peak[device.id],
            "largest_alloc_size": max((array.bytes for array in arrays), default=0),
            "bytes_limit": limit,
            "bytes_reserved": 0,
            "peak_bytes_reserved": 0,
            "bytes_reservable_limit": limit,
            "largest_free_block_bytes": max(0, limit - in_use),
        }

    def _code(self) -> list[int]:
        """Return the bytes of the code of the programs that are alive, on each device."""
        known = list(self._compiled)  # before the look: another thread may compile meanwhile
        for gone in {*known}.difference(map(id, self.client.live_executables())):
            self._compiled.pop(gone, None)
        sums = [0] * self._tpu.num_devices
        for compiled in list(self._compiled.values()):
            program = compiled.judgement.program(wait=False)
            if program is not None and program.memory is not None:
                for device in compiled.devices:
                    sums[device] += program.memory.code
        return sums

    def _note(self, executed: Any, args: Sequence[Any], computed: bool) -> None:
        """Note a call of a dry run, if its program is one that is judged."""
        compiled = self._compiled.get(id(executed.xla_executable))
        program = None if compiled is None else compiled.judgement.program(wait=False)
        if compiled is None or program is None:
            return
        assert self._dry is not None
        here, passed = compiled.devices, {*map(id, args)}
        self._dry.call(
            program.name,
            program,
            lambda: max(self.memory.in_use(passed)[device] for device in here),
            computed=computed,
        )

    def _require(self, judgement: Judgement, name: str) -> None:
        """Wait for a verdict, and raise an error if a TPU refuses the program."""
        __tracebackhide__ = True
        began = time.monotonic()
        try:
            judgement.require()
        except Exception as error:
            if self._dry is not None:
                self._dry.refuse(name, judgement.program(wait=False), error)
            raise
        finally:
            if self._dry is not None:
                self._dry.seconds += time.monotonic() - began

    def _donated(self, executable: Any) -> tuple[int, ...]:
        """Return the places of the donated arguments of an executable."""
        compiled = self._compiled.get(id(executable))
        return () if compiled is None else compiled.donated

    def _program_of(self, executable: Any) -> Program | None:
        """Wait for the verdict on an executable, and return the TPU's program; None if unknown.

        Raises:
            NotOfVirtualTpuError: The executable is another client's.
        """
        if getattr(executable, "client", None) is not self.client:
            raise NotOfVirtualTpuError
        compiled = self._compiled.get(id(executable))
        return None if compiled is None else compiled.judgement.program(wait=True)

    def _call(self, original: Any, *args: Any, **options: Any) -> Any:
        """Call a program that may not be compiled yet, and note its arguments meanwhile."""
        __tracebackhide__ = True
        with self._called_with(args):
            return self._execution.call(original, args, options)

    @contextlib.contextmanager
    def _called_with(self, args: Collection[Any]) -> Iterator[None]:
        before = getattr(self._calls, "args", ())
        self._calls.args = args
        try:
            yield
        finally:
            self._calls.args = before

    def _compile(
        self,
        original: Any,
        backend: Any,
        module: Any,
        devices: Any,
        compile_options: Any,
        *args: Any,
        **named: Any,
    ) -> Any:
        """Compile a program for the CPU, and wait for the judge's verdict."""
        __tracebackhide__ = True
        program = self._lowering.program_of(module) if backend is self.client else None
        if program is None:
            compiled = original(backend, module, devices, compile_options, *args, **named)
            self._compiled.pop(id(compiled), None)  # of an earlier program
            return compiled
        arguments = getattr(self._calls, "args", ())
        passed = {id(arg) for arg in arguments}
        moved = moved_arrays(arguments, devices.size, self._namespace)
        options = _taken_for_a_tpu(compile_options)
        here = frozenset(device.id for device in devices.flat)
        judgement = self._judge.begin(
            program,
            devices.size,
            options,
            lambda room: self.memory.beside(room, here, passed),
            moved,
        )
        program.release()
        self._execution.compile_options(compile_options, program.size, arguments)
        donated = donated_in(module) if self._dry is not None else ()
        if program.uninterpreted is not None:
            judgement.require()
            raise _uninterpreted(program, judgement.program(wait=True)) from None
        try:
            compiled = original(backend, module, devices, compile_options, *args, **named)
        except Exception as error:
            judgement.require()  # a TPU's refusal comes first
            if not any(sign in str(error) for sign in _OF_THIS_CPU):
                raise
            raise _missing_kernel(program, error) from error
        self._require(judgement, program.name)
        self._compiled[id(compiled)] = _Compiled(judgement, here, donated)
        return compiled


@dataclasses.dataclass(frozen=True, slots=True)
class _Compiled:
    """A program that JAX has compiled.

    Attributes:
        judgement: The verdict on it.
        devices: The numbers of its devices.
        donated: The places of its donated arguments, in a dry run.
    """

    judgement: Judgement
    devices: frozenset[int]
    donated: tuple[int, ...]


def _taken_for_a_tpu(compile_options: Any) -> Options:
    """Remove the options of a TPU's compiler, which a CPU's refuses, and return them."""
    options = list(compile_options.env_option_overrides)
    for_a_tpu = tuple((key, str(value)) for key, value in options if key.startswith(_OF_A_TPU))
    if for_a_tpu:
        compile_options.env_option_overrides = [
            option for option in options if not option[0].startswith(_OF_A_TPU)
        ]
    return for_a_tpu


def _uninterpreted(program: LoweredProgram, judged: Program | None) -> Exception:
    """Return the error that JAX's interpreter cannot run a Pallas kernel."""
    said = _STILL
    if judged is not None and judged.ok:
        said = f"The TPU's compiler takes it: {judged.headline}"
    return NotImplementedError(
        f"The virtual TPU cannot run {program.name}, because JAX's interpreter cannot run a Pallas "
        f"kernel in it. {said}"
    )


_STILL = "tpunb.compile still says what the TPU's compiler makes of it."


def _missing_kernel(program: LoweredProgram, error: Exception) -> Exception:
    """Return the error that this machine's CPU cannot run a program."""
    return NotImplementedError(
        f"The virtual TPU cannot run {program.name}: this machine's CPU has no kernel for it "
        f"({error}). {_STILL}"
    )
