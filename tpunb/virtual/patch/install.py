"""The functions `install` and `uninstall`, which let TensorFlow's own names find a virtual TPU.

They are for notebooks that know nothing of this package. `patched_names` contains the replacements.
This module imports TensorFlow only when it must, and can wait until other code imports it.
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
    """Make TensorFlow's own names find a virtual TPU.

    `TPUClusterResolver`, `TPUStrategy`, `initialize_tpu_system`, `list_logical_devices`,
    `tf.device("/TPU:0")` and similar calls find it. It does not matter under which name they were
    imported, or whether before or after this call. A second call replaces the first installation.

    Args:
        tpu: A TPU type such as `"v3-8"`, or a number of cores. The default is the value of
            `TPUNB_TPU`, or a v5e-8.
        strict: The rules that strategies enforce: all of a TPU's (True), none (False), or a
            mapping from a rule's name to whether it holds.
        environment: Whether to set the environment variables that notebooks look at too:
            `COLAB_TPU_ADDR`, `TPU_NAME`, `XRT_TPU_CONFIG`, `TPU_ACCELERATOR_TYPE`.
        arithmetic: `"tpu"` makes strategies multiply matrices as a TPU does. The default is the
            value of `TPUNB_ARITHMETIC`, or `"cpu"`.

    Raises:
        AcceleratorTypeError: The TPU type does not exist.
        ArithmeticNameError: The arithmetic does not exist.
        ConnectError: `TPUNB_REQUIRE_TPU` requires a real TPU, or TensorFlow is not installed.
        VirtualDevicesError: TensorFlow has started with too few devices. An earlier installation
            stays.
    """
    _put(_installation(tpu, strict, environment, arithmetic))


def _put(installation: Installation) -> Installation:
    """Replace the installation in force, and return the new one."""
    require_tensorflow()
    from tpunb.virtual.devices import virtual_devices
    from tpunb.virtual.patch.device_names import TPUNames
    from tpunb.virtual.patch.patched_names import make_changes
    from tpunb.virtual.tensorflow_strategies import STAND_INS

    with _lock:
        installation.names = TPUNames(
            installation.accelerator, virtual_devices(installation.accelerator)
        )
        uninstall()
        with contextlib.ExitStack() as undo:  # undo all changes if one of them fails
            make_changes(installation, STAND_INS, undo)
            installation.undo = undo.pop_all()
        set_current(installation)
        set_failure(None)
    return installation


def uninstall() -> None:
    """Undo everything that `install` has changed, if anything is installed.

    Existing strategies keep working.
    """
    with _lock:
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
    mine = _put(_installation(tpu, strict, environment, arithmetic))
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
        _put(before)


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
    mine = _put(_installation(tpu, strictness, False, arithmetic))
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
    required: bool = False,
) -> None:
    """Install as soon as TensorFlow is imported, at no cost until then.

    If TensorFlow is imported already, this is `install`. Environment variables are set at once.
    `uninstall` undoes this too.

    Args:
        tpu: As for `install`.
        strict: As for `install`.
        environment: As for `install`.
        arithmetic: As for `install`.
        required: Whether the import of TensorFlow fails if the installation fails. Otherwise a
            `TpuWarning` gives the reason, and TensorFlow is unchanged.

    Raises:
        AcceleratorTypeError: The TPU type does not exist.
        ConnectError: `TPUNB_REQUIRE_TPU` requires a real TPU.
        VirtualDevicesError: TensorFlow has started already with too few devices.
    """
    installation = _installation(tpu, strict, environment, arithmetic)
    if "tensorflow" in sys.modules:
        _put(installation)
        return

    def arrived() -> None:
        try:
            _put(installation)
        except Exception as error:
            set_failure(error)
            if not required:
                _disarm()  # the environment must not name a TPU that does not exist
            raise

    with _lock, contextlib.ExitStack() as undo:
        _disarm()
        if environment:
            set_tpu_variables(installation.accelerator, undo)
        undo.enter_context(Hook(arrived, required=required))
        _armed.append(undo.pop_all())


_armed: list[contextlib.ExitStack] = []


def _disarm() -> None:
    while _armed:
        _armed.pop().close()


def _installation(
    tpu: str | int | Accelerator | None,
    strict: bool | Mapping[str, bool] | Strictness,
    environment: bool,
    arithmetic: str | None,
) -> Installation:
    from tpunb.machine.detect import default_tpu, refuse_simulation

    refuse_simulation()
    if tpu is None:
        tpu = default_tpu() or DEFAULT_TPU
    tpu_type = tpu if isinstance(tpu, Accelerator) else accelerator(tpu)
    return Installation(tpu_type, Strictness.of(strict), environment, arithmetic_of(arithmetic))


class Hook(WatchedImport, contextlib.AbstractContextManager[None]):
    """A finder that waits for TensorFlow's import.

    Args:
        arrived: Called when TensorFlow has been imported.
        required: Whether an error in `arrived` fails this import and every further import.
            Otherwise the error becomes a warning.
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
        """Load TensorFlow, report that, and remove this finder."""
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
