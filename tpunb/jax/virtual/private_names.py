"""The private names of JAX that the virtual TPU uses, and why.

JAX promises nothing about them. `tests/virtual/jax/test_private_names.py` checks each of them on
the oldest and on the newest supported release.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from tpunb.errors import ConnectError
from tpunb.machine.jax_releases import OLDEST_JAX

NEWEST = (0, 12)
"""The newest release of JAX that the tests run on."""

PRIVATE_NAMES = {
    "jax._src.xla_bridge._backends": "the clients by platform, to add a client to a running JAX",
    "jax._src.xla_bridge.backends": "makes the clients, at the first use of JAX",
    "jax._src.xla_bridge._default_backend": "the client of jax.devices()",
    "jax._src.xla_bridge._backend_factories": "the makers of clients, with their priorities",
    "jax._src.xla_bridge._backend_lock": "guards the clients",
    "jaxlib.xla_client.make_cpu_client": "makes a client with a number of CPU devices",
    "jaxlib._jax.Device": "the class of devices, whose attributes answer as a TPU's",
    "jaxlib._jax.Client": "the class of clients, which has the name of the platform",
    "jax._src.interpreters.mlir.lower_jaxpr_to_module": "lowers a traced program for a platform",
    "jax._src.interpreters.mlir._platform_specific_lowerings": "the operations of each platform",
    "jax._src.interpreters.mlir.make_ir_context": "reads a module of StableHLO",
    "jax._src.interpreters.mlir._lowerings": "the operations of all platforms",
    "jax._src.interpreters.mlir.module_to_bytecode": "serialises a module",
    "jax._src.interpreters.mlir.refine_polymorphic_shapes": "a module with exported functions",
    "jax._src.export._export.call_exported_p": "calls an exported function",
    "jax._src.lax.control_flow.conditionals.platform_index_p": "a branch on the platform",
    "jax._src.lax.control_flow.conditionals.cond_p": "a branch, also on the platform",
    "jax._src.compiler.compile_or_get_cached": "compiles each program, once",
    "jax._src.pjit._pjit_call_impl_python": "calls a program that is not compiled yet",
    "jax._src.pjit._cpp_pjit": "makes a jax.jit from its function and its options",
    "jax._src.pjit._get_fastpath_data": "lets calls do without Python",
    "jax._src.interpreters.pxla.ExecuteReplicated": "executes a program",
    "jax._src.interpreters.pxla.MeshExecutable": "makes the call of a program compiled ahead",
    "jax._src.interpreters.pxla.batched_device_put": "puts the parts of an array on devices",
    "jaxlib._jax.batched_device_put": "the same without looking at the parts",
    "jax._src.interpreters.pxla.shard_arg_handlers": "moves arrays to other devices",
    "jax._src.array.ArrayImpl": "the class of arrays, which say that they are not computed",
    "jax._src.dtypes": "knows JAX's own types, such as random keys",
    "jax._src.core": "knows what arrays of these types consist of",
    "jax._src.sharding_impls": "knows their sharding",
    "jax._src.export._export._module_to_bytecode": "serialises a module for other releases",
}
"""Each name with its purpose."""


def private(name: str) -> Any:
    """Return the object under a name of `PRIVATE_NAMES`.

    Raises:
        ConnectError: This release of JAX does not have it.
    """
    owner, attribute = owner_of(name)
    try:
        return getattr(owner, attribute)
    except AttributeError:
        raise _missing(name) from None


def set_private(name: str, value: Any) -> None:
    """Bind a name of `PRIVATE_NAMES` to another value."""
    setattr(*owner_of(name), value)


def owner_of(name: str) -> tuple[Any, str]:
    """Return the module of a private name, and its attribute there.

    Raises:
        ConnectError: This release of JAX does not have the module.
    """
    assert name in PRIVATE_NAMES, name
    module, _, attribute = name.rpartition(".")
    try:
        return importlib.import_module(module), attribute
    except ImportError:
        raise _missing(name) from None


def require_all() -> None:
    """Check that this release of JAX has all private names.

    Raises:
        ConnectError: It does not.
    """
    for name in PRIVATE_NAMES:
        private(name)


def _missing(name: str) -> ConnectError:
    version = sys.modules["jax"].__version__
    oldest, newest = (".".join(map(str, release)) for release in (OLDEST_JAX, NEWEST))
    return ConnectError(
        f"The virtual TPU for JAX needs {name}, which JAX {version} does not have.",
        fix=f"Install a release from {oldest} to {newest}. With this one, tpunb.compile works.",
    )
