"""Arrays that a dry run has not computed.

They have a shape, a type and a sharding like any array. Their bytes are zeros that the system never
has to provide: every part is a view of memory that is reserved and not taken, which JAX accepts
without a copy. An array is recognised by its address there, so `shard.data` is recognised too.
"""

from __future__ import annotations

import ctypes
import functools
import math
import mmap
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from tpunb._util.patching import Replaced
from tpunb.errors import ConnectError, TpuWarning
from tpunb.jax.virtual.dry_record import present_line
from tpunb.jax.virtual.private_names import owner_of, private

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
    """Zeros at addresses that only uncomputed arrays have, and the sizes of these arrays."""

    def __init__(self) -> None:
        self._mappings: list[mmap.mmap] = []
        self._wholes: dict[int, int] = {}
        self._next = 0
        self._lock = threading.Lock()

    def zeros(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], whole: int
    ) -> np.ndarray[Any, Any]:
        """Return zeros that cannot be written, at an address that the last arrays did not have.

        Args:
            shape: The shape of a part.
            dtype: Its type.
            whole: The bytes of the whole array.
        """
        count = math.prod(shape)
        with self._lock:
            offset = self._next * _ALIGNMENT
            self._next = (self._next + 1) % _SLOTS
            mapping = self._mapping(count * dtype.itemsize)
        part = np.frombuffer(mapping, dtype, count, offset).reshape(shape)
        self._wholes[part.ctypes.data] = whole
        return part

    def whole(self, array: Any) -> int | None:
        """Return the bytes of the array that has one of an array's parts; None without ours."""
        sizes = (self._wholes.get(part.unsafe_buffer_pointer()) for part in array._arrays)
        return next((size for size in sizes if size is not None), None)

    def _mapping(self, size: int) -> mmap.mmap:
        """Return a mapping with room for a number of bytes at each of the addresses."""
        needed = size + _SLOTS * _ALIGNMENT
        for mapping in self._mappings:
            if len(mapping) >= needed:
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
        self._mappings.append(mapping)
        return mapping


