"""Every public way to write one copy of a variable leaves the other copies unchanged."""

from __future__ import annotations

import functools
import gc
import itertools
import re
import threading
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import psutil
import pytest
import tensorflow as tf
from support.divergence import function, rank, running
from support.strategies import SUMMED_ON_READ, copies, each, local, make, run, strategy_of
from support.tiers import thorough

from tpunb.tensorflow.virtual.copies.variable_copies import copies_of
from tpunb.tensorflow.virtual.private_names import ResourceVariable

pytestmark = pytest.mark.usefixtures("circumstances")

CORES = 3
V1 = tf.compat.v1
FIVES = [5.0, 5.0, 5.0]
WRITES = re.compile("_restore_from|_strided_slice|assign|scatter|batch_scatter|load|count_up")


def number(how: str) -> float:
    """An operand with which the method changes a 1."""
    return -5.0 if how == "min" else 5.0


def row(value: float = 5.0) -> Any:
    return tf.IndexedSlices(tf.constant([value]), tf.constant([0]))


# Calls, by TensorFlow's names.

METHODS: dict[str, Callable[[Any], Any]] = {
    "_restore_from_tensors": lambda c: c._restore_from_tensors(
        {"VARIABLE_VALUE": tf.constant(FIVES)}
    ),
    "_strided_slice_assign": lambda c: c[0:2].assign([5.0, 5.0]),
    "assign": lambda c: c.assign(FIVES),
    "assign_add": lambda c: c.assign_add(FIVES),
    "assign_sub": lambda c: c.assign_sub(FIVES),
    "batch_scatter_update": lambda c: c.batch_scatter_update(row()),
    "count_up_to": lambda c: c.assign_add([1.0, 1.0, 1.0]),  # integers have their own test
    "load": lambda c: c.load(FIVES) if hasattr(c, "load") else c.assign(FIVES),
    **{
        f"scatter_{how}": lambda c, how=how: getattr(c, f"scatter_{how}")(row(number(how)))
        for how in ("add", "div", "max", "min", "mul", "sub", "update")
    },
    **{
        f"scatter_nd_{how}": lambda c, how=how: getattr(c, f"scatter_nd_{how}")(
            [[0]], [number(how)]
        )
        for how in ("add", "max", "min", "sub", "update")
    },
}
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "assign": lambda c: V1.assign(c, FIVES),
    "assign_add": lambda c: V1.assign_add(c, FIVES),
    "assign_sub": lambda c: V1.assign_sub(c, FIVES),
    "batch_scatter_update": lambda c: V1.batch_scatter_update(c, [0], [5.0]),
    **{
        f"scatter_{how}": lambda c, how=how: getattr(V1, f"scatter_{how}")(c, [0], [number(how)])
        for how in ("add", "div", "max", "min", "mul", "sub", "update")
    },
    **{
        f"scatter_nd_{how}": lambda c, how=how: getattr(V1, f"scatter_nd_{how}")(c, [[0]], [5.0])
        for how in ("add", "sub", "update")
    },
}
OPTIMIZERS = (
    *("GradientDescent", "ProximalGradientDescent"),
    *("Adagrad", "Adam", "Ftrl", "Momentum", "ProximalAdagrad", "RMSProp"),  # they have slots
)
NO_OPTIMIZER_OF_ONE = {
    "Optimizer",
    "SyncReplicasOptimizer",
    "AdadeltaOptimizer",
    "AdagradDAOptimizer",
}


def of_square(c: Any) -> Any:
    return tf.reduce_sum(c * c)


def minimized(name: str, c: Any) -> None:
    optimizer = getattr(V1.train, f"{name}Optimizer")
    rates = (0.5, 0.9) if name == "Momentum" else (0.5,)
    optimizer(*rates).minimize(functools.partial(of_square, c), var_list=[c])


def restored(c: Any, tmp_path: Any) -> None:
    path = tf.train.Checkpoint(a=tf.Variable(FIVES)).write(str(tmp_path / "fives"))
    tf.train.Checkpoint(a=c).read(path)


def traced_for_another(c: Any) -> None:
    write = function(lambda a: a.assign(FIVES))
    write(tf.Variable([1.0, 1.0, 1.0]))
    write(c)


