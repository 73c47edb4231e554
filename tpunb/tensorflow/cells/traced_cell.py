"""One traced form of a cell: its replica function inside one `tf.function`."""

from __future__ import annotations

import ast
import contextlib
import functools
import itertools
import random
import time
import warnings
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf

from tpunb._util.attributes import attribute
from tpunb._util.code_names import value_of
from tpunb._util.logs import logger
from tpunb._util.units import byte_count
from tpunb.cells.output_record import OutputRecord, Slot
from tpunb.cells.reading.cell_errors import mark, original
from tpunb.cells.reading.dependencies import Dependencies
from tpunb.cells.reading.mistakes import is_traced_in_branch, mistake
from tpunb.cells.reading.names import bound_in
from tpunb.cells.reading.nests import leaves, parts_of, substitute
from tpunb.cells.reading.source import DEFINITIONS, LAST, CellSource, StepSource
from tpunb.cells.reading.source_texts import keep_text, shown_as
from tpunb.cells.reading.stale_names import stale_names
from tpunb.cells.settings import OutputOptions
from tpunb.errors import CellError, TpuWarning
from tpunb.tensorflow.cells.capture import Captured, Shortcut, is_argument
from tpunb.tensorflow.cells.closed_connections import warn_of_closed_connections
from tpunb.tensorflow.cells.jax_calls import refuse_jax_calls
from tpunb.tensorflow.cells.outputs import (
    CellOutputs,
    OutputRecorder,
    refuse_change,
    refuse_symbols,
    without_repeats,
)
from tpunb.tensorflow.cells.printing import Printer
from tpunb.tensorflow.cells.replica_function import (
    FUNCTION,
    NAME,
    RECORDER,
    FunctionSource,
    compile_function,
    function_text,
)
from tpunb.tensorflow.virtual.array_conversion import refusing_jax_arrays

_log = logger("cells")

_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)
_REDUCTIONS = {"mean": tf.distribute.ReduceOp.MEAN, "sum": tf.distribute.ReduceOp.SUM}


def traced_by_itself(function: Callable[..., Any], name: str) -> Any:
    """Return a `tf.function` whose traces TensorFlow does not add to another cell's traces.

    A profile shows its name. TensorFlow warns of the fifth trace of the same code. If an object has
    no code, TensorFlow counts by the object. AutoGraph still converts the code once for all cells,
    and keeps one module for it.
    """
    alone = functools.partial(function)
    alone.__name__ = name  # type: ignore[attr-defined]
    return tf.function(alone)