class Uncomputed:
    """The uncomputed arrays of this process.

    An array goes on to say that it is not computed when its dry run has ended, because it stays in
    the notebook. So there is one object for all dry runs, and what it changes in JAX stays changed.

    Attributes:
        client: The client whose programs may be left out; None without a dry run.
    """

    def __init__(self) -> None:
        require_reserved_memory()
        self.client: Any = None
        self._memory = ReservedMemory()
        self._put = private("jaxlib._jax.batched_device_put")
        self._delete = private("jax._src.array.ArrayImpl").delete
        self._warned: set[tuple[str, int]] = set()
        self._show()

    def has(self, array: Any) -> bool:
        """Return whether an array has not been computed. A deleted array counts as computed."""
        if getattr(array, MADE, False):
            return not array.is_deleted()
        base = getattr(array, "_base_array", array)  # of random keys
        if not getattr(base, "_arrays", None) or base.is_deleted():
            return False
        return self._memory.whole(base) is not None

    def make(self, aval: Any, sharding: Any, *, committed: bool = True, of: Any = None) -> Any:
        """Return an uncomputed array.

        Args:
            aval: JAX's abstract value: its shape and its type.
            sharding: Its sharding.
            committed: Whether it is bound to its devices.
            of: The uncomputed array, or the part of one, that it is a copy of.
        """
        whole = 0 if of is None else self._memory.whole(of)
        return self.maker(aval, sharding, whole or 0)(committed)

    def maker(self, aval: Any, sharding: Any, least: int = 0) -> Callable[[bool], Any]:
        """Return a function that makes such arrays in microseconds; see `make`."""
        devices = list(sharding.addressable_devices_indices_map(aval.shape))
        shape, dtype = sharding.shard_shape(aval.shape), aval.dtype
        zeros, put, count = self._memory.zeros, self._put, len(devices)
        whole = max(least, math.prod(aval.shape) * dtype.itemsize)
        last: weakref.ref[Any] | None = None

        def make(committed: bool) -> Any:
            nonlocal last
            like = None if last is None else last()
            if like is not None and like._committed == committed and not like.is_deleted():
                array = like.clone()  # which shares the parts, and takes a tenth of the time
            else:
                array = put(
                    aval, sharding, [zeros(shape, dtype, whole)] * count, devices, committed
                )
            last = weakref.ref(array)
            setattr(array, MADE, True)
            return array

        return make

    def delete(self, arrays: Iterable[Any]) -> None:
        """Delete arrays, and not the parts that others share with them."""
        given: dict[tuple[int, int, bool], Any] = {}
        for array in arrays:
            if not self.has(array):
                self._delete(array)
                continue
            aval, sharding, committed = array.aval, array.sharding, array._committed
            kind = id(aval), id(sharding), committed  # whose hashes take longer than the rest
            if kind not in given:
                given[kind] = self.make(aval, sharding, committed=committed)
            array._replace_with(given[kind])
        for array in given.values():
            self._delete(array)

    def _show(self) -> None:
        """Let arrays say that they are not computed, and warn where Python reads one."""
        kind = private("jax._src.array.ArrayImpl")
        answers: dict[str, Callable[[Any], Any]] = {
            "__repr__": lambda array: f"Array({_described(array)})",
            "__str__": lambda array: f"<{_described(array)}>",
            "__bool__": lambda array: bool(self._read(array, "a decision on it takes False", 0)),
            "__int__": lambda array: int(self._read(array, "it reads as 0", 0)),
            "copy_to_host_async": lambda array: None,
        }
        methods = {name: self._instead(answer) for name, answer in answers.items()}
        methods |= {name: self._refusing(name) for name in ("__reduce__", "__dlpack__", "tobytes")}
        methods["__format__"] = self._format
        for name, method in methods.items():
            Replaced(kind, name, method).__enter__()
        value = self._instead(lambda array: self._read(array, "its values read as NaN or 0"))
        values = vars(kind)["_value"]
        kind._value = property(lambda array: value(values.__get__, array))
        kind.delete = lambda array: self.delete([array])
        hide_buffers(kind)
        handlers = private("jax._src.interpreters.pxla.shard_arg_handlers")
        handlers[kind] = functools.partial(self._move, handlers[kind])
        executed = private("jax._src.interpreters.pxla.ExecuteReplicated")
        Replaced(executed, "__call__", self._execute).__enter__()
        Replaced(*owner_of("jax._src.interpreters.pxla.batched_device_put"), self._copy).__enter__()

    def _execute(self, original: Callable[..., Any], executed: Any, *args: Any) -> Any:
        """Refuse to compute with arrays that have no values, after a dry run."""
        for array in filter(self.has, args):
            raise RuntimeError(_left(array))
        return original(executed, *args)

    def _copy(
        self,
        original: Callable[..., Any],
        aval: Any,
        sharding: Any,
        xs: Sequence[Any],
        devices: Sequence[Any],
        *args: Any,
        **named: Any,
    ) -> Any:
        """Copy arrays to other devices than those of a dry run."""
        devices = list(devices)
        xs = [
            self._copied(x) if self.has(x) and x.devices() != {device} else x
            for x, device in zip(xs, devices, strict=True)
        ]
        return original(aval, sharding, xs, devices, *args, **named)

    def _move(
        self, original: Callable[..., Any], xs: Sequence[Any], shardings: Sequence[Any], *args: Any
    ) -> list[Any]:
        """Place arrays by other shardings, the uncomputed without a copy."""
        moved = [self._moved(x, sharding) for x, sharding in zip(xs, shardings, strict=True)]
        rest = [place for place, array in enumerate(moved) if array is None]
        each = [[values[place] for place in rest] for values in (xs, shardings, *args)]
        for place, array in zip(rest, original(*each) if rest else [], strict=True):
            moved[place] = array
        return moved

    def _moved(self, array: Any, sharding: Any) -> Any:
        """Return an uncomputed array with another sharding; None for other arrays."""
        here = array.sharding
        if not self.has(array) or (
            sharding.device_set == here.device_set and here.is_equivalent_to(sharding, array.ndim)
        ):
            return None
        if next(iter(sharding.device_set)).client is not self.client:
            return sys.modules["jax"].device_put(self._copied(array), sharding)
        return self.make(array.aval, sharding, of=array)

    def _copied(self, array: Any) -> np.ndarray[Any, Any]:
        """Return values for a copy on devices that compute, such as the host's.

        Raises:
            RuntimeError: The array's dry run has ended, or the array is large.
        """
        if self.client is None:
            raise RuntimeError(_left(array))
        return self._read(array, "its copy has NaN or 0")

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
                    f"{_described(array)} has no values to save or to pass on ({name}). Leave this "
                    "line out of the dry run."
                )
            return original(array, *args, **options)

        return method

    def _read(self, array: Any, how: str, value: float = math.nan) -> np.ndarray[Any, Any]:
        """Return values in the place of those that were not computed, and warn once a line.

        Raises:
            RuntimeError: They are to be saved, or there are so many that somebody wants to.
        """
        whole = self._memory.whole(array)  # None for types that JAX packs
        if (array.nbytes if whole is None else whole) >= LARGE or _is_saving():
            raise RuntimeError(
                f"{_described(array)} has no values to read or to save. Leave this line out of the "
                "dry run."
            )
        where = present_line()
        if where not in self._warned:
            self._warned.add(where)
            said = f"The array ({_described(array)}) is read here: {how}."
            warnings.warn_explicit(said, TpuWarning, *where)
        is_whole = array.dtype.kind in "biu" or array.dtype.name in _PACKED
        value = 0 if is_whole else value
        return np.broadcast_to(np.asarray(value).astype(array.dtype), array.shape)