OTHERS: dict[str, Callable[[Any], Any]] = {
    "an operation": lambda c: tf.raw_ops.AssignVariableOp(resource=c.handle, value=FIVES),
    "its private handle": lambda c: tf.raw_ops.AssignVariableOp(resource=c._handle, value=FIVES),
    "the class's method": lambda c: ResourceVariable.assign(c, FIVES),
    "a nest": lambda c: tf.nest.map_structure(c.assign, tf.constant(FIVES)),
    "a map": lambda c: tf.map_fn(lambda _: c.assign(FIVES), tf.constant([1.0])),
    "a branch": lambda c: tf.cond(
        tf.constant(True), functools.partial(c.assign, FIVES), c.read_value
    ),
    "a function": lambda c: function(lambda: c.assign(FIVES))(),
    "a function's argument": lambda c: function(lambda a: a.assign(FIVES))(c),
    "a function traced for another": lambda c: traced_for_another(c),
    "Keras": lambda c: tf.keras.optimizers.SGD(0.5).apply_gradients([(tf.ones([3]), c)]),
    **{name: functools.partial(minimized, name) for name in OPTIMIZERS},
}
WAYS = {
    **{f"v.{name}": way for name, way in METHODS.items()},
    **{f"v1.{name}": way for name, way in FUNCTIONS.items()},
    **OTHERS,
}


def test_every_public_name_of_tensorflow_is_tried() -> None:
    methods = {name for name in dir(ResourceVariable) if WRITES.match(name)}
    assert methods <= METHODS.keys()
    named = {name for name in dir(V1) if re.match("assign|scatter|batch_scatter", name)}
    assert named - {"scatter_nd"} <= FUNCTIONS.keys()
    optimizers = {name for name in dir(V1.train) if name.endswith("Optimizer")}
    ours = {f"{name}Optimizer" for name in OPTIMIZERS}
    assert optimizers - NO_OPTIMIZER_OF_ONE == ours


@pytest.fixture(scope="module")
def reads(three: Any) -> Any:
    """Read a variable's value on each replica in a step that was traced when copies were equal."""

    def of(v: Any) -> Callable[[], Any]:
        x = each(three, [[float(k + 1)] * 3 for k in range(CORES)])
        step = function(lambda x: three.run(lambda x: x * v, args=(x,)))
        return lambda: [part / (k + 1) for k, part in enumerate(local(three, step(x)))]

    return of


@pytest.mark.filterwarnings("ignore")  # deprecated methods warn
@pytest.mark.parametrize("kept", [{}, *thorough([SUMMED_ON_READ])], ids=["mirrored", "own values"])
@pytest.mark.parametrize(("way", "replica"), list(zip(WAYS, itertools.cycle([0, CORES - 1]))))
def test_one_copy_is_written(
    three: Any, reads: Any, way: str, replica: int, kept: dict[str, Any]
) -> None:
    v, alone = make(three, [1.0, 1.0, 1.0], **kept), tf.Variable([1.0, 1.0, 1.0])
    read = reads(v)
    read()
    WAYS[way](v.values[replica])
    WAYS[way](alone)
    expected = [[1.0, 1.0, 1.0]] * CORES
    expected[replica] = alone.numpy().tolist()
    assert alone.numpy().tolist() != [1.0, 1.0, 1.0]
    np.testing.assert_allclose(copies(v), expected, rtol=1e-6)
    np.testing.assert_allclose(read(), expected, rtol=1e-6)


def test_count_up_to_on_integers(three: Any) -> None:
    v = make(three, 1)
    V1.count_up_to(v.values[1], 5)
    assert copies(v) == [1, 2, 1]


def test_a_checkpoint_of_one_copy(three: Any, tmp_path: Any) -> None:
    v = make(three, [1.0, 1.0, 1.0])
    restored(v.values[1], tmp_path)
    assert [copy.tolist() for copy in copies(v)] == [[1.0] * 3, FIVES, [1.0] * 3]


# Reads.


