"""The functions `install` and `uninstall`: a framework's own names find a virtual TPU.

They are for notebooks that know nothing of this package. `patched_names` contains the replacements
in TensorFlow. JAX gets other devices. This module imports a framework only when it must, and can
wait until other code imports one.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from tpunb import framework as port
from tpunb.errors import ConnectError
from tpunb.machine.framework import (
    FRAMEWORKS,
    TENSORFLOW,
    framework_for,
    imported_frameworks,
    installed_frameworks,
)
from tpunb.machine.watched_import import FirstImport
from tpunb.tpu.default_tpu import DEFAULT_TPU
from tpunb.tpu.types import Accelerator, accelerator
from tpunb.virtual.arithmetic import Arithmetic, arithmetic_of
from tpunb.virtual.installation import (
    Installation,
    current,
    set_current,
    set_failure,
    set_tpu_variables,
)
from tpunb.virtual.strictness import Strictness

lock = threading.RLock()
"""Held while an installation changes."""


def install(
    tpu: str | int | Accelerator | None = None,
    *,
    strict: bool | Mapping[str, bool] | Strictness = True,
    environment: bool = False,
    arithmetic: str | None = None,
    framework: str | None = None,
    judge: str = "wait",
    dry: bool = False,
) -> None:
    """Make the own names of TensorFlow or of JAX find a virtual TPU.

    In TensorFlow, `TPUClusterResolver`, `TPUStrategy`, `initialize_tpu_system`,
    `list_logical_devices`, `tf.device("/TPU:0")` and similar calls find it. It does not matter
    under which name they were imported, or whether before or after this call. In JAX,
    `jax.devices()` are its devices. A second call replaces the first installation.

    Args:
        tpu: A TPU type such as `"v3-8"`, or a number of cores. The default is the value of
            `TPUNB_TPU`, or a v5e-8.
        strict: The rules that strategies enforce: all of a TPU's (True), none (False), or a
            mapping from a rule's name to whether it holds.
        environment: Whether to set the environment variables that notebooks look at too:
            `COLAB_TPU_ADDR`, `TPU_NAME`, `XRT_TPU_CONFIG`, `TPU_ACCELERATOR_TYPE`.
        arithmetic: `"tpu"` makes strategies multiply matrices as a TPU does. The default is the
            value of `TPUNB_ARITHMETIC`, or `"cpu"`.
        framework: `"tensorflow"` or `"jax"`. The default is the framework that is imported, or else
            the framework that is installed. If both are installed, it is the framework that is
            imported first.
        judge: When the TPU's own compiler judges JAX's programs: as for `tpunb.connect`.
        dry: Whether large calls of JAX are judged and not computed: as for `tpunb.connect`.

    Raises:
        AcceleratorTypeError: The TPU type does not exist.
        ArithmeticNameError: The arithmetic does not exist.
        ConnectError: `TPUNB_REQUIRE_TPU` requires a real TPU, or the framework is not installed.
        VirtualDevicesError: TensorFlow has started with too few devices. An earlier installation
            stays.
    """
    installation = _installation(tpu, strict, environment, arithmetic, framework, judge, dry=dry)
    if not _is_open(framework):
        _put(installation, _here(framework))
    else:
        _put_when_imported(installation, FRAMEWORKS, required=True)


def _is_open(framework: str | None) -> bool:
    """Return whether only the notebook's imports can tell the framework."""
    return (
        framework is None and not imported_frameworks() and installed_frameworks() == {*FRAMEWORKS}
    )


def _here(framework: str | None) -> str:
    """Return the framework that was asked for, or else the notebook's."""
    return framework_for(framework, vars(sys.modules["__main__"]))[0]


def _put(installation: Installation, framework: str) -> Installation:
    """Replace the installation in force, and return the new one."""
    installation.framework = framework
    return port.of(framework).install(installation)


def uninstall() -> None:
    """Undo everything that `install` has changed, if anything is installed.

    Existing strategies keep working.
    """
    with lock:
        _disarm()
        installation = current()
        set_current(None)
        if installation is not None:
            installation.undo.close()


@contextlib.contextmanager
def installed(
    tpu: str | int | Accelerator | None = None,
    *,
    strict: bool | Mapping[str, bool] | Strictness = True,
    environment: bool = False,
    arithmetic: str | None = None,
    framework: str | None = None,
    judge: str = "wait",
    dry: bool = False,
) -> Iterator[Accelerator]:
    """Apply `install` for the length of a `with` block, then restore the earlier installation.

    Yields:
        The TPU's type.

    Raises:
        AcceleratorTypeError: The TPU type does not exist.
        ConnectError: `TPUNB_REQUIRE_TPU` requires a real TPU, or TensorFlow is not installed.
        VirtualDevicesError: TensorFlow has started with too few devices.
    """
    before = current()
    installation = _installation(tpu, strict, environment, arithmetic, framework, judge, dry=dry)
    mine = _put(installation, _here(framework))
    try:
        yield mine.accelerator
    finally:
        if current() is mine:
            restore(before)