MADE = "_made_by_a_dry_run"
"""The attribute of the arrays that are made here, and not of their parts."""

LARGE = 2**24
"""The bytes from which arrays are not computed in a dry run, on all devices together."""

_PACKED = frozenset({"int4", "uint4", "int2", "uint2", "float4_e2m1fn"})


@functools.cache
def uncomputed_arrays() -> Uncomputed:
    """Return the uncomputed arrays of this process.

    Raises:
        ConnectError: This system has none.
    """
    return Uncomputed()


def hide_buffers(kind: type) -> None:
    """Take the buffer protocol from a class of arrays, so that NumPy asks for `__array__`.

    NumPy prefers the protocol, which would show the zeros of uncomputed arrays. A class of an
    extension cannot lose it in Python, so the pointer in CPython's type object is cleared:
    `tp_as_buffer`, 17 pointers after the size (https://docs.python.org/3/c-api/typeobj.html).
    """
    pointer = ctypes.sizeof(ctypes.c_void_p)
    place = id(kind) + object.__basicsize__ + (1 + 17) * pointer
    ctypes.c_void_p.from_address(place).value = None


_SAVING = (
    "numpy.lib.npyio",
    "numpy.lib._npyio_impl",
    "safetensors",
    "flax.serialization",
    "h5py",
    "orbax",
    "equinox._serialisation",
)
"""The beginnings of the names of modules that write arrays into files."""


def _is_saving() -> bool:
    """Return whether such a module runs."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith(_SAVING):
            return True
        frame = frame.f_back
    return False


def _described(array: Any) -> str:
    return f"{NOT_COMPUTED}, shape={array.shape}, dtype={array.dtype.name}"


def _left(array: Any) -> str:
    return (
        f"{_described(array)} has no values, and its devices are not those of the present dry run. "
        "Connect with --dry, and make the meshes and the arrays again."
    )