def test_reading_copies_keeps_them_together(three: Any, tmp_path: Any) -> None:
    v = make(three, [1.0, 2.0, 3.0])
    for copy in (*v.values, v):
        for look in (str, repr, np.asarray, tf.shape, tf.identity, tf.convert_to_tensor):
            look(copy)
        copy.numpy(), copy.read_value(), copy.value(), copy[0], tf.gather(copy, [0])
        tf.raw_ops.AddV2(x=copy, y=copy), copy.name, copy.shape, copy.dtype, copy.device
        tf.linalg.matvec([[1.0, 2.0, 3.0]], copy), copy.is_initialized(), copy.ref()
    module = tf.Module()
    module.v = v
    tf.train.Checkpoint(module=module).write(str(tmp_path / "written"))
    tf.train.Checkpoint(module=module).read(str(tmp_path / "written")).assert_consumed()
    tf.saved_model.save(module, str(tmp_path / "saved"))
    state = copies_of(v.values[0])
    assert state is not None
    assert state.are_together
    assert state.are_equal


def test_a_tape_tells_copies_apart(three: Any) -> None:
    v = make(three, 1.0)
    with tf.GradientTape() as tape:
        y = 2.0 * v.values[0] + 3.0 * v.values[1] + 7.0 * v.values[2] * v.values[2]
    assert [float(gradient) for gradient in tape.gradient(y, list(v.values))] == [2.0, 3.0, 14.0]
    with tf.GradientTape() as tape:
        y = v * 2.0 + v.values[2] * 7.0
    assert float(tape.gradient(y, v)) == 2.0
    v = make(three, 3.0)
    with tf.GradientTape() as tape:
        y = tf.raw_ops.Square(x=v) + tf.nn.relu(v.values[0])
    assert float(tape.gradient(y, v)) == 7.0


def test_a_copy_is_written_under_a_tape(three: Any) -> None:
    v = make(three, 1.0)
    with tf.GradientTape() as tape:
        y = v.values[2] * 2.0
        v.values[1].assign(3.0)
        y += v.values[2]
    assert float(tape.gradient(y, v.values[2])) == 3.0


def test_a_creator_may_give_copies_different_values(three: Any) -> None:
    numbers = iter([1.0, 2.0, 3.0])

    def creator(next_creator: Any, **options: Any) -> Any:
        return next_creator(**{**options, "initial_value": next(numbers)})

    with tf.variable_creator_scope(creator):
        v = make(three, 0.0)
    read = function(lambda: three.run(lambda: v * 1.0))
    assert copies(v) == local(three, read()) == [1.0, 2.0, 3.0]


def test_a_handle_taken_before_a_graph(three: Any) -> None:
    v = make(three, 1.0)
    step = function(lambda: three.run(lambda: v * 1.0))
    step()
    handle = v.values[2].handle

    @function
    def read_and_write() -> Any:
        slow = tf.reduce_sum(tf.linalg.matmul(tf.ones([400, 400]), tf.ones([400, 400]))) * 0.0
        tf.raw_ops.AssignVariableOp(resource=handle, value=slow + 5.0)
        return step()

    assert local(three, read_and_write()) == [1.0, 1.0, 5.0]


REFUSED = "cannot get values of their own now"


def test_a_copy_is_written_inside_a_function(three: Any) -> None:
    """The write is refused if copies would become wrong, as the function took them for one."""
    v = make(three, 1.0)
    step = function(lambda: three.run(lambda: v.assign_add(1.0)))
    step()

    def write() -> None:
        v.values[2].assign(100.0)

    @function
    def read_and_write() -> None:
        tf.py_function(write, [], [])
        step()

    with pytest.raises(tf.errors.OpError, match=REFUSED):
        read_and_write()
    assert len(set(copies(v))) == 1
    v.values[0].assign(v.values[0])
    read_and_write()
    assert copies(v)[0] == copies(v)[1] > 1.0


WRITERS: dict[str, Callable[[Any], Any]] = {
    "a method": lambda c: c.assign(5.0),
    "an operation": lambda c: tf.raw_ops.AssignVariableOp(resource=c.handle, value=5.0),
    "a function": lambda c: function(lambda: c.assign(5.0))(),
}