def called_weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls a method without a reference to its object.

    AutoGraph does not convert this function. A traced cell holds the function that TensorFlow
    traces. If that function held the traced cell, a forgotten cell and its graphs would stay until
    Python's collector looks for cycles.
    """
    weak = weakref.WeakMethod(method)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def call(*arguments: Any) -> Any:
        alive = weak()
        assert alive is not None  # the method's object runs the function
        return alive(*arguments)

    return call  # type: ignore[no-any-return]


class TracedCell:
    """A cell with one set of closed-over values, inside one `tf.function`.

    Args:
        cell: The cell.
        namespace: The notebook's names.
        captured: The values that the cell captures.
        options: How results are combined.
        printer: Collects what the replicas print.

    Attributes:
        names: By captured name, the key for which the cell was traced.
        closed: The closed-over values; lists and dicts as they were.
        dependencies: The objects besides the names on which its traces depend.
        shortcut: A quick check that the last run's trace fits again.
        records: By signature of the arguments, the records of the traces.
        signature: The signature of the last run.
        failure: The error that the cell raised in its last trace.
        in_branch: Whether this error came from a branch or a loop over tensors.
        name: The name of the step: the function's, or the name that all cells have.
        loops: By layout of the arguments, loops of many steps.
        replica: The function that each replica runs, with the captured arguments. It returns a
            tuple of the tensors that `traced_record` describes.
        traced_at: When the last trace was complete.
        stale: The names that the cell changes, and that functions of the notebook use.
    """

    def __init__(
        self,
        cell: StepSource,
        namespace: dict[str, Any],
        captured: Captured,
        options: OutputOptions,
        printer: Printer,
    ) -> None:
        self.cell = cell
        self.options = options
        self.names = captured.key
        self.namespace = namespace
        self.shortcut: Shortcut | None = None
        self.closed = {n: substitute(v, lambda leaf: leaf) for n, v in captured.closed.items()}
        self.records: dict[Hashable, OutputRecord] = {}
        self.signature: tuple[Hashable, ...] = ()
        self._last_signature: list[Hashable] | None = None
        self._last_record = OutputRecord()
        self.failure: BaseException | None = None
        self.in_branch = False
        self._warned: set[int] = set()
        self._printer = printer
        self._text = ""
        self.traced_at = 0.0
        self.strategy = captured.strategy
        self.loops: dict[Hashable, Any] = {}
        self._recorders: list[OutputRecorder] = []
        self._fresh: OutputRecord | None = None
        refuse_jax_calls(cell, namespace)
        read = {**captured.read, **captured.closed}
        self.stale = stale_names(cell, read, captured.local, namespace)
        self.dependencies = Dependencies(captured.roots, cell.code, namespace)
        self._held = [list(leaves(value)) for value in captured.closed.values()]
        warn_of_closed_connections(cell, read, namespace, self.strategy)
        self._containers = {n: v for n, v in read.items() if isinstance(v, (list, dict))}
        self._inputs = _inputs(cell, captured)
        function = captured.values.get(FUNCTION)
        self.name = str(attribute(function, "__name__", "step")) if function is not None else NAME
        self._function = traced_by_itself(self._step(), self.name)

    def run(self, captured: Captured) -> CellOutputs:
        """Run once, and trace if the arguments are of new shapes."""
        self._fresh = self.failure = None
        # Hashing shapes is expensive. The identity of the signature shows that a run is like the
        # last.
        same = captured.signature is self._last_signature
        signature = self.signature if same else tuple(captured.signature)
        known = same or signature in self.records
        before = {} if known else self._contents()
        begin = time.perf_counter()
        try:
            with contextlib.nullcontext() if known else self.dependencies.tracing():
                outputs = self._function(*captured.arguments)
        except BaseException:
            self._restore(before)
            raise
        finally:
            if self._fresh is not None:
                self.records[signature] = self._fresh
                _log.debug("%s: traced in %.3f s", self.cell.filename, self.traced_at - begin)
        if not known:
            self._warn_of_large_arrays()
        if not same or self._fresh is not None:
            self._last_record = self.records[signature]
            self._last_signature = captured.signature
            self.signature = signature
        return CellOutputs(list(outputs), self._last_record)

    def _warn_of_large_arrays(self) -> None:
        """Warn once of arrays that may change in place without the cell's noticing."""
        for guard in self.dependencies.large_arrays:
            if id(guard.owner) not in self._warned:
                self._warned.add(id(guard.owner))
                warnings.warn_explicit(
                    f"`{guard.path}` ({byte_count(guard.owner.nbytes)}) is too large to compare "
                    "before each run. If its numbers change in place, this cell may go on with "
                    "the former ones: assign a new array instead, or give the array a name that "
                    "the cell itself reads.",
                    TpuWarning,
                    self.cell.filename,
                    1,
                    registry={},
                )

    def refuse_stale_names(self, *, is_stepped: bool) -> None:
        """Refuse a cell in which a function of the notebook would read a former value.

        Raises:
            CellError: A function would.
        """
        for each in self.stale:
            if each.is_late or is_stepped:
                each.refuse()

    def has_trace_for(self, captured: Captured) -> bool:
        """Return whether there is a trace for arguments of these shapes."""
        return tuple(captured.signature) in self.records

    def raise_explained(self, error: Exception, captured: Captured | None = None) -> NoReturn:
        """Raise an error of the cell with its lines, or an error that explains it better.

        Args:
            error: The error that running or tracing raised.
            captured: The arguments with which the cell ran; None if it was only traced.
        """
        record = None if captured is None else self.records.get(tuple(captured.signature))
        if record is None and self._recorders:  # the replicas' graph is traced, and not written
            record = self._recorders[0].record
        raised = original(error, self.failure)
        mark(raised, self.cell, record.graph if record else None)
        replicas = self.strategy.num_replicas_in_sync
        explained = mistake(raised, self.cell, in_branch=self.in_branch, replicas=replicas)
        if explained is not None:
            raise explained from raised
        if raised is error:
            raise raised
        raise raised from None

    def trace(self, captured: Captured) -> None:
        """Trace as a run would, but keep no record, and undo changes of lists and dicts."""
        before = self._contents()
        try:
            self._function.get_concrete_function(*captured.arguments)
        finally:
            self._fresh = None
            self._restore(before)

    def _step(self) -> Callable[..., Any]:
        """Return the function that is traced: the code that a user would write by hand."""
        strategy, cell = self.strategy, self._replica_function()
        start, begin = called_weakly(self._forget_recorders), called_weakly(self._begin)
        combine, tracing = called_weakly(self._combine), called_weakly(self._tracing)

        def replica(*arguments: Any) -> Any:
            with tracing(), warnings.catch_warnings():
                # Keras's `fit` in a cell causes these warnings; the error that follows explains the
                # problem.
                warnings.filterwarnings("ignore", "To make it possible to preserve tf.data options")
                warnings.filterwarnings("ignore", "Seed .* from outer graph might be getting used")
                return cell(**begin(arguments))

        self.replica = replica

        def step(*arguments: Any) -> Any:
            start()
            return combine(strategy.run(replica, args=arguments))

        return step

    def _replica_function(self) -> Callable[..., Any]:
        if isinstance(self.cell, FunctionSource):
            return self.cell.replica_function()
        assert isinstance(self.cell, CellSource)
        parameters = [*self._inputs, *self.cell.provided]
        passed = set(parameters)
        names, wanted = self.cell.names, self._wanted()
        # These names can be read at the cell's end.
        sure = names.definite | wanted | {n for n in passed if n not in names.unbound}
        direct = [n for n in names.assigned if n in sure and n not in self.cell.definitions]
        text = function_text(self.cell, parameters, direct)
        self._text = text
        code = compile_function(text, self.cell.filename)
        keep_text(self.cell, code, *self.cell.definitions.values())
        function = FunctionType(code, self.namespace, code.co_name)
        if self.cell.unconvertible is None:
            return function
        # AutoGraph would call it unconverted too, but after a warning.
        unconverted: Callable[..., Any] = tf.autograph.experimental.do_not_convert(function)
        return unconverted

    @contextlib.contextmanager
    def _tracing(self) -> Iterator[None]:
        """Wrap a trace of the replica function, and keep the exception that the cell raises.

        AutoGraph raises another exception instead. Its type differs if AutoGraph does not know how
        to make an exception of the same type.
        """
        self.failure = None
        with contextlib.ExitStack() as around:
            around.enter_context(self._printer.tracing())
            around.enter_context(refusing_jax_arrays())
            if isinstance(self.cell, CellSource):
                around.enter_context(shown_as(self._text, self.cell))
            try:
                yield
            except BaseException as error:
                self.failure = error
                self.in_branch = is_traced_in_branch(error.__traceback__)
                raise

    def _wanted(self) -> set[str]:
        named = {name for name, _ in (*self.options.reduce, *self.options.gather)}
        return {self._slot_name(name) for name in (*named, *self.options.plot)}

    def _slot_name(self, name: str) -> str:
        return LAST if name == "_" and self.cell.has_value else name

    def traced_record(self) -> OutputRecord:
        """Return the record of the latest trace."""
        record = self._recorders[0].record
        self._recorders.clear()
        return record

    def _forget_recorders(self) -> None:
        self._recorders.clear()

    def _begin(self, arguments: tuple[Any, ...]) -> dict[str, Any]:
        """Return the keyword arguments of one replica's call."""

        def fill(leaf: Any) -> Any:
            return arguments[leaf.index] if type(leaf) is Slot else leaf

        values = {name: substitute(nest, fill) for name, nest in self._inputs.items()}
        context = tf.distribute.get_replica_context()
        provided = {
            "ctx": context,
            "num_replicas": self.strategy.num_replicas_in_sync,
            "replica_id": tf.cast(context.replica_id_in_sync_group, tf.int32),
        }
        provided = {name: v for name, v in provided.items() if name in self.cell.provided}
        initial = {name: list(leaves(value)) for name, value in values.items()}

        def check() -> None:
            for name, before in initial.items():
                refuse_change(name, before, list(leaves(values[name])))
            for name, value in self._containers.items():
                refuse_symbols(name, value)

        recorder = OutputRecorder(self.cell, self.namespace, self._wanted(), check)
        self._recorders.append(recorder)
        return {**values, **provided, RECORDER: recorder}

    def _combine(self, outputs: Any) -> list[Any]:
        """Reduce and gather the outputs, which completes the trace."""
        _warn_of_frozen_numbers(self.cell, self.namespace)
        record = self.traced_record()
        _warn_of_lost_names(self.cell, record)
        record.conditional = {}  # it holds tensors of the branches' graphs
        combined = list(outputs or ())
        several = self.strategy.num_replicas_in_sync > 1
        for name, operation in self.options.reduce:
            for index in record.slots(self._slot_name(name)):
                dtype = parts_of(combined[index])[0].dtype
                if several and operation == "mean" and (dtype.is_integer or dtype.is_bool):
                    raise self._failed(
                        f"`{name}` is {dtype.name}, and its mean would not be.",
                        f"Write `{name} = tf.cast({name}, tf.float32)`, or `-r {name}=sum`.",
                    )
                reduction = _REDUCTIONS[operation]
                combined[index] = self.strategy.reduce(reduction, combined[index], axis=None)
        for name, axis in self.options.gather:
            for index in record.slots(self._slot_name(name)):
                try:
                    combined[index] = self.strategy.gather(combined[index], axis=axis)
                except ValueError:
                    shape = parts_of(combined[index])[0].shape
                    raise self._failed(
                        f"`{name}` cannot be gathered along axis {axis}: its shape is {shape}.",
                        "Name an axis that it has (scalars have none), or stack it first.",
                    ) from None
        self._fresh = record
        self.traced_at = time.perf_counter()
        once, record.places = without_repeats(combined)
        return once

    def _failed(self, message: str, fix: str) -> BaseException:
        # Keep the error, because AutoGraph raises another one instead.
        self.failure = CellError(message, fix=fix)
        return self.failure

    def _contents(self) -> dict[str, Any]:
        """Return the contents of the notebook's lists and dicts, as plain lists and dicts.

        Some of the notebook's lists and dicts do not allow a copy.
        """
        return {
            name: dict(value) if isinstance(value, dict) else list(value)
            for name, value in self._containers.items()
        }

    def _restore(self, before: dict[str, Any]) -> None:
        """Undo the changes of a failed trace to the notebook's lists and dicts."""
        for name, contents in before.items():
            container = self._containers[name]
            if list(leaves(container)) != list(leaves(contents)):
                container.clear()
                (container.update if isinstance(container, dict) else container.extend)(contents)


