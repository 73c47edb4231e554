"""Connecting: from a request to a strategy that is ready to run."""

from __future__ import annotations

import dataclasses
import reprlib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from tpunb.accelerators import accelerator
from tpunb.assignment import device_assignment, is_whole
from tpunb.environment import default_tpu, find_tpu, requires_tpu
from tpunb.errors import (
    AcceleratorTypeError,
    ComputationShapeError,
    ConnectError,
    NotConnectedError,
)
from tpunb.quiet import import_tensorflow
from tpunb.virtual import installation, latest
from tpunb.virtual.strict.rules import STRICT, Strictness

if TYPE_CHECKING:
    from tpunb.cells import CellResult, CellRunner
    from tpunb.describe import Annotations, ConnectionDescription

__all__ = [
    "DEFAULT_TYPE",
    "Connection",
    "Request",
    "TPUStrategy",
    "connect",
    "make_connection",
    "resolve",
]

DEFAULT_TYPE = "v5e-8"
"""The virtual TPU that stands in where none is found."""

_DAY = 24 * 60 * 60


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """What to connect to, once all defaults are settled.

    Attributes:
        kind: `"virtual"` or `"hardware"`.
        tpu: A TPU type to simulate, or `"local"`, a name or an address.
        computation_shape: Cores of one replica along the topology's axes.
        replicas: How many replicas to use; None for as many as fit.
        spmd: Whether XLA partitions tensors over a replica's logical devices.
        strictness: What a virtual TPU refuses.
        patch: Whether TensorFlow's own names answer for the virtual TPU.
        zone: The Cloud zone of a TPU given by name.
        project: The Cloud project of a TPU given by name.
        timeout: Seconds after which an unreachable worker is given up.
        fallback: Whether a virtual TPU may stand in if connecting fails.
        notes: Sentences that the user should read.

    Two requests are equal if they lead to the same connection: how long to wait
    and what to say do not count.
    """

    kind: Literal["virtual", "hardware"]
    tpu: str
    computation_shape: tuple[int, ...] | None = None
    replicas: int | None = None
    spmd: bool = False
    strictness: Strictness = STRICT
    patch: bool = False
    zone: str | None = None
    project: str | None = None
    timeout: float = dataclasses.field(default=60, compare=False)
    fallback: bool = dataclasses.field(default=False, compare=False)
    notes: tuple[str, ...] = dataclasses.field(default=(), compare=False)


def connect(
    tpu: str | None = None,
    *,
    simulate: str | int | bool | None = None,
    computation_shape: Sequence[int] | None = None,
    replicas: int | None = None,
    spmd: bool = False,
    strict: bool | Mapping[str, bool] = True,
    patch: bool = False,
    require_tpu: bool = False,
    zone: str | None = None,
    project: str | None = None,
    timeout: float = 60,
) -> Connection:
    """Connects to a TPU, or to a virtual one.

    With neither `tpu` nor `simulate`, `TPUNB_TPU` decides; without it, the TPU of
    this machine is taken, or a virtual v5e-8 if there is none, and the
    connection's notes say why.

    Args:
        tpu: `"local"` on a TPU VM, Colab or Kaggle, the name of a Cloud TPU, or
            `"grpc://host:port"`.
        simulate: A TPU type such as `"v3-8"`, or a number of cores, to simulate
            on this machine's CPU; True for a v5e-8.
        computation_shape: Cores of one replica along the topology's axes
            `[x, y, z, core]`, for model parallelism; by default every core is a
            replica.
        replicas: How many replicas; by default as many as fit.
        spmd: Whether XLA partitions tensors over a replica's logical devices.
        strict: Whether a virtual TPU refuses what a TPU refuses: all rules (True),
            none, or a mapping from a rule's name to whether it holds.
        patch: Whether TensorFlow's own names answer for a virtual TPU until the
            connection is closed, as `tpunb.virtual.install` makes them.
        require_tpu: Whether to fail rather than to simulate when there is no
            TPU; `TPUNB_REQUIRE_TPU=1` does the same for a whole process.
        zone: The Cloud zone of a TPU given by name.
        project: The Cloud project of a TPU given by name.
        timeout: Seconds after which an unreachable worker is given up.

    Returns:
        The connection; also a context manager that closes it.

    Raises:
        AcceleratorTypeError: There is no such TPU type.
        ComputationShapeError: The computation shape or the number of replicas
            does not fit.
        ConnectError: There is no TPU where one is wanted, or it does not answer.
        VirtualDevicesError: TensorFlow has started with too few devices for
            this virtual TPU.
    """
    request = resolve(
        tpu,
        simulate=simulate,
        computation_shape=computation_shape,
        replicas=replicas,
        spmd=spmd,
        strict=strict,
        patch=patch,
        require_tpu=require_tpu,
        zone=zone,
        project=project,
        timeout=timeout,
    )
    return make_connection(request)


