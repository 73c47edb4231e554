"""The puzzles in TensorFlow. `notebooks/puzzles/solutions` has the best known solutions."""

from __future__ import annotations

from tpunb.puzzles import right_results as right
from tpunb.puzzles.figures import MEMORY, PADDING, SENT, TIME, other_than, runs_of
from tpunb.puzzles.forms import OnOneCore
from tpunb.puzzles.pairs import AnySize, Packed
from tpunb.puzzles.puzzle import Array, Limit, Puzzle
from tpunb.puzzles.tensorflow_forms import OnReplicas
from tpunb.puzzles.tensorflow_programs import TensorFlow

TF = TensorFlow()
KIB, MIB = 2**10, 2**20

PUZZLES = (
    Puzzle(
        "mean",
        "Send a thousandth: the mean over a batch of which each replica has a part.",
        right.mean,
        {"x": Array((65536, 256), drifts=True)},
        OnReplicas(),
        "v5e-8",
        SENT,
        best=1792,
        limits=(
            Limit(
                SENT,
                4 * KIB,
                "Each replica can add up its own rows first. How many numbers are left to send?",
            ),
        ),
        hint="Every replica has the same number of rows.",
    ),
    Puzzle(
        "variance",
        "One all-reduce, and no other collective.",
        right.variance,
        {"x": Array((65536, 256), drifts=True)},
        OnReplicas(),
        "v5e-8",
        SENT,
        best=3584,
        limits=(
            Limit(
                runs_of("all-reduce"),
                1,
                "The second all-reduce waits for the mean. Which two sums give the variance "
                "without knowing the mean first?",
            ),
            Limit(other_than("all-reduce"), 0, "Use all_reduce of the replica context."),
            Limit(SENT, 8 * KIB, "Add up the rows on each replica before you send."),
        ),
        hint="The variance of the whole batch is not the mean of the replicas' variances.",
    ),
    Puzzle(
        "gradient",
        "Half the communication: the mean gradient of a large layer.",
        right.mean_gradient,
        {"x": Array((4096, 512)), "errors": Array((4096, 1024), drifts=True)},
        OnReplicas(),
        "v5e-8",
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
    Puzzle(
        "padding",
        "Rotate a million points, and waste less than 5% of the memory on padding.",
        right.rotated,
        {"points": Array((1_000_000, 3)), "rotation": Array((3, 3))},
        Packed(TF),
        "v5e-1",
        MEMORY,
        best=24018432,
        limits=(
            Limit(
                PADDING,
                0.05,
                "A tile has 4 or 8 rows and 128 columns, and an axis of 3 fills up to 4. "
                "An array with one axis has no rows to fill up.",
            ),
        ),
        hint="`rotate` has to return its result packed as `pack` packs it.",
    ),
    Puzzle(
        "layers",
        "The gradient of 16 layers, with less than half of the memory.",
        right.gradient_of_layers,
        {"weights": Array((16, 256, 256), scale=0.05), "x": Array((2048, 256))},
        OnOneCore(TF),
        "v5e-1",
        MEMORY,
        best=38317056,
        limits=(
            Limit(
                MEMORY,
                50 * MIB,
                "The gradient needs the values inside of each layer. tf.recompute_grad computes "
                "them again. In a Python loop, the compiler sees that equal products are computed "
                "twice, and keeps them after all. In tf.foldl, it does not.",
            ),
        ),
        tolerance=2e-2,
    ),
    Puzzle(
        "logits",
        "The loss of 2,048 words, without 64 MiB of logits.",
        right.cross_entropy,
        {
            "x": Array((2048, 64)),
            "w": Array((64, 8192), scale=4.0),
            "words": Array((2048,), "int32", below=8192),
        },
        OnOneCore(TF),
        "v5e-1",
        TIME,
        best=72.51e-6,
        limits=(Limit(MEMORY, 16 * MIB, "Compute the loss of some words at a time: tf.map_fn."),),
    ),
    Puzzle(
        "one_program",
        "Batches of 1 to 64 rows, and one program for all.",
        right.mean_square,
        {"rows": Array((64, 256)), "w": Array((256,))},
        AnySize(TF),
        "v5e-1",
        MEMORY,
        best=69120,
        limits=(),
        hint="Rows that only fill up must not count, and the mean is over the others.",
    ),
)
