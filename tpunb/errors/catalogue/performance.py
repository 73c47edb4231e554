"""Traps that make programs slow on a TPU. Most of them raise no error."""

from __future__ import annotations

from tpunb.errors.catalogue.entry import Explanation

_GUIDE = "https://cloud.google.com/tpu/docs/performance-guide"

PERFORMANCE = (
    Explanation(
        "P1",
        "The TPU waits for its input",
        (),
        "NumPy arrays or Python generators deliver a step's data more slowly than the TPU "
        "computes the step.",
        "Use tf.data with TensorFlow operations, `num_parallel_calls=tf.data.AUTOTUNE` and "
        "`prefetch(tf.data.AUTOTUNE)`.",
        ("tensorflow/tensorflow#30162",),
    ),
    Explanation(
        "P2",
        "A batch that is too small",
        (),
        "Each core gets the global batch divided by the number of replicas, and a few examples "
        "do not fill its matrix unit.",
        "Make the batch of each core as large as fits: a multiple of 8, or better of 128.",
        (_GUIDE,),
    ),
    Explanation(
        "P3",
        "Padding",
        (),
        "A TPU computes in tiles of 8 by 128. It fills the rest of a tile with zeros, which cost "
        "as much as data.",
        "Choose a multiple of 8 for the batch of a core and a multiple of 128 for features, or the "
        "other way around.",
        (_GUIDE,),
    ),
    Explanation(
        "P4",
        "Every step is started from Python",
        (),
        "Python takes longer to start a short step than the TPU takes to run it.",
        "Run several steps in one tf.function, or compile the Keras model with "
        "`steps_per_execution`.",
        ("https://www.tensorflow.org/guide/tpu",),
    ),
    Explanation(
        "P5",
        "The odd last batch is compiled again",
        (),
        "A last batch of another size needs another program, which the TPU must compile too.",
        "Use `dataset.batch(n, drop_remainder=True)`.",
        ("tensorflow/tensorflow#29825",),
    ),
    Explanation(
        "P6",
        "A function is traced again and again",
        (r"\d+ out of the last \d+ calls to [^\n]{0,500} triggered tf\.function retracing",),
        "A tf.function is made again in a loop, or called with changing shapes or Python numbers. "
        "Each time, it is traced and compiled again.",
        "Make functions outside loops, pass tensors instead of Python numbers, and keep shapes "
        "equal. `%%tpu_run --verbose` shows why a cell is traced.",
        ("tensorflow/tensorflow#34025",),
        rank=2,
    ),
    Explanation(
        "P7",
        "The first step seems to hang",
        (),
        "The first step compiles the program, which can take minutes for a large model.",
        "Wait; later steps are quick. `%%tpu_run --time` shows both times.",
        ("https://cloud.google.com/tpu/docs/troubleshooting/trouble-tf",),
    ),
    Explanation(
        "P8",
        "dataset.cache() on large data",
        (),
        "The cache fills the memory of the TPU's host until its worker dies (error 14).",
        "Remove `cache()`, or give it a file.",
        ("tensorflow/tpu#609",),
    ),
    Explanation(
        "P9",
        "jit_compile=True",
        (),
        "A TPU compiles every function anyway. The flag only adds restrictions and errors.",
        "Remove it for TPUs.",
        ("keras-team/keras-hub#443",),
    ),
    Explanation(
        "P10",
        "float32 everywhere",
        (),
        "A TPU's matrix unit multiplies bfloat16; float32 takes twice the memory and bandwidth.",
        'Call `keras.mixed_precision.set_global_policy("mixed_bfloat16")`.',
        ("https://cloud.google.com/tpu/docs/bfloat16",),
    ),
    Explanation(
        "P11",
        "An array is gathered to change its sharding",
        (r"Involuntary full rematerialization",),
        "Two shardings of one array follow each other, and XLA cannot go from the first to the "
        "second by exchanging parts: every device gets the whole array and cuts it again.",
        "The message names the operation and both shardings (in `devices=[2,1,4]`, the array's "
        "axes are cut in 2, 1 and 4 parts). Give both places the same sharding with "
        "`jax.lax.with_sharding_constraint`, or go over one that changes a single axis at a time. "
        "`tpunb.compile` lists the collectives with their lines and bytes.",
        ("openxla/xla#15207", "jax-ml/jax#18591"),
        rank=2,
    ),
)