def restore(before: Installation | None) -> None:
    """Restore the installation that `current` returned earlier."""
    if before is None:
        uninstall()
    else:
        _put(before, before.framework or TENSORFLOW)


def lend(
    tpu: Accelerator, strictness: Strictness, arithmetic: Arithmetic = "cpu"
) -> Installation | None:
    """Install, as `install` does, for the length of a connection.

    Returns:
        The argument for `give_back`. None if the same TPU is installed already, which must not be
        undone.
    """
    before = current()
    if (
        before is not None
        and not before.lent
        and (before.accelerator, before.strictness, before.arithmetic)
        == (tpu, strictness, arithmetic)
    ):
        return None
    mine = _put(_installation(tpu, strictness, False, arithmetic), TENSORFLOW)
    mine.lent = True
    mine.before = before.before if before is not None and before.lent else before
    return mine


def give_back(lent: Installation | None) -> None:
    """Undo `lend`, unless another TPU has been installed since."""
    if lent is not None and current() is lent:
        restore(lent.before)


def install_when_imported(
    tpu: str | int | Accelerator | None = None,
    *,
    strict: bool | Mapping[str, bool] | Strictness = True,
    environment: bool = False,
    arithmetic: str | None = None,
    framework: str | None = None,
    judge: str = "wait",
    dry: bool = False,
    required: bool = False,
) -> None:
    """Install as soon as TensorFlow or JAX is imported, at no cost until then.

    The virtual TPU is for the framework that is imported first. If one is imported already, this is
    `install`. Environment variables are set at once. `uninstall` undoes this too.

    Args:
        tpu: As for `install`.
        strict: As for `install`.
        environment: As for `install`.
        arithmetic: As for `install`.
        framework: `"tensorflow"` or `"jax"`, to wait for this one only.
        judge: As for `install`.
        dry: As for `install`.
        required: Whether the import fails if the installation fails. Otherwise a `TpuWarning` gives
            the reason, and the framework is unchanged.

    Raises:
        AcceleratorTypeError: The TPU type does not exist.
        ConnectError: `TPUNB_REQUIRE_TPU` requires a real TPU.
        VirtualDevicesError: TensorFlow has started already with too few devices.
    """
    installation = _installation(tpu, strict, environment, arithmetic, framework, judge, dry=dry)
    frameworks = FRAMEWORKS if framework is None else (framework,)
    imported = imported_frameworks() & {*frameworks}
    if imported:
        _put(installation, _here(framework))
    else:
        _put_when_imported(installation, frameworks, required=required)


def choose_framework(find: Callable[[], str | None]) -> None:
    """Say which framework a virtual TPU is for, if it still waits for the first import.

    Args:
        find: Returns the framework, or None if it is not known.
    """
    for _, hook in _armed:
        if hook.chosen is None and (framework := find()) is not None:
            hook.choose(framework)


def _put_when_imported(
    installation: Installation, frameworks: Collection[str], *, required: bool
) -> None:
    def arrived(framework: str) -> None:
        try:
            _put(installation, framework)
        except Exception as error:
            set_failure(error)
            if not required:
                _disarm()  # the environment must not name a TPU that does not exist
            raise

    with lock, contextlib.ExitStack() as undo:
        _disarm()
        if installation.environment:
            set_tpu_variables(installation.accelerator, undo)
        hook = undo.enter_context(FirstImport(arrived, *frameworks, required=required))
        _armed.append((undo.pop_all(), hook))


_armed: list[tuple[contextlib.ExitStack, FirstImport]] = []


def _disarm() -> None:
    while _armed:
        _armed.pop()[0].close()


def _installation(
    tpu: str | int | Accelerator | None,
    strict: bool | Mapping[str, bool] | Strictness,
    environment: bool,
    arithmetic: str | None,
    framework: str | None = None,
    judge: str = "wait",
    *,
    dry: bool = False,
) -> Installation:
    from tpunb.machine.detect import default_tpu, refuse_simulation

    refuse_simulation()
    if framework not in (None, *FRAMEWORKS):
        raise ConnectError(
            f"There is no framework {framework!r}.", fix=f"Choose {' or '.join(FRAMEWORKS)}."
        )
    if tpu is None:
        tpu = default_tpu() or DEFAULT_TPU
    options: dict[str, Any] = {"judge": judge}
    options |= {"dry": True} if dry else {}
    # JAX has no such options, so they are passed on to be refused.
    options |= {} if strict is True else {"strict": strict}
    options |= {} if arithmetic is None else {"arithmetic": arithmetic}
    return Installation(
        tpu if isinstance(tpu, Accelerator) else accelerator(tpu),
        Strictness.of(strict),
        environment,
        arithmetic_of(arithmetic),
        framework=framework,
        options_of_jax=options,
    )
