"""Arrays that a dry run has not computed.

They have a shape, a type and a sharding like any array. Their bytes are zeros that the system never
has to provide: every part is a view of memory that is reserved and not taken, which JAX accepts
without a copy. An array is recognised by its address there, so `shard.data` is recognised too.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tpunb._util.patching import Replaced, attribute
from tpunb.errors import ConnectError, TpuWarning
from tpunb.virtual.jax.dry_record import users_line
from tpunb.virtual.jax.private_names import private

NOT_COMPUTED = "not computed: dry run"

_NO_RESERVE = {"linux": 0x4000, "darwin": 0x40}
"""MAP_NORESERVE, which Python's mmap has from 3.13 on."""

_LEAST = 2**32
_SLOTS, _ALIGNMENT = 2**20, 64
"""The arrays that get addresses of their own, and the alignment with which XLA needs no copy."""


def require_reserved_memory() -> None:
    """Check that this system can reserve memory without providing it.

    Raises:
        ConnectError: It cannot.
    """
    if sys.platform not in _NO_RESERVE:
        raise ConnectError(
            "A dry run reserves more memory than this machine has, which only Linux and macOS do.",
            fix="Leave out --dry, or use tpunb.compile(step, *arguments), which runs nothing.",
        )


class ReservedMemory:
    """Zeros at addresses that only uncomputed arrays have."""

    def __init__(self) -> None:
        self._mappings: list[tuple[int, int, mmap.mmap]] = []
        self._next = 0
        self._lock = threading.Lock()

    def zeros(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """Return zeros that cannot be written, at an address that the last arrays did not have."""
        count = math.prod(shape)
        with self._lock:
            offset = self._next * _ALIGNMENT
            self._next = (self._next + 1) % _SLOTS
            mapping = self._mapping(count * dtype.itemsize)
        return np.frombuffer(mapping, dtype, count, offset).reshape(shape)

    def has(self, address: int) -> bool:
        """Return whether an address is in this memory."""
        return any(first <= address < end for first, end, _ in self._mappings)

    def _mapping(self, size: int) -> mmap.mmap:
        """Return a mapping with room for a number of bytes at each of the addresses."""
        needed = size + _SLOTS * _ALIGNMENT
        for first, end, mapping in self._mappings:
            if end - first >= needed:
                return mapping
        length = max(_LEAST, 1 << (needed - 1).bit_length())
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE[sys.platform]
        try:
            mapping = mmap.mmap(-1, length, flags=flags, prot=mmap.PROT_READ)
        except OSError as error:
            raise MemoryError(
                f"The dry run cannot reserve addresses for an array of {size / 2**30:.1f} GiB "
                f"({error}). Raise the limit of address space: ulimit -v unlimited."
            ) from error
        first = np.frombuffer(mapping, np.uint8, 1).ctypes.data
        self._mappings.append((first, first + length, mapping))
        return mapping


class Uncomputed:
    """The uncomputed arrays of a dry run.

    Args:
        client: The client of the virtual devices.
    """

    def __init__(self, client: Any) -> None:
        require_reserved_memory()
        self._client = client
        self._memory = ReservedMemory()
        self._put = private("jaxlib._jax.batched_device_put")
        self._warned: set[tuple[str, int]] = set()

    def has(self, array: Any) -> bool:
        """Return whether an array has not been computed. A deleted array counts as computed."""
        base = getattr(array, "_base_array", array)  # of random keys
        parts = getattr(base, "_arrays", None)
        if not parts or base.is_deleted():
            return False
        return self._memory.has(parts[0].unsafe_buffer_pointer())

    def make(self, aval: Any, sharding: Any, *, committed: bool = True) -> Any:
        """Return an uncomputed array.

        Args:
            aval: JAX's abstract value: its shape and its type.
            sharding: Its sharding.
            committed: Whether it is bound to its devices.
        """
        return self.maker(aval, sharding)(committed)

    def maker(self, aval: Any, sharding: Any) -> Callable[[bool], Any]:
        """Return a function that makes such arrays in microseconds; see `make`."""
        devices = list(sharding._addressable_device_assignment)
        shape, dtype = sharding.shard_shape(aval.shape), aval.dtype
        zeros, put, count = self._memory.zeros, self._put, len(devices)

        def make(committed: bool) -> Any:
            return put(aval, sharding, [zeros(shape, dtype)] * count, devices, committed)

        return make

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Let arrays say that they are not computed, and warn where Python reads one."""
        kind = private("jax._src.array.ArrayImpl")
        answers: dict[str, Callable[[Any], Any]] = {
            "__repr__": lambda array: f"Array({_described(array)})",
            "__str__": lambda array: f"<{_described(array)}>",
            "__bool__": lambda array: bool(self._read(array, "a decision on it takes False")),
            "copy_to_host_async": lambda array: None,
        }
        with contextlib.ExitStack() as undo:
            for name, answer in answers.items():
                undo.enter_context(Replaced(kind, name, self._instead(answer)))
            for name in ("__reduce__", "__dlpack__", "tobytes"):
                undo.enter_context(Replaced(kind, name, self._refusing(name)))
            undo.enter_context(Replaced(kind, "__format__", self._format))
            values = vars(kind)["_value"]
            value = self._instead(lambda array: self._read(array, "its values read as NaN or 0"))
            reading = property(lambda array: value(values.__get__, array))
            undo.enter_context(attribute(kind, "_value", reading))
            yield

    def _instead(self, answer: Callable[[Any], Any]) -> Callable[..., Any]:
        """Return a method that answers in another way for uncomputed arrays."""

        def method(original: Callable[..., Any], array: Any, *args: Any) -> Any:
            return answer(array) if self.has(array) else original(array, *args)

        return method

    def _format(self, original: Callable[..., Any], array: Any, specification: str) -> Any:
        return f"<{NOT_COMPUTED}>" if self.has(array) else original(array, specification)

    def _refusing(self, name: str) -> Callable[..., Any]:
        def method(original: Callable[..., Any], array: Any, *args: Any, **options: Any) -> Any:
            if self.has(array):
                raise RuntimeError(
                    f"{_described(array)} has no values to save or to pass on ({name}). Leave it "
                    "out of the dry run."
                )
            return original(array, *args, **options)

        return method

    def _read(self, array: Any, how: str) -> np.ndarray[Any, Any]:
        """Return values in the place of those that were not computed, and warn once a line."""
        where = users_line()
        if where not in self._warned:
            self._warned.add(where)
            said = f"The array ({_described(array)}) is read here: {how}."
            warnings.warn_explicit(said, TpuWarning, *where)
        is_inexact = np.issubdtype(array.dtype, np.inexact) or array.dtype.name.startswith("bf")
        value = np.asarray(np.nan if is_inexact else 0).astype(array.dtype)
        return np.broadcast_to(value, array.shape)


def _described(array: Any) -> str:
    return f"{NOT_COMPUTED}, shape={array.shape}, dtype={array.dtype.name}"

