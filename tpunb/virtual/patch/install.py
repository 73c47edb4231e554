"""TensorFlow's own names answer for a virtual TPU: `install` and `uninstall`.

For notebooks that know nothing of this package. What is replaced, and how, is in
`patched_names`. This module does not import TensorFlow until it must, and can wait until
somebody else does.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator, Mapping

from tpunb.errors import TpuWarning
from tpunb.tpu.defaults import DEFAULT_TPU
from tpunb.tpu.types import Accelerator, accelerator
from tpunb.virtual.arithmetic import Arithmetic, arithmetic_of
from tpunb.virtual.import_tensorflow import WatchedImport, require_tensorflow
from tpunb.virtual.installation import (
    Installation,
    current,
    set_current,
    set_failure,
    set_tpu_variables,
)
from tpunb.virtual.strictness import Strictness

_lock = threading.RLock()


def install(
    tpu: str | int | Accelerator | None = None,
    *,
    strict: bool | Mapping[str, bool] | Strictness = True,
    environment: bool = False,
    arithmetic: str | None = None,
) -> None:
    """Makes TensorFlow's own names answer for a virtual TPU.

    `TPUClusterResolver`, `TPUStrategy`, `initialize_tpu_system`, `list_logical_devices`,
    `tf.device("/TPU:0")` and similar calls find it, under whatever name they were imported
    and whether before or after this call. Installed again, it replaces the one before.

    Args:
        tpu: A TPU type such as `"v3-8"`, or a number of cores; by default what
            `TPUNB_TPU` says, else a v5e-8.
        strict: What strategies refuse: all that a TPU refuses (True), nothing, or a
            mapping from a rule's name to whether it holds.
        environment: Whether the environment variables that notebooks look at are set
            too: `COLAB_TPU_ADDR`, `TPU_NAME`, `XRT_TPU_CONFIG`, `TPU_ACCELERATOR_TYPE`.
        arithmetic: `"tpu"` if strategies are to multiply matrices as a TPU does; by default
            what `TPUNB_ARITHMETIC` says, else `"cpu"`.

    Raises:
        AcceleratorTypeError: There is no such TPU type.
        ArithmeticNameError: There is no such arithmetic.
        ConnectError: `TPUNB_REQUIRE_TPU` wants a real TPU, or TensorFlow is not installed.
        VirtualDevicesError: TensorFlow has started with too few devices. What was
            installed before stays.
    """
    wanted = _wanted(tpu, strict, environment, arithmetic)
    require_tensorflow()
    _put(wanted)


def _put(wanted: Installation) -> None:
    """Puts an installation in the place of the one that holds."""
    from tpunb.virtual.devices import virtual_devices
    from tpunb.virtual.patch.device_names import TPUNames
    from tpunb.virtual.patch.patched_names import make_changes
    from tpunb.virtual.tensorflow_strategies import STAND_INS

    with _lock:
        wanted._names = TPUNames(wanted.accelerator, virtual_devices(wanted.accelerator))
        uninstall()
        with contextlib.ExitStack() as undo:  # half-way is no way
            make_changes(wanted, STAND_INS, undo)
            wanted.undo = undo.pop_all()
        set_current(wanted)
        set_failure(None)


def uninstall() -> None:
    """Puts back everything that `install` has changed; nothing if nothing is installed.

    Strategies that exist keep working.
    """
    with _lock:
        _disarm()
        found = current()
        set_current(None)
        if found is not None:
            found.undo.close()


@contextlib.contextmanager
def installed(
    tpu: str | int | Accelerator | None = None,
    *,
    strict: bool | Mapping[str, bool] | Strictness = True,
    environment: bool = False,
    arithmetic: str | None = None,
) -> Iterator[Accelerator]:
    """`install` for the length of a `with` block; afterwards holds what held before.

    Yields:
        The TPU's type.

    Raises:
        AcceleratorTypeError: There is no such TPU type.
        ConnectError: `TPUNB_REQUIRE_TPU` wants a real TPU, or TensorFlow is not installed.
        VirtualDevicesError: TensorFlow has started with too few devices.
    """
    before = current()
    install(tpu, strict=strict, environment=environment, arithmetic=arithmetic)
    mine = current()
    assert mine is not None
    try:
        yield mine.accelerator
    finally:
        if current() is mine:
            restore(before)


def restore(before: Installation | None) -> None:
    """Restores the installation that `current` returned earlier."""
    if before is None:
        uninstall()
    else:
        _put(before)


def lend(
    tpu: Accelerator, strictness: Strictness, arithmetic: Arithmetic = "cpu"
) -> Installation | None:
    """`install` for the length of a connection.

    Returns:
        What `give_back` takes; None if it is installed already, and not to be undone.
    """
    found = current()
    if (
        found is not None
        and not found.lent
        and (found.accelerator, found.strictness, found.arithmetic) == (tpu, strictness, arithmetic)
    ):
        return None
    install(tpu, strict=strictness, arithmetic=arithmetic)
    mine = current()
    assert mine is not None
    mine.lent = True
    mine.before = found.before if found is not None and found.lent else found
    return mine


def give_back(lent: Installation | None) -> None:
    """Undoes `lend`, unless something else has been installed since."""
    if lent is not None and current() is lent:
        restore(lent.before)


def install_when_imported(
    tpu: str | int | Accelerator | None = None,
    *,
    strict: bool | Mapping[str, bool] | Strictness = True,
    environment: bool = False,
    arithmetic: str | None = None,
    required: bool = False,
) -> None:
    """Installs as soon as TensorFlow is imported, and costs nothing until then.

    If TensorFlow is imported already, this is `install`. Environment variables are set
    at once. `uninstall` undoes this too.

    Args:
        tpu: As `install` takes it.
        strict: As `install` takes it.
        environment: As `install` takes it.
        arithmetic: As `install` takes it.
        required: Whether the import of TensorFlow fails if installing fails. If not,
            a `TpuWarning` says why, and TensorFlow is as it would be without.

    Raises:
        AcceleratorTypeError: There is no such TPU type.
        ConnectError: `TPUNB_REQUIRE_TPU` wants a real TPU.
        VirtualDevicesError: TensorFlow has started already with too few devices.
    """
    wanted = _wanted(tpu, strict, environment, arithmetic)
    if "tensorflow" in sys.modules:
        install(wanted.accelerator, **wanted.options())
        return

    def arrived() -> None:
        try:
            install(wanted.accelerator, **wanted.options())
        except Exception as error:
            set_failure(error)
            if not required:
                _disarm()  # the environment must not name a TPU that is not there
            raise

    with _lock, contextlib.ExitStack() as undo:
        _disarm()
        if environment:
            set_tpu_variables(wanted.accelerator, undo)
        undo.enter_context(Hook(arrived, required=required))
        _armed.append(undo.pop_all())


_armed: list[contextlib.ExitStack] = []


def _disarm() -> None:
    while _armed:
        _armed.pop().close()


def _wanted(
    tpu: str | int | Accelerator | None,
    strict: bool | Mapping[str, bool] | Strictness,
    environment: bool,
    arithmetic: str | None,
) -> Installation:
    from tpunb.machine.detect import default_tpu, refuse_simulation

    refuse_simulation()
    if tpu is None:
        tpu = default_tpu() or DEFAULT_TPU
    found = tpu if isinstance(tpu, Accelerator) else accelerator(tpu)
    return Installation(found, Strictness.of(strict), environment, arithmetic_of(arithmetic))


class Hook(WatchedImport, contextlib.AbstractContextManager[None]):
    """Waits for TensorFlow's import.

    Args:
        arrived: Called when TensorFlow has been imported.
        required: Whether an error of it fails the import, and every further one; if
            not, it is a warning.
    """

    def __init__(self, arrived: Callable[[], None], *, required: bool) -> None:
        super().__init__()
        self._arrived = arrived
        self._required = required

    def __enter__(self) -> None:
        sys.meta_path.insert(0, self)

    def __exit__(self, *exception: object) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def load(self, module: types.ModuleType, load: Callable[[types.ModuleType], None]) -> None:
        """Loads TensorFlow, reports that, and is gone."""
        load(module)
        try:
            self._arrived()
        except Exception as error:
            if self._required:
                raise
            warnings.warn(
                "TensorFlow's names do not answer for the virtual TPU: "
                f"{type(error).__name__}: {error}",
                TpuWarning,
                stacklevel=2,
            )
        self.__exit__()