@pytest.mark.parametrize("way", WRITERS)
def test_a_copy_is_written_while_a_function_runs(three: Any, way: str) -> None:
    v = make(three, 0.0)
    with running(three, lambda: v.assign_add(1.0)) as step:
        with pytest.raises(tf.errors.FailedPreconditionError, match=REFUSED):
            WRITERS[way](v.values[2])
        v.assign(-1000.0)
    counted = copies(v)
    assert counted == [counted[0]] * CORES
    state = copies_of(v.values[0])
    assert state is not None
    assert state.are_together
    WRITERS[way](v.values[2])
    step()
    assert copies(v) == [counted[0] + 1.0, counted[0] + 1.0, 6.0]


def test_a_function_that_separates_copies_is_traced_while_another_runs(three: Any) -> None:
    v, alone = make(three, 0.0), make(three, 7.0)
    apart = function(lambda: three.run(lambda: [v.assign(rank()), tf.zeros([])][1]))
    with running(three, lambda: v.assign_add(1.0)):
        with pytest.raises(tf.errors.FailedPreconditionError, match=REFUSED):
            apart()
        alone.values[1].assign(8.0)  # no function uses this copy
    assert copies(v) == [copies(v)[0]] * CORES
    apart()
    assert copies(v) == [1.0, 2.0, 3.0]
    assert copies(alone) == [7.0, 8.0, 7.0]


def test_functions_that_use_other_variables_may_run(three: Any) -> None:
    v, other = make(three, 1.0), make(three, 0.0)
    read = function(lambda: three.run(lambda: v * 1.0))
    read()
    with running(three, lambda: other.assign_add(1.0)):
        v.values[2].assign(5.0)
        assert local(three, read()) == [1.0, 1.0, 5.0]
    assert copies(other) == [copies(other)[0]] * CORES


