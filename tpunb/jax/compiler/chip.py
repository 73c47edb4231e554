"""The chip that JAX lowers a function for, which some Pallas kernels ask about.

`jax.sharding.AbstractDevice` describes a chip that the machine need not have. Kernels read it from
the mesh of the context. Inside a `jax.shard_map` they read it from the user's own mesh, which
describes no chip, so the two functions of Pallas that answer a kernel are replaced, in this thread
only.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from tpunb._util.patching import Replaced
from tpunb.compiler.ask.topologies import Target
from tpunb.tpu.families import DEVICE_KINDS

# v4 and v5p have two cores in one device.
_TWO_CORES = frozenset({"v4", "v5p"})

_ANSWERS = {"get_device_kind": "device_kind", "get_num_device_cores": "num_cores"}
"""The functions with which Pallas asks, and the attribute of the chip that answers each."""

_HOMES = ("jax._src.pallas.mosaic.tpu_info", "jax._src.pallas.mosaic.core")
"""The modules of these functions: since JAX 0.8, and before."""

# "Unsupported TPU device kind: cpu" (JAX 0.10.2), "Unsupported device kind: cpu" (JAX 0.7.2)
_REFUSED = re.compile(r"Unsupported (?:TPU )?device kind: (?:cpu|gpu)", re.IGNORECASE)

_described: ContextVar[Any] = ContextVar("described", default=None)


@contextlib.contextmanager
def lowered_for(target: Target) -> Iterator[Callable[[], bool]]:
    """Make the chip of a TPU type known to JAX in this thread, for tracing and lowering in a block.

    Example::

        with lowered_for(target) as was_asked:
            exported = jax.export.export(jitted, platforms=["tpu"])(*args)
        if was_asked(): ...  # the exported program may differ for another chip

    Args:
        target: The target of the compilation.

    Yields:
        A function that returns whether a kernel may have asked. JAX keeps traces, so an earlier
        block counts too.
    """
    family = target.tpu.family
    device = _device(family)
    with contextlib.ExitStack() as undo:
        if device is not None:
            _make_known(family, device, undo)
        yield lambda: bool(getattr(device, "was_asked", False))


def asks_in_vain(error: BaseException) -> bool:
    """Return whether JAX fails because it takes this machine's processor for the target."""
    return _REFUSED.search(str(error)) is not None


def _make_known(family: str, device: Any, undo: contextlib.ExitStack) -> None:
    """Make a device known to JAX in this thread, until a stack is unwound."""
    jax: Any = sys.modules["jax"]
    # Keep the traces for one chip separate from the traces for another.
    undo.enter_context(_traced_for()(family))
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:  # otherwise the user's shardings need their own mesh
        described = mesh.update(abstract_device=device)
        undo.enter_context(jax.sharding.use_abstract_mesh(described))
    undo.callback(_described.reset, _described.set(device))
    for replaced in _replaced():
        undo.enter_context(replaced)


@functools.cache
def _traced_for() -> Any:
    return sys.modules["jax"].make_user_context("")


@functools.cache
def _replaced() -> tuple[Replaced, ...]:
    """Return the Pallas functions of this JAX release, ready to be replaced within a block."""
    functions = []
    for home in _HOMES:
        with contextlib.suppress(ImportError):
            module = importlib.import_module(home)
            for name, attribute in _ANSWERS.items():
                function = getattr(module, name, None)
                if getattr(function, "__module__", None) == home:
                    answer = functools.partial(_answered, attribute)
                    functions.append(Replaced(module, name, answer))
    return tuple(functions)


def _answered(attribute: str, original: Any) -> Any:
    device = _described.get()
    return original() if device is None else getattr(device, attribute)


@functools.cache
def _device(family: str) -> Any:
    """Return the chip of a family, or None if this JAX cannot describe one."""
    sharding: Any = sys.modules["jax"].sharding
    names = ("AbstractDevice", "use_abstract_mesh", "get_abstract_mesh")
    if not all(hasattr(sharding, name) for name in names):
        return None
    if not hasattr(sys.modules["jax"], "make_user_context"):
        return None

    class Asked(sharding.AbstractDevice):  # type: ignore[misc]
        """A chip that records whether its properties were read."""

        was_asked = False

        def __getattribute__(self, name: str) -> Any:
            if name in _ANSWERS.values():
                object.__setattr__(self, "was_asked", True)
            return super().__getattribute__(name)

        # A dataclass's own methods would read the attributes.
        __eq__ = object.__eq__
        __hash__ = object.__hash__
        __repr__ = object.__repr__

    known = {
        "device_kind": DEVICE_KINDS[family],
        "num_cores": 2 if family in _TWO_CORES else 1,
        "platform": "tpu",  # since JAX 0.10
    }
    parameters = inspect.signature(sharding.AbstractDevice).parameters
    return Asked(**{name: value for name, value in known.items() if name in parameters})