def TPUStrategy(tpu: str = "") -> Any:
    """A strategy on the TPU here, or on a virtual one, in one call.

    In the manner of TF-GNN's `runner.TPUStrategy`: it finds the TPU, connects to
    it, initialises it and makes the strategy, as `connect` does.

    Args:
        tpu: As `connect` takes it; by default what `TPUNB_TPU` says, else the TPU
            of this machine, else a virtual v5e-8, with a warning that says why.

    Returns:
        A `tf.distribute.TPUStrategy`.

    Raises:
        ConnectError: There is no TPU where one is wanted, or it does not answer.
        VirtualDevicesError: TensorFlow has started with too few devices.
    """
    connection = connect(tpu)
    if connection.request.notes:
        warnings.warn(" ".join(connection.request.notes), stacklevel=2)
    return connection.strategy


def resolve(
    tpu: str | None = None,
    *,
    simulate: str | int | bool | None = None,
    computation_shape: Sequence[int] | None = None,
    replicas: int | None = None,
    spmd: bool = False,
    strict: bool | Mapping[str, bool] = True,
    patch: bool = False,
    require_tpu: bool = False,
    zone: str | None = None,
    project: str | None = None,
    timeout: float = 60,
) -> Request:
    """Settles what `connect` is asked for, without connecting.

    Raises:
        AcceleratorTypeError: There is no such TPU type.
        ConnectError: The wishes contradict each other, or no TPU is found where
            one is required.
    """
    require_tpu = require_tpu or requires_tpu()
    kind, target, fallback, notes = _target(tpu, simulate, require_tpu)
    if replicas is not None and not (is_whole(replicas) and replicas >= 1):
        raise ComputationShapeError(
            f"The number of replicas is a positive whole number, not {reprlib.repr(replicas)}.",
            mend="Leave it out for as many replicas as fit.",
        )
    if not (isinstance(timeout, int | float) and 0 < timeout <= _DAY):
        raise ConnectError(
            f"A timeout is a number of seconds, not {reprlib.repr(timeout)}.",
            mend="Choose one above 0, and of a day at most; the default is 60.",
        )
    return Request(
        kind=kind,
        tpu=target,
        computation_shape=_shape_as_given(computation_shape),
        replicas=replicas,
        spmd=spmd,
        strictness=Strictness.of(strict),
        patch=patch,
        zone=zone,
        project=project,
        timeout=timeout,
        fallback=fallback,
        notes=notes,
    )


def _shape_as_given(shape: Sequence[int] | None) -> tuple[int, ...] | None:
    """A computation shape whose size and values are checked when the mesh is known."""
    if shape is None:
        return None
    if isinstance(shape, str) or not isinstance(shape, Iterable):
        raise ComputationShapeError(
            f"A computation shape is four positive whole numbers, not {reprlib.repr(shape)}.",
            mend="Write them as a list, such as [1, 1, 1, 2].",
        )
    return tuple(shape)


_Target = tuple[Literal["virtual", "hardware"], str, bool, tuple[str, ...]]


def _target(tpu: str | None, simulate: str | int | bool | None, require_tpu: bool) -> _Target:
    """What to connect to, whether to fall back, and what to say about it."""
    if not isinstance(tpu, str | None):
        raise TypeError(f"tpu is the name or the address of a TPU, not a {type(tpu).__name__}")
    if simulate is not None and simulate is not False:
        _refuse_contradiction(tpu, require_tpu)
        wanted = DEFAULT_TYPE if simulate is True else simulate
        return "virtual", accelerator(wanted).name, False, ()
    if tpu is not None and tpu.strip():
        _refuse_type_as_name(tpu.strip())
        return _installed(require_tpu) or ("hardware", tpu.strip(), False, ())
    default = default_tpu()
    if default is not None:
        return _from_variable(default, require_tpu)
    if (installed := _installed(require_tpu)) is not None:
        return installed
    found = find_tpu()
    if found.tpu is not None:
        return "hardware", found.tpu, not require_tpu, ()
    if require_tpu:
        raise ConnectError(
            f"There is no TPU here ({'; '.join(found.tried)}), and one is required.",
            mend="Choose a machine with a TPU, or leave out --require-tpu and unset "
            "TPUNB_REQUIRE_TPU to simulate one.",
            tried=found.tried,
        )
    note = f"No TPU was found ({'; '.join(found.tried)}): this is a virtual {DEFAULT_TYPE}."
    return "virtual", DEFAULT_TYPE, False, (note,)