def test_threads_trace_while_another_writes_a_copy(three: Any) -> None:
    """In any order, either the write is refused or every function sees it."""
    for _ in range(5):
        v, refused = make(three, 1.0), []
        reads = [function(lambda k=k, v=v: three.run(lambda: v * float(k))) for k in range(1, 4)]

        def write(v: Any = v, refused: list[Any] = refused) -> None:
            try:
                v.values[2].assign(5.0)
            except tf.errors.FailedPreconditionError as error:
                refused.append(error)

        threads = [threading.Thread(target=read) for read in (*reads, write)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        third = 1.0 if refused else 5.0
        for k, read in enumerate(reads, 1):
            assert local(three, read()) == [k, k, third * k]


# All copies get a value for each.


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("how", ["assign", "assign_add", "assign_sub"])
@pytest.mark.parametrize("synchronization", ["ON_WRITE", "ON_READ"])
def test_a_variable_with_different_copies_is_assigned(
    three: Any, how: str, traced: bool, synchronization: str
) -> None:
    u = make(three, 10.0)
    v = make(
        three,
        2.0,
        synchronization=tf.VariableSynchronization[synchronization],
        aggregation=tf.VariableAggregation.SUM,
    )
    read = function(lambda: three.run(lambda: u * 1.0))
    read()
    v.values[1].assign(5.0)

    def change() -> None:
        getattr(u, how)(v)

    (function(change) if traced else change)()
    by = np.array([2.0, 5.0, 2.0])
    expected = {"assign": by, "assign_add": 10.0 + by, "assign_sub": 10.0 - by}[how]
    assert copies(u) == expected.tolist()
    assert local(three, read()) == expected.tolist()


def test_a_function_assigns_a_variable_whose_copies_diverge_later(three: Any) -> None:
    u, v = make(three, 1.0), make(three, 2.0)
    change = function(lambda: u.assign(v))
    read = function(lambda: three.run(lambda: u * 1.0))
    change()
    assert local(three, read()) == [2.0] * CORES
    v.values[1].assign(5.0)
    change()
    assert local(three, read()) == [2.0, 5.0, 2.0]


# Variables from elsewhere.


def loaded(strategy: Any, folder: Any) -> Any:
    module = tf.Module()
    module.v = tf.Variable([1.0, 1.0, 1.0])
    tf.saved_model.save(module, str(folder))
    with strategy.scope():
        return tf.saved_model.load(str(folder)).v


def deeply_copied(strategy: Any, _: Any) -> Any:
    v = make(strategy, [1.0, 1.0, 1.0])
    with strategy.scope():
        return v.__deepcopy__({})


def created_in_the_first_run(strategy: Any, _: Any) -> Any:
    made: list[Any] = []

    @tf.function
    def first() -> Any:
        if not made:
            made.append(make(strategy, [1.0, 1.0, 1.0]))
        return made[0].read_value()

    first()
    return made[0]


@pytest.mark.parametrize("made", [loaded, deeply_copied, created_in_the_first_run])
def test_a_variable_from_elsewhere(three: Any, reads: Any, made: Any, tmp_path: Any) -> None:
    v = made(three, tmp_path)
    read = reads(v)
    np.testing.assert_allclose(read(), [[1.0] * 3] * CORES)
    v.values[2].assign(FIVES)
    for after in (read, reads(v)):
        np.testing.assert_allclose(after(), [[1.0] * 3, [1.0] * 3, FIVES])


# A replica function passes a handle on, and writes through it.


HANDED: dict[str, Callable[[Any], Any]] = {
    "loop": lambda v: tf.while_loop(lambda k, _: k < 1, lambda k, h: (k + 1, h), (0, v.handle))[1],
    "identity": lambda v: waiting(rank(), v.handle),
    "function": lambda v: function(tf.identity)(v.handle),
}


def waiting(first: Any, value: Any) -> Any:
    with tf.control_dependencies([first]):
        return tf.identity(value)


@pytest.mark.parametrize("way", HANDED)
def test_a_handle_is_passed_on(three: Any, way: str) -> None:
    v = make(three, 1.0)
    read = function(lambda: three.run(lambda: v * 1.0))
    read()

    def write() -> Any:
        tf.raw_ops.AssignVariableOp(resource=HANDED[way](v), value=rank())
        return tf.constant(0)

    run(three, write)
    assert copies(v) == [1.0, 2.0, 3.0]
    assert local(three, read()) == [1.0, 2.0, 3.0]


# Leftovers.


def test_split_copies_leave_nothing_behind(three: Any) -> None:
    def split() -> None:
        for _ in range(60):
            make(three, [1.0]).values[1].assign([2.0])
        gc.collect()

    split()
    before = psutil.Process().memory_info().rss
    split()
    # Resource factories were kept by name: 30 KiB for each of two copies.
    assert psutil.Process().memory_info().rss - before < 1.6 * 2**20


def test_a_variable_of_a_strategy_of_another_size(three: Any) -> None:
    v = make(three, 1.0)
    with pytest.raises(ValueError, match="has 3 copies, and the strategy that uses it has 2"):
        run(strategy_of(2), lambda: v * 1.0)


@pytest.mark.filterwarnings("ignore")  # deprecated methods warn
@pytest.mark.parametrize("kept", [{}, SUMMED_ON_READ], ids=["mirrored", "own values"])
@pytest.mark.parametrize("replica", [0, 2])
@pytest.mark.parametrize("way", WRITERS)
def test_one_copy_is_not_written_in_a_replica_function_that_uses_the_variable(
    three: Any, way: str, replica: int, kept: dict[str, Any]
) -> None:
    for order in (1, -1):
        v = make(three, 1.0, **kept)
        uses = [lambda v=v: v * 1.0, lambda v=v: WRITERS[way](v.values[replica])][::order]

        def step(uses: Any = uses) -> Any:
            for use in uses:
                use()
            return tf.constant(0.0)

        with pytest.raises(tf.errors.InvalidArgumentError, match="the copy of one replica"):
            run(three, step)
        assert copies(v) == [1.0] * CORES


def test_a_function_of_one_copy_that_a_replica_function_calls(three: Any) -> None:
    v = make(three, 1.0)
    write = function(lambda: v.values[0].assign(5.0)).get_concrete_function()
    with pytest.raises(tf.errors.InvalidArgumentError, match="the copy of one replica"):
        run(three, lambda: [write(), v * 1.0][1])
    assert copies(v) == [1.0] * CORES
    # Reading is allowed, and so is setting the variable itself.
    assert run(three, lambda: [v.assign_add(1.0), v.values[0] + v][1]) == [4.0] * CORES
    write()
    assert copies(v) == [5.0, 2.0, 2.0]


UNCERTAIN = "reads a single copy of Variable"


@pytest.mark.parametrize("replica", [0, 2])
def test_one_copy_is_read_in_a_replica_function_that_uses_the_variable(
    three: Any, replica: int
) -> None:
    v = make(three, 1.0)
    assert run(three, lambda: v.values[replica] + v) == [2.0] * CORES
    for other, value in enumerate([1.0, 2.0, 3.0]):
        v.values[other].assign(value)
    # The first copy has the variable's handle: each replica would read its own copy.
    if replica == 0:
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"{UNCERTAIN}, whose copies"):
            run(three, lambda: v.values[0] + v)
    else:
        assert run(three, lambda: v.values[replica] + v) == [4.0, 5.0, 6.0]
    assert run(three, lambda: v.values[replica] * 1.0) == [float(replica + 1)] * CORES