def _inputs(cell: StepSource, captured: Captured) -> dict[str, Any]:
    """Return the function's parameters by name, with slots for the tensors among their values.

    The parameters are the arguments, closed-over names that the cell also assigns, and names that
    the notebook does not have. Closed-over names that the cell assigns are local to the function
    and need an initial value.
    """
    numbers = itertools.count()

    def slot(leaf: Any) -> Any:
        return Slot(next(numbers)) if is_argument(leaf) else leaf

    owners = dict.fromkeys(captured.owners)
    inputs = {name: substitute(captured.values[name], slot) for name in owners}
    own = {*cell.names.assigned, *captured.local}
    local = {n: v for n, v in captured.values.items() if n in own and n not in owners}
    return {**inputs, **local}


def _warn_of_lost_names(cell: StepSource, record: OutputRecord) -> None:
    """Warn if a cell assigns names only in branches and loops over tensors."""
    returned = (record.nests.keys() | record.plain.keys()) - {LAST}
    if not returned:
        _warn_of_lost_definitions(cell, record)
    counters = bound_in([node.target for node in cell.nodes if isinstance(node, ast.For)])
    lost = {name: value for name, value in record.conditional.items() if name not in counters}
    if returned or not lost:
        return
    name, value = next(iter(lost.items()))
    names = ", ".join(f"`{each}`" for each in lost)
    do, them = ("does", "it") if len(lost) == 1 else ("do", "them")
    stores = (
        node.lineno
        for node in cell.nodes
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == name
    )
    warnings.warn_explicit(
        f"{names} {do} not come back: the cell assigns {them} only in a branch or a loop over "
        "tensors, which may not run on every replica. Assign "
        f"{them} above as well, such as `{name} = {_zero_like(value)}`.",
        TpuWarning,
        cell.filename,
        min(stores, default=1),
        registry={},
    )