def _installed(require_tpu: bool) -> _Target | None:
    """The virtual TPU that TensorFlow's names answer for: what is meant by any name here."""
    found = installation.current()
    if found is None or found.lent:
        return None
    name = found.accelerator.name
    if require_tpu:
        raise ConnectError(
            f"TensorFlow's names answer for a virtual {name} where a real one is required.",
            mend="Choose a kernel without a virtual TPU, or leave out --require-tpu and unset "
            "TPUNB_REQUIRE_TPU.",
        )
    return "virtual", name, False, (f"TensorFlow's names answer for a virtual {name} here.",)


def _refuse_contradiction(tpu: str | None, require_tpu: bool) -> None:
    if tpu is not None and tpu.strip():
        raise ConnectError(
            f"A TPU is either connected to ({tpu}) or simulated, not both.",
            mend="Leave out one of them.",
        )
    if require_tpu:
        raise ConnectError(
            "A virtual TPU was asked for where a real one is required.",
            mend="Leave out --simulate, or leave out --require-tpu and unset TPUNB_REQUIRE_TPU.",
        )


def _refuse_type_as_name(tpu: str) -> None:
    try:
        found = accelerator(tpu)
    except AcceleratorTypeError:
        return
    raise ConnectError(
        f"{tpu!r} is a TPU type, not a TPU.",
        mend=f"To simulate one: %tpu_connect --simulate {found.name}, or "
        f'tpunb.connect(simulate="{found.name}"). For this machine\'s TPU: local.',
    )


def _from_variable(value: str, require_tpu: bool) -> _Target:
    """What `TPUNB_TPU` stands for: a type to simulate, or a TPU."""
    try:
        found = accelerator(value)
    except AcceleratorTypeError:
        return "hardware", value, False, ()
    if require_tpu:
        raise ConnectError(
            f"TPUNB_TPU asks for a virtual TPU ({found.name}) where a real one is required.",
            mend="Unset TPUNB_TPU, or leave out --require-tpu and unset TPUNB_REQUIRE_TPU.",
        )
    return "virtual", found.name, False, ("TPUNB_TPU asks for this virtual TPU.",)


def make_connection(request: Request) -> Connection:
    """Connects as a settled request says; see `connect` for the errors."""
    import_tensorflow()
    if request.kind == "virtual":
        return _virtual(request)
    from tpunb import hardware

    try:
        strategy, resolver, topology, assignment = hardware.connect(request)
    except ConnectError as error:
        if not request.fallback:
            raise
        return _stand_in(request, error)
    return Connection(request, strategy, resolver, topology, assignment)


def _stand_in(request: Request, error: ConnectError) -> Connection:
    """A virtual TPU in place of one that was found and cannot be used."""
    reason = str(error).replace("\n", " ")
    note = f"The TPU found here cannot be used ({reason}): this is a virtual {DEFAULT_TYPE}."
    return _virtual(
        dataclasses.replace(
            request, kind="virtual", tpu=DEFAULT_TYPE, fallback=False, notes=(note,)
        )
    )


def _virtual(request: Request) -> Connection:
    from tpunb.virtual.resolver import VirtualTPUClusterResolver, virtual_topology
    from tpunb.virtual.strategy import VirtualTPUStrategy

    tpu = accelerator(request.tpu)
    topology = virtual_topology(tpu)
    assignment = device_assignment(topology, request.computation_shape, request.replicas, tpu.name)
    resolver = VirtualTPUClusterResolver(tpu)
    strategy = VirtualTPUStrategy(
        resolver,
        device_assignment=assignment,
        spmd=request.spmd,
        strict=request.strictness,
    )
    latest.remember(strategy)
    connection = Connection(request, strategy, resolver, topology, assignment)
    if request.patch:
        connection.lent = installation.lend(tpu, request.strictness)
    return connection


