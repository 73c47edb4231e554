"""A connection to a virtual TPU for JAX."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from tpunb._util.units import byte_count
from tpunb.connection.plan import Plan
from tpunb.display.widgets.frontend import cell_number
from tpunb.errors import ConnectError
from tpunb.jax.compiler.judge import Judge
from tpunb.jax.connection.devices import JaxDevices
from tpunb.jax.virtual.devices import other_platforms
from tpunb.jax.virtual.dry_record import DryRecord
from tpunb.jax.virtual.import_jax import import_jax
from tpunb.jax.virtual.memory import LiveArray, listed
from tpunb.jax.virtual.virtual_tpu import VirtualTpu
from tpunb.tpu.families import HARDWARE
from tpunb.tpu.types import accelerator
from tpunb.virtual.installation import current

if TYPE_CHECKING:
    from tpunb.compiler.program import TpuProgram


_BESIDE = "jax.devices() are the virtual TPU's. jax.devices({0!r}) still lists this machine's."

_SECONDS, _SECONDS_WHEN_DRY = 300.0, 3600.0
"""How long the compiler may take for a program; a dry run has no other purpose than its answer."""

_DRY = (
    "This is a dry run: the TPU's compiler judges every program, and this machine computes only "
    "small ones."
)

_open: list[JaxConnection] = []
"""The open connection, which its devices keep alive as long as JAX has them."""


class JaxConnection(JaxDevices):
    """A virtual TPU, whose devices are JAX's default devices until `close`.

    Example::

        connection = tpunb.connect(simulate="v5e-8", framework="jax")
        jax.devices()  # eight devices of a TPU v5e

    Args:
        plan: The plan of the connection.
        namespace: The notebook's names, for messages about arrays.

    Attributes:
        judge: What the TPU's own compiler says of the programs.
        dry: The calls of a dry run; None if this is no dry run.
    """

    def __init__(self, plan: Plan, namespace: Mapping[str, Any]) -> None:
        import_jax()
        tpu = accelerator(plan.tpu)
        if tpu.family == "generic":
            raise ConnectError(
                f"JAX's devices need a TPU type, and {tpu.name} is none.",
                fix="Name a type, such as v5e-8, instead of a number of cores.",
            )
        before = next((other.dry for other in _open if other.dry is not None), None)
        for other in list(_open):
            other.close()  # JAX has one client for each platform
        request = plan.request
        when: Any = request.judge
        installed = current()  # %tpu_connect in the kernel of a dry run goes on with it
        is_dry = request.dry or (installed is not None and "dry" in installed.options_of_jax)
        self.judge = Judge(
            tpu,
            when,
            speed=request.speed,
            recorded=request.recorded,
            namespace=namespace,
            seconds=_SECONDS_WHEN_DRY if is_dry else _SECONDS,
            fixes=is_dry,
        )
        self.dry: DryRecord | None = (before or DryRecord(cell_number)) if is_dry else None
        self._virtual = VirtualTpu(tpu, self.judge, namespace, self.dry)
        beside = [_BESIDE.format(platform) for platform in other_platforms()]
        beside += [_DRY] if self.dry is not None else []
        notes = (*plan.notes, *filter(None, [self.judge.why_off]), *beside)
        super().__init__(plan, tpu, self._virtual.client.devices(), notes)
        _open.append(self)

    @property
    def programs(self) -> tuple[TpuProgram, ...]:
        """The programs that were judged, in the order of their verdicts."""
        return tuple(self.judge.programs)

    def live_arrays(self) -> list[LiveArray]:
        """Return the arrays in the memory of the devices, the largest first."""
        self._refuse_closed()
        return self._virtual.memory.arrays()

    def overflow(self) -> str:
        """Return the sentence that the arrays do not fit on a device; empty if they do."""
        memory, usable = self._virtual.memory, HARDWARE[self._accelerator.family].usable_bytes
        if memory.look() <= usable or (used := max(each := memory.in_use())) <= usable:
            return ""
        return (
            f"The arrays take {byte_count(used)} of a core's {byte_count(usable)}. On a TPU, this "
            f"cell would fail with RESOURCE_EXHAUSTED. The largest:"
            f"{listed(memory.arrays(each.index(used)))}"
        )

    @property
    def strategy(self) -> NoReturn:
        """JAX has no strategy.

        Raises:
            ConnectError: Always.
        """
        raise ConnectError(
            "A virtual TPU for JAX has no strategy: jax.devices() are its devices.",
            fix="Make a mesh of them: jax.make_mesh((8,), ('data',)).",
        )

    def memory_per_core(self) -> tuple[int, ...]:
        """Return the bytes of the live arrays and of the programs' code on each device."""
        self._refuse_closed()
        return tuple(self._virtual.memory.in_use())

    def close(self, *, shut_down: bool = True) -> None:
        """Give JAX back its own devices. Arrays of the virtual TPU stay readable."""
        del shut_down
        if not self.closed:
            self.closed = True
            _open.remove(self)
            if self._cells is not None:
                self._cells.close()
            self.judge.close()
            self._virtual.close()
