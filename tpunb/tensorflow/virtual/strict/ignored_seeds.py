"""Seeds of random operations with a state, which XLA ignores.

XLA's kernels of these operations (TensorFlow's compiler/tf2xla/kernels/random_ops.cc, 2.18 to 2.21)
never read the seeds. Keras 3's layers use stateless operations, whose seeds hold on a TPU.
"""

from __future__ import annotations

from tpunb.errors.code_problems import Problem
from tpunb.tensorflow.virtual.private_names import DEFAULT_GRAPH_SEED, NodeDef

RULE = "seed"

SEED_OF_TRIALS = 1_739_405_821
"""The seed of graphs with which tpunb repeats a run of its own. It is not the user's."""

_STATELESS = {
    "Multinomial": ("tf.random.categorical", "tf.random.stateless_categorical"),
    "ParameterizedTruncatedNormal": (
        "tf.random.truncated_normal",
        "tf.random.stateless_parameterized_truncated_normal",
    ),
    "RandomShuffle": ("tf.random.shuffle", "tf.random.stateless_uniform` and `tf.argsort"),
    "RandomStandardNormal": ("tf.random.normal", "tf.random.stateless_normal"),
    "RandomUniform": ("tf.random.uniform", "tf.random.stateless_uniform"),
    "RandomUniformInt": ("tf.random.uniform", "tf.random.stateless_uniform"),
    "TruncatedNormal": ("tf.random.truncated_normal", "tf.random.stateless_truncated_normal"),
}
"""By operation: the function that makes it, and the function whose seed holds on a TPU."""

_GLOBAL = "`tf.random.set_seed`"
_DROPOUT = "tf.nn.dropout", "tf.nn.experimental.stateless_dropout"


def ignored_seed(node: NodeDef, path: str) -> Problem | None:
    """Return the problem of a random operation whose numbers repeat here, and not on a TPU.

    Args:
        node: A node of the function.
        path: The names of the nodes around the function, as a prefix of its nodes' names.
    """
    names = _STATELESS.get(node.op)
    seeds = [node.attr[name].i for name in ("seed", "seed2") if name in node.attr]
    if names is None or not any(seeds) or seeds[0] == SEED_OF_TRIALS:
        return None
    function, stateless = _DROPOUT if "dropout/" in node.name else names
    own = seeds[0] == DEFAULT_GRAPH_SEED  # without `tf.random.set_seed`
    seed = f"the seed of `{function}`" if own else f"{_GLOBAL} in `{function}`"
    reason = f"A TPU ignores {seed}: each run draws other numbers."
    fix = (
        f"Use `{stateless}` for numbers that repeat, with a seed for each step and replica, such "
        "as `seed=[step, replica_id]`."
    )
    return Problem(RULE, reason, fix, message=reason, node=path + node.name, op=node.op)


def is_of_global_seed(problem: Problem) -> bool:
    """Return whether a problem comes from `tf.random.set_seed`, which has one line for all."""
    return problem.code == RULE and _GLOBAL in problem.reason