class Connection:
    """A TPU, real or virtual, with the strategy that runs on it.

    Attributes:
        strategy: The `tf.distribute.TPUStrategy`.
        resolver: The cluster resolver.
        topology: The `tf.tpu.experimental.Topology`.
        device_assignment: Which cores form a replica; None if each is one.
        kind: `"virtual"` or `"hardware"`.
        tpu: The TPU type that is simulated, or what was connected to.
        request: What was asked for.
        closed: Whether `close` has been called.
        lent: What makes TensorFlow's names answer for the connection's TPU, if asked for.
    """

    def __init__(
        self, request: Request, strategy: Any, resolver: Any, topology: Any, assignment: Any
    ) -> None:
        self.request = request
        self.kind = request.kind
        self.tpu = request.tpu
        self.strategy = strategy
        self.resolver = resolver
        self.topology = topology
        self.device_assignment = assignment
        self.closed = False
        self.lent: installation.Installation | None = None
        self._cells: CellRunner | None = None

    @property
    def cells(self) -> CellRunner:
        """Runs the bodies of cells on every replica, and remembers their traces.

        Raises:
            NotConnectedError: The connection is closed.
        """
        self._refuse_closed()
        if self._cells is None:
            from tpunb.cells import CellRunner

            self._cells = CellRunner(self.strategy)
        return self._cells

    def run_cell(
        self,
        source: str,
        namespace: dict[str, Any],
        *,
        reduce: Mapping[str, str] | None = None,
        gather: Mapping[str, int] | None = None,
    ) -> CellResult:
        """Runs Python source on every replica, as `%%tpu_run` does.

        Args:
            source: The body of a cell.
            namespace: Where its names come from and where those that it assigns
                go, as `globals()`.
            reduce: Names to combine over the replicas, by `"mean"` or `"sum"`.
            gather: Names to concatenate over the replicas, with the axis.

        Returns:
            The last expression's value and the names assigned.

        Raises:
            CellError: The source cannot run on the replicas.
            NotConnectedError: The connection is closed.
        """
        from tpunb.cells import bind

        result = self.cells.run(source, namespace, reduce=reduce, gather=gather)
        bind(result, namespace)
        return result

    def describe(self) -> ConnectionDescription:
        """What the connection consists of, for displays and for programs."""
        from tpunb.describe import (
            ConnectionDescription,
            describe_device_assignment,
            describe_topology,
        )

        name = self._type_name()
        extended = self.strategy.extended
        topology = (
            describe_topology(self.topology, name)
            if self.device_assignment is None
            else describe_device_assignment(self.device_assignment, name)
        )
        return ConnectionDescription(
            kind=self.kind,
            tpu="" if self.kind == "virtual" else self.tpu,
            accelerator=name,
            replicas=self.strategy.num_replicas_in_sync,
            cores=topology.num_cores,
            hosts=extended.num_hosts,
            logical_devices=max(1, topology.num_logical_devices),
            topology=topology,
            notes=self.request.notes,
        )

    def annotations(self) -> Annotations:
        """Which tensors and variables live on which logical device of a replica.

        Raises:
            ConnectError: A real TPU, whose strategy keeps no annotations.
        """
        kept: Annotations | None = getattr(self.strategy, "annotations", None)
        if kept is None:
            raise ConnectError(
                "A real TPU's strategy keeps no annotations of logical devices.",
                mend="Connect to a virtual TPU with --simulate to see them.",
            )
        return kept

    def close(self, *, shut_down: bool = True) -> None:
        """Ends the connection and forgets what was traced.

        Args:
            shut_down: Whether to shut a real TPU's system down; not if another
                connection uses it already.
        """
        if self.closed:
            return
        self.closed = True
        latest.forget(self.strategy)
        installation.give_back(self.lent)
        if self._cells is not None:
            self._cells.close()
            self._cells = None
        if self.kind == "hardware" and shut_down:
            from tpunb import hardware

            hardware.disconnect(self.resolver)

    def _type_name(self) -> str:
        return self.tpu if self.kind == "virtual" else ""

    def _refuse_closed(self) -> None:
        if self.closed:
            raise NotConnectedError("This connection is closed.", mend="Connect again.")

    def __enter__(self) -> Connection:
        self._refuse_closed()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed connection" if self.closed else "connection"
        what = f"virtual TPU {self.tpu}" if self.kind == "virtual" else f"TPU {self.tpu}"
        count = self.strategy.num_replicas_in_sync
        return f"<{state} to {what}, {count} replica{'' if count == 1 else 's'}>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        del include, exclude
        from tpunb.show import mimebundle

        return {"text/plain": repr(self)} if self.closed else dict(mimebundle(self.describe()))
