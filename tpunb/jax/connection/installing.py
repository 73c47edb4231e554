"""JAX's part of `tpunb.virtual.install`: its devices are a virtual TPU's from their first use."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from tpunb.connection.connect import connector
from tpunb.jax.virtual.first_use import TpuAtFirstUse
from tpunb.jax.virtual.import_jax import import_jax
from tpunb.machine.framework import JAX
from tpunb.virtual.installation import (
    Installation,
    current,
    set_current,
    set_failure,
    set_tpu_variables,
)
from tpunb.virtual.installer import lock, restore, uninstall


def install(installation: Installation) -> Installation:
    """Make JAX's devices a virtual TPU's. See `tpunb.framework.Framework.install`."""
    import_jax()
    connect = connector(
        simulate=installation.accelerator.name, framework=JAX, **installation.options_of_jax
    )

    def connect_or_tell() -> contextlib.AbstractContextManager[Any]:
        try:
            connection = connect()
        except Exception as error:
            set_failure(error)
            raise
        set_failure(None)
        return connection

    with lock:
        before = current()
        uninstall()
        with contextlib.ExitStack() as undo:
            if installation.environment:
                set_tpu_variables(installation.accelerator, undo)
            with _restored_on_error(before):
                undo.enter_context(TpuAtFirstUse(connect_or_tell))
            installation.undo = undo.pop_all()
        set_current(installation)
    return installation


@contextlib.contextmanager
def _restored_on_error(before: Installation | None) -> Iterator[None]:
    try:
        yield
    except BaseException:
        restore(before)
        raise
