"""`tpunb.compare`: a step in two arithmetics, on all replicas and one, or on several meshes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, overload

from tpunb import framework
from tpunb.virtual import current_type

if TYPE_CHECKING:
    from tpunb.jax.compiler.mesh_comparison import MeshComparison
    from tpunb.tensorflow.checks.compare import Comparison
    from tpunb.tensorflow.checks.replica_comparison import ReplicaComparison


@overload
def compare(
    fn: Callable[..., Any],
    *args: Any,
    replicas: None = None,
    meshes: None = None,
    strategy: Any = None,
) -> Comparison: ...


@overload
def compare(
    fn: Callable[..., Any],
    *args: Any,
    replicas: int,
    meshes: None = None,
    strategy: Any = None,
) -> ReplicaComparison: ...


@overload
def compare(
    fn: Callable[..., Any],
    *args: Any,
    replicas: None = None,
    meshes: Sequence[Sequence[int]],
    strategy: Any = None,
) -> MeshComparison: ...


def compare(
    fn: Callable[..., Any],
    *args: Any,
    replicas: int | None = None,
    meshes: Sequence[Sequence[int]] | None = None,
    strategy: Any = None,
) -> Comparison | ReplicaComparison | MeshComparison:
    """Run a step in several ways whose results should be equal, and compare them.

    `compare(step, batch)` measures how far a TPU's arithmetic moves the step's results. Both runs
    start from the same variables and draw the same random numbers.

    `compare(step, batch, replicas=1)` measures whether the gradients have the scale of one device
    with the same global batch. They do not if the loss is not divided by the number of replicas.

    Both are for TensorFlow. The variables have their values afterwards. A step that changes tables
    or files changes them once in each run.

    `compare(step, params, batch, meshes=[(1,), (8,), (4, 2)])` is for JAX. It runs the step on
    meshes of these sizes, with the arguments cut by their own specs, and compares the results. The
    TPU's compiler adds what each mesh costs. The arguments stay as they are.

    Example:
        >>> import tensorflow as tf
        >>> def step(x):
        ...     return tf.matmul(x, x)
        >>> with tpunb.connect(simulate="v5e-8"):
        ...     comparison = tpunb.compare(step, tf.fill([2, 2], 1.001))
        >>> 0 < comparison.relative < 0.01  # a TPU multiplies bfloat16 numbers
        True

    Args:
        fn: In TensorFlow, a replica function, as for `strategy.run`, or a function that calls
            `strategy.run` itself; a `tf.function` or not. With `replicas=1` also a compiled Keras
            model, for its train step. In JAX, a function of global arrays, such as a `jax.jit`. If
            it has a parameter `mesh`, it gets the mesh.
        *args: The function's arguments. In TensorFlow: tensors, arrays, per-replica values, nests
            of these, and Python values; for a dataset, the function receives its first global
            batch. In JAX: trees of arrays, of which some are sharded, and Python values.
        replicas: 1 to compare all replicas with one; None to compare two arithmetics.
        meshes: The sizes of the axes of each mesh. The names are those of the arguments' mesh;
            axes that are left out have size 1.
        strategy: A virtual TPU's strategy. The default is the strategy whose scope is entered, or
            else the open connection's.

    Returns:
        Without `replicas`: for each part of the result and each variable that changes, the largest
            absolute difference over all replicas, and its share of the largest value. With
            `replicas=1`: the gradients that reach the update, as a multiple of one device's. With
            `meshes`: for each mesh, the difference from the first mesh, and the program's memory,
            collectives and time.

    Raises:
        CompareError: The strategy is missing or not a virtual TPU's, it has one replica, or an
            argument is an iterator, from which each run would take another batch.
        MeshError: The meshes do not fit the devices or the arguments.
        Exception: The function raised this error.
    """
    if meshes is not None or (strategy is None and current_type.get() is not None):
        on_meshes: MeshComparison = framework.jax().compare(fn, args, meshes=meshes)
        return on_meshes
    wing = framework.tensorflow("tpunb.compare")
    compared: Comparison | ReplicaComparison = wing.compare(
        fn, args, replicas=replicas, strategy=strategy
    )
    return compared