def test_one_copy_is_read_in_a_replica_function_that_sets_the_variable(three: Any) -> None:
    v = make(three, 1.0)
    assert run(three, lambda: [v.assign_add(1.0), v.values[0] * 1.0][1]) == [2.0] * CORES
    for set_and_read in (
        lambda: [v.assign_add(1.0), v.values[2] * 1.0][1],
        lambda: [v.assign(rank()), v.values[0] * 1.0][1],
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=UNCERTAIN):
            run(three, set_and_read)
    assert copies(v) == [2.0] * CORES


def test_a_function_of_the_variable_that_was_traced_outside(three: Any) -> None:
    v = make(three, 2.0)
    read = function(lambda: v * 1.0).get_concrete_function()
    assert run(three, lambda: [v.assign_add(1.0), read()][1]) == [3.0] * CORES


def test_a_moving_average_of_one_copy(three: Any) -> None:
    v = make(three, 1.0)
    average = V1.train.ExponentialMovingAverage(0.5)
    average.apply([v.values[2]])
    v.values[2].assign(3.0)
    average.apply([v.values[2]])
    assert float(average.average(v.values[2])) == 2.0


@pytest.mark.parametrize("synchronization", ["auto", "on_read"])
@pytest.mark.parametrize("condition", [rank, lambda: tf.constant(1.0)])
def test_a_deep_copy_in_a_branch_beside_its_variable(
    three: Any, synchronization: str, condition: Any
) -> None:
    options = SUMMED_ON_READ if synchronization == "on_read" else {}
    v = make(three, 2.0, **options)
    other = deepcopy(v)
    assert [c.device for c in other.values] == [c.device for c in v.values]

    def replica() -> Any:
        return tf.cond(condition() > 0.0, lambda: other.assign_add(v) * 1.0, lambda: other + v)

    expected = [4.0, 4.0, 4.0]
    assert run(three, replica) == expected
    assert copies(v) == [2.0] * CORES
    assert copies(deepcopy(other)) == copies(other)


def test_a_deep_copy_in_a_loop_beside_its_variable(three: Any) -> None:
    v = make(three, 2.0)
    other = deepcopy(v)

    def replica() -> Any:
        return tf.while_loop(
            lambda i, _: i < 2.0, lambda i, total: (i + 1.0, total + v * other), (0.0, 0.0)
        )[1]

    assert run(three, replica) == [8.0] * CORES


def test_a_variable_made_by_hand_on_the_device_of_a_copy() -> None:
    """It works as under MirroredStrategy, except that no replica function may write to it."""
    strategy = strategy_of("v5e-4")
    with strategy.scope():
        v = tf.Variable(1.0)
    with tf.device(v.values[2].device):
        w = tf.Variable([5.0, 1.0])
    assert w.device == v.values[2].device
    v.values[2].assign(w[0])
    assert (w + v.values[2]).numpy().tolist() == [10.0, 6.0]

    @tf.function
    def outside() -> Any:
        if v.values[2] > 0.0:
            w.assign_add([1.0, 1.0])
        return w.read_value()

    assert outside().numpy().tolist() == [6.0, 2.0]
    read = strategy.run(tf.function(lambda: w[0] + v))
    results = strategy.experimental_local_results(read)
    assert [float(each) for each in results] == [7.0, 7.0, 11.0, 7.0]
    with pytest.raises(tf.errors.InvalidArgumentError, match="outside of the strategy's scope"):
        strategy.run(tf.function(lambda: w.assign_add([1.0, 1.0])))
    assert w.numpy().tolist() == [6.0, 2.0]
