"""The virtual TPU for JAX: its client, identity and lowering, put in place and taken back."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol

from tpunb._util.patching import Replaced
from tpunb.tpu.families import HARDWARE
from tpunb.tpu.types import Accelerator
from tpunb.virtual.jax import current_type
from tpunb.virtual.jax.device_identity import identify
from tpunb.virtual.jax.devices import default_client, make_client, require_free_platform
from tpunb.virtual.jax.kernels import tracing_kernels
from tpunb.virtual.jax.lowering import LoweredProgram, Lowering
from tpunb.virtual.jax.memory import LiveArray, bytes_on, live_arrays, moved_arrays
from tpunb.virtual.jax.private_names import owner_of, require_all

_COMPILE = "jax._src.compiler.compile_or_get_cached"
_CALL = "jax._src.pjit._pjit_call_impl_python"

_OF_THIS_CPU = ("UNIMPLEMENTED", "CPU/GPU backend does not support", "No registered implementation")
"""Parts of XLA's errors about programs that other platforms can run."""


_OF_A_TPU = ("xla_tpu_", "xla_jf_", "xla_sc_", "xla_vf_")
"""The beginnings of the names of libtpu's own options, which `jax.jit` takes by name."""

Options = tuple[tuple[str, str], ...]
"""Names and values of options for a compiler."""


class Judge(Protocol):
    """A judge of the programs that JAX compiles for the virtual devices."""

    def begin(
        self,
        program: LoweredProgram,
        devices: int,
        options: Options,
        beside: Callable[[], list[LiveArray]],
        moved: Sequence[LiveArray],
    ) -> Callable[[], None]:
        """Begin to judge a program, while the CPU compiles it.

        Args:
            program: The program.
            devices: The number of devices that run it.
            options: The user's options for a TPU's compiler.
            beside: Returns the arrays that are alive beside the arguments of the call.
            moved: The large arguments that each call copies from one device to several.

        Returns:
            A function that waits for the verdict, and raises an error if a TPU refuses the
            program.
        """


class VirtualTpu:
    """The devices of a TPU type in JAX, until `close`.

    Args:
        tpu: The TPU type.
        judge: What is asked about each program.
        namespace: The notebook's names, for messages about arrays.

    Attributes:
        client: JAX's client of the devices.

    Raises:
        ConnectError: JAX cannot get a virtual TPU here. Nothing has changed then.
    """

    def __init__(self, tpu: Accelerator, judge: Judge, namespace: Mapping[str, Any]) -> None:
        require_all()
        require_free_platform()
        self._tpu, self._judge, self._namespace = tpu, judge, namespace
        self._most = [0] * tpu.num_devices
        self._calls = threading.local()
        self.client = make_client(tpu.num_devices)
        self._lowering = Lowering(self.client)
        with contextlib.ExitStack() as undo:
            undo.enter_context(identify(self.client, tpu, self._memory_stats))
            undo.enter_context(self._lowering.installed())
            undo.enter_context(tracing_kernels(self.client))
            for name, replacement in ((_COMPILE, self._compile), (_CALL, self._call)):
                undo.enter_context(Replaced(*owner_of(name), replacement))
            undo.enter_context(default_client(self.client))
            self._undo = undo.pop_all()
        current_type.remember(tpu, self.client, self.live_arrays)

    def close(self) -> None:
        """Restore everything that was changed. Arrays on the devices stay readable."""
        current_type.forget()
        self._undo.close()

    def live_arrays(self, without: Collection[int] = ()) -> list[LiveArray]:
        """Return the arrays in the memory of the devices, the largest first.

        Args:
            without: The ids of arrays that do not count.
        """
        arrays = live_arrays(self.client, self._namespace, without)
        for device in range(self._tpu.num_devices):
            self._most[device] = max(self._most[device], bytes_on(arrays, device))
        return arrays

    def _memory_stats(self, device: Any) -> dict[str, int]:
        """Return the use of a device's memory, under the names of a TPU's statistics."""
        arrays = [array for array in self.live_arrays() if device.id in array.devices]
        in_use, limit = bytes_on(arrays, device.id), HARDWARE[self._tpu.family].usable_bytes
        return {
            "num_allocs": len(arrays),
            "bytes_in_use": in_use,
            "peak_bytes_in_use": self._most[device.id],
            "largest_alloc_size": max((array.bytes for array in arrays), default=0),
            "bytes_limit": limit,
            "bytes_reserved": 0,
            "peak_bytes_reserved": 0,
            "bytes_reservable_limit": limit,
            "largest_free_block_bytes": max(0, limit - in_use),
        }

    def _call(self, original: Any, *args: Any, **options: Any) -> Any:
        """Call a program that may not be compiled yet, and note its arguments meanwhile."""
        __tracebackhide__ = True
        with self._called_with(args):
            return original(*args, **options)

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
            return original(backend, module, devices, compile_options, *args, **named)
        arguments = getattr(self._calls, "args", ())
        passed = {id(arg) for arg in arguments}
        moved = moved_arrays(arguments, devices.size, self._namespace)
        options = _taken_for_a_tpu(compile_options)
        wait = self._judge.begin(
            program, devices.size, options, lambda: self.live_arrays(passed), moved
        )
        program.release()
        try:
            compiled = original(backend, module, devices, compile_options, *args, **named)
        except Exception as error:
            wait()  # a TPU's refusal comes first
            if not any(sign in str(error) for sign in _OF_THIS_CPU):
                raise
            raise _missing_kernel(program, error) from error
        wait()
        return compiled


def _taken_for_a_tpu(compile_options: Any) -> Options:
    """Remove the options of a TPU's compiler, which a CPU's refuses, and return them."""
    options = list(compile_options.env_option_overrides)
    for_a_tpu = tuple((key, str(value)) for key, value in options if key.startswith(_OF_A_TPU))
    if for_a_tpu:
        compile_options.env_option_overrides = [
            option for option in options if not option[0].startswith(_OF_A_TPU)
        ]
    return for_a_tpu


def _missing_kernel(program: LoweredProgram, error: Exception) -> Exception:
    """Return the error that this machine's CPU cannot run a program."""
    return NotImplementedError(
        f"The virtual TPU cannot run {program.name}: this machine's CPU has no kernel for it "
        f"({error}). tpunb.compile still says what the TPU's compiler makes of it."
    )
