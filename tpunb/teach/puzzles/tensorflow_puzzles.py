"""The puzzles in TensorFlow. `notebooks/puzzles/solutions` has the best known solutions."""

from __future__ import annotations

from tpunb.teach.puzzles import right_results as right
from tpunb.teach.puzzles import shared_puzzles as shared
from tpunb.teach.puzzles.figures import SENT
from tpunb.teach.puzzles.forms import OneFunction
from tpunb.teach.puzzles.puzzle import Array, Limit, Puzzle
from tpunb.teach.puzzles.shared_puzzles import KIB
from tpunb.teach.puzzles.tensorflow_programs import TensorFlow, TensorFlowOnReplicas

TF, ON_REPLICAS = TensorFlow(), OneFunction(TensorFlowOnReplicas())

PUZZLES = (
    shared.mean(ON_REPLICAS, "replica"),
    shared.variance(ON_REPLICAS, "replica", "all_reduce of the replica context"),
    Puzzle(
        "gradient",
        right.mean_gradient,
        {"x": Array((4096, 512)), "errors": Array((4096, 1024), drifts=True)},
        ON_REPLICAS,
        SENT,
        best=1835008,
        limits=(
            Limit(
                SENT,
                1792 * KIB,
                "A number in bfloat16 takes half of the bytes, and the gradient may be wrong by "
                "1%.",
            ),
        ),
        hint="The mean is over the rows of all replicas.",
        tolerance=1e-2,
    ),
    shared.padding(TF, 24018432, "rotate"),
    shared.layers(
        TF,
        15928832,
        "tf.recompute_grad computes them again. In a Python loop, the compiler sees that equal "
        "products are computed twice, and keeps them after all. In tf.foldl, it does not.",
    ),
    shared.logits(TF, 51.47e-6, "tf.map_fn"),
    shared.one_program(TF, 69120),
)
