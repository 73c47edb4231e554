"""Runs of a lesson's cells with other values for some of the notebook's names.

A check that runs an answer's cell again with other numbers sees whether the cell computes its
result. The notebook's names and the caches of its connection stay as they are.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tpunb.cells.reading.source import parse_cell
from tpunb.cells.settings import RunSettings
from tpunb.notebook.ran_cells import RanCell
from tpunb.teach.course.cells import TpuCell, attribute_of, maker_of
from tpunb.tensorflow.cells.cell_step import CellStep
from tpunb.tensorflow.cells.runner import CellRunner
from tpunb.tensorflow.cells.steps import Steps
from tpunb.tensorflow.virtual.graph.function_def import COLLECTIVES, called_functions
from tpunb.tensorflow.virtual.graph.tensorflow_graphs import body_of

_REPLICA_ID = re.compile(r"(?<![\w.])(?:ctx\.)?replica_id(?:_in_sync_group)?\b")
_OTHER_ID = "other_replica_id"
_MARK, _TF = "answer_", "tensorflow_of_the_check"


@dataclasses.dataclass(frozen=True)
class Trace:
    """A cell's replica function.

    Attributes:
        cell: The cell.
        names: Names that it assigns.
        results: Their tensors.
        owners: By name of a placeholder, the name of the notebook whose value it gets.
        graph: The graph.
    """

    cell: TpuCell
    names: tuple[str, ...]
    results: list[Any]
    owners: dict[str, str]
    graph: Any

    @property
    def operations(self) -> list[Any]:
        """The operations that the results depend on."""
        todo, seen = [tensor.op for tensor in self.results], {}
        while todo:
            operation = todo.pop()
            if operation.name not in seen:
                seen[operation.name] = operation
                todo += [tensor.op for tensor in operation.inputs]
        return list(seen.values())

    @property
    def collectives(self) -> set[str]:
        """The collectives that the results depend on."""
        return {op for each in self.operations for op in _ops(each) if op in COLLECTIVES}

    @property
    def data(self) -> dict[str, Any]:
        """The function as plain data.

        Raises:
            AssertionError: It has a variable, or a name with several tensors.
        """
        places, kept = list(self.owners.values()), self.graph.captures
        assert len({*places}) == len(places) == len(self.graph.inputs) - len(kept), (
            "Read names with one tensor each."
        )
        assert all(tensor.dtype != tf.resource for tensor in self.graph.inputs), (
            "Compute the answer without a variable."
        )
        return {
            "graph": self.graph.as_graph_def().SerializeToString(),
            "arguments": [tensor.name for tensor in self.graph.inputs[: len(places)]],
            "constants": {inner.name: outer.numpy() for outer, inner in kept},
            "results": [tensor.name for tensor in self.results],
            "names": self.names,
            "magic": self.cell.magic,
            "owners": places,
        }


class Again:
    """Runs of cells with other values.

    Args:
        cells: The cells that have run, the latest at the end.
        namespace: The notebook's names.
        strategy: The strategy of the replicas.
        given: By name, the other values; a list has a value for each replica. `replica_id` gives
            the replicas other numbers.
    """

    def __init__(
        self,
        cells: Sequence[RanCell],
        namespace: Mapping[str, Any],
        strategy: Any,
        given: Mapping[str, Any],
    ) -> None:
        self._cells, self._strategy = cells, strategy
        self._initial = {n: v for n, v in given.items() if _is_variable(namespace.get(n))}
        self._given = {
            _OTHER_ID if name == "replica_id" else name: self._on_replicas(value, namespace, name)
            for name, value in given.items()
            if name not in self._initial
        }
        self._names = {**namespace, **self._given}
        self._made: set[str] = set(self._given)

    def run(self, cell: TpuCell) -> dict[str, Any]:
        """Run a cell, and return the names that it assigns."""
        return self.results(cell, lambda value: value)

    def results(self, cell: TpuCell, of: Callable[[Any], Any]) -> dict[str, Any]:
        """Run a cell, and give its variables back their values.

        Args:
            cell: The cell.
            of: Turns a value, or a variable with its new numbers, into a result.

        Returns:
            The results of the names that it assigns, and of its variables.
        """
        with _silent(), self._ready(cell) as steps:
            owners = steps.step.owners()
            variables = [each for owner in owners.values() for each in _variables_of(owner)]
            before = [each.numpy() for each in variables]
            try:
                for name, value in self._initial.items():
                    self._names[name].assign(value)
                steps.complete()
                own = {name: each for name, each in owners.items() if _is_variable(each)}
                return {name: of(each) for name, each in {**own, **steps.assigned}.items()}
            finally:
                for each, value in zip(variables, before, strict=True):
                    each.assign(value)

    def traces(
        self, cell: TpuCell, names: Sequence[str], known: Collection[str] = ()
    ) -> Iterator[Trace]:
        """Yield the trace of a cell, and those of the cells behind it, as replicas run them.

        Args:
            cell: The cell.
            names: The names that it assigns. Only what they depend on counts.
            known: Names whose cells do not count.
        """
        todo, seen = [(cell, tuple(names))], set()
        while todo:
            cell, names = todo.pop()
            if (cell.body, names) in seen:
                continue
            seen.add((cell.body, names))
            trace = self._trace(cell, names)
            yield trace
            read = {operation.name for operation in trace.operations}
            for place, owner in trace.owners.items():
                maker = maker_of(self._cells, owner)
                if maker is not None and owner not in known and place in read:
                    todo.append((maker, (owner,)))

    def _trace(self, cell: TpuCell, names: tuple[str, ...]) -> Trace:
        marks = [f"{_MARK}{name} = {_TF}.identity({name}, '{_MARK}{name}')" for name in names]
        body = "\n".join([cell.body, *marks])
        marked = dataclasses.replace(cell, body=body, source=parse_cell(body))
        self._names[_TF] = tf
        with _silent(), self._ready(marked) as steps:
            steps.bind_first_batch()
            step: CellStep = steps.step
            captured, (traced, *_) = step.functions_to_compile()
        # The number of the replica comes first.
        inputs = [tensor.op.name for tensor in traced.graph.inputs]
        owners = dict(zip(inputs, ["replica_id", *captured.owners], strict=False))
        operations = {op.name.rpartition("/")[2]: op for op in traced.graph.get_operations()}
        results = [operations[f"{_MARK}{name}"].outputs[0] for name in names]
        return Trace(cell, names, results, owners, traced.graph)

    @contextlib.contextmanager
    def _ready(self, cell: TpuCell) -> Iterator[Steps]:
        """Make the values that a cell reads, and return its run."""
        for name in sorted(cell.reads - self._made):
            self._make(name)
        runner = CellRunner(self._strategy)
        try:
            yield runner.steps(self._body(cell), self._names, self._settings(cell))
        finally:
            runner.close()

    def _make(self, name: str) -> None:
        """Compute a name again if it depends on the other values."""
        self._made.add(name)
        maker = maker_of(self._cells, name)
        if maker is None:
            return
        if name not in self._names or self._depends(maker, set()):
            self._names[name] = self.run(maker).get(name, self._names.get(name))

    def _depends(self, cell: TpuCell, seen: set[str]) -> bool:
        """Return whether a cell reads one of the other values, also through other cells."""
        if self._body(cell) != cell.body or not self._given.keys().isdisjoint(cell.reads):
            return True
        new = cell.reads - seen
        seen |= new
        makers = (maker_of(self._cells, name) for name in sorted(new))
        return any(maker is not None and self._depends(maker, seen) for maker in makers)

    def _body(self, cell: TpuCell) -> str:
        has_ids = _OTHER_ID in self._given
        return _REPLICA_ID.sub(_OTHER_ID, cell.body) if has_ids else cell.body

    def _settings(self, cell: TpuCell) -> RunSettings:
        """Return the settings of one step: with the first batch, and without curves."""
        data = [attribute_of(self._names, name) for name in cell.data]
        if not data:
            return RunSettings()
        return RunSettings(
            data=data[0] if len(data) == 1 else tuple(data), names=cell.names, steps=1
        )

    def _on_replicas(self, value: Any, namespace: Mapping[str, Any], name: str) -> Any:
        if not isinstance(value, list):
            return value
        before = self._strategy.experimental_local_results(namespace.get(name))[0]
        kind = getattr(before, "dtype", None) or tf.as_dtype(np.asarray(value).dtype)
        kind = tf.int32 if name == "replica_id" else kind

        def of_replica(context: Any) -> Any:
            return tf.constant(value[context.replica_id_in_sync_group], kind)

        return self._strategy.experimental_distribute_values_from_function(of_replica)


def _is_variable(value: Any) -> bool:
    return isinstance(value, tf.Variable)


def _variables_of(owner: Any) -> list[Any]:
    """Return the variables of an object, such as an optimizer; or the variable itself."""
    if _is_variable(owner):
        return [owner]
    found = getattr(owner, "variables", ())
    return list(found() if callable(found) else found)


def _ops(operation: Any) -> Iterator[str]:
    """Yield the name of an operation, and of those in the functions that it calls."""
    yield operation.type
    for name in called_functions(operation.node_def):
        body = body_of(operation.graph, name)
        for inner in body.get_operations() if body is not None else ():
            yield from _ops(inner)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Hide what a cell prints, and its warnings: the student has seen both."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