def _warn_of_lost_definitions(cell: StepSource, record: OutputRecord) -> None:
    """Warn if a cell defines functions and classes only within other statements."""
    lost = [
        node
        for node in cell.nodes
        if isinstance(node, DEFINITIONS)
        and node.name in set(record.withheld) - cell.definitions.keys()
        and not node.name.startswith("_")
    ]
    if not lost:
        return
    names = ", ".join(dict.fromkeys(f"`{node.name}`" for node in lost))
    do, them = ("do", "them") if "," in names else ("does", "it")
    warnings.warn_explicit(
        f"{names} {do} not come back: the cell defines {them} only within a branch, a loop or a "
        f"`try`. Define {them} outside, in the first lines of the cell.",
        TpuWarning,
        cell.filename,
        lost[0].lineno,
        registry={},
    )


def _zero_like(value: Any) -> str:
    """Return code for an initial value of the same type as another value."""
    if isinstance(value, (bool, int, float, complex)):
        return repr(type(value)())
    if not isinstance(value, tf.Tensor) or not value.shape.is_fully_defined():
        return "…"
    dtype = "" if value.dtype == tf.float32 else f", tf.{value.dtype.name}"
    return f"tf.zeros({value.shape.as_list()}{dtype})"


def _warn_of_frozen_numbers(cell: StepSource, namespace: Mapping[str, Any]) -> None:
    """Warn of calls that draw a random number by Python or NumPy, once for each line."""
    registry: dict[Any, Any] = {}  # for this trace only: the next trace draws other numbers
    for node in cell.nodes:
        if not isinstance(node, ast.Call):
            continue
        function = value_of(node.func, namespace, (ModuleType, *_GENERATORS))
        owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
        if isinstance(owner, _GENERATORS) and name != "seed":
            warnings.warn_explicit(
                f"`{ast.unparse(node.func)}` draws while the cell is traced: all replicas and all "
                "runs get the same numbers. Use `tf.random.normal` or `tf.random.uniform`.",
                TpuWarning,
                cell.filename,
                node.lineno,
                registry=registry,
            )
