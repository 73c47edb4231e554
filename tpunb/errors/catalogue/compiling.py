"""Functions that XLA cannot compile for a TPU."""

from __future__ import annotations

from tpunb.errors.catalogue.entry import Explanation

_OF_DATA_SIZE = r"No registered '(?:Unique\w{0,12}|ListDiff|DynamicPartition|NonMaxSuppressionV\d)'"
_KNOWN_ISSUES = "https://www.tensorflow.org/xla/known_issues"

COMPILING = (
    Explanation(
        "22",
        "An operation that a TPU cannot run",
        (
            r"Detected unsupported operations when trying to compile graph",
            r"No registered '\w+' OpKernel for (?:XLA_\w+_JIT|'?TPU'?) devices",
        ),
        "XLA has no kernel for an operation in the function. The message names it. Calls of "
        "Python, strings, lookup tables and some ragged operations are such operations.",
        "Move it into the input pipeline (`dataset.map`), which runs on the host, or out of the "
        "function. `tf.config.set_soft_device_placement(True)` lets the host run some of them.",
        ("tensorflow/tpu#176",),
        rank=1,
        rule="unsupported-op",
    ),
    Explanation(
        "23",
        "Printing or a summary on the TPU",
        (r"No registered '(?:StringFormat|PrintV2|Write\w{0,20}Summary)' OpKernel",),
        "tf.print, tf.strings.format and summaries run on the host only.",
        "Return the value and print it outside the function, or call "
        "`tf.config.set_soft_device_placement(True)` first.",
        ("tensorflow/tensorflow#43705", "tensorflow/tensorflow#37568"),
        rule="unsupported-op",
    ),
    Explanation(
        "24",
        "A string tensor on the TPU",
        (
            r"Unsupported data type for TPU: string",
            r"'string'> is not a supported TPU infeed type",
            r"No registered '_Arg' OpKernel for [^\n]{0,300}\n[^\n]{0,200}butes: T=DT_STRING",
        ),
        "A TPU has no string type, and a string tensor is among the function's inputs or results.",
        "Turn strings into numbers in the input pipeline, and remove them from the elements of "
        "the dataset.",
        ("tensorflow/tensorflow#60092",),
        rule="unsupported-type",
    ),
    Explanation(
        "25",
        "A type that a TPU does not have",
        (
            r"No registered 'Identity' OpKernel for '?TPU",
            r"Unsupported data type for TPU: (?!string)\w",
            r"rewriting computation to not contain X64 element types",
        ),
        "The TPU does not accept or compute with tensors of this type. Most often the input has "
        "uint8 images; complex128, and float64 in matrix products, are refused too.",
        "Cast in the input pipeline: `dataset.map(lambda x: tf.cast(x, tf.float32))`.",
        ("tensorflow/tensorflow#37426",),
    ),
    Explanation(
        "26",
        "tf.where with one argument",
        (r"No registered 'Where' OpKernel",),
        "tf.where(condition) and tf.boolean_mask return as many rows as there are true elements, "
        "but a TPU's program must know the size in advance.",
        "Keep the shape: `tf.where(condition, x, tf.zeros_like(x))`, or multiply by a mask.",
        ("tensorflow/tpu#236", "tensorflow/tensorflow#47211"),
    ),
    Explanation(
        "27",
        "A size that depends on data",
        (
            r"Input \d+ to node [^\n]{0,300} with op (?!\w{0,9}TensorList)\w+ must be a compile",
            _OF_DATA_SIZE + r" OpKernel for '?(?:XLA|TPU)",
        ),
        "A TPU's program is compiled for fixed shapes. Here a size, an axis or a range is computed "
        "from data, or the number of rows of a result depends on data (tf.unique, for example).",
        "Use static sizes: a Python number, `x.shape[0]`, `tf.sequence_mask(lengths, maxlen=64)`.",
        ("tensorflow/tensorflow#51693",),
        rule="constant-size",
    ),
    Explanation(
        "28",
        "A dimension of unknown size",
        (
            r"Dynamic (?:Spatial Convolution|concatenation) is not supported",
            r"Dynamic input dimension to reshape",
            r"Reshape's input dynamic dimension is decomposed",
            r"TPU has inputs with dynamic shapes",
            r"XLA has not implemented dynamic sized slice",
            r"CustomCall (?:\"\S{1,100}\" )?is not supported to have a dynamic dimension",
            r"Asked to propagate a dynamic dimension from hlo ",
            r"Squeeze op does not support bounded dynamic",
            r"AllToAll(?:Tuple)? does not support (?:un)?bounded dynamic shapes",
            r"Dynamic shape is not supported for non[ -]trivial window",
            r"Detects a (?:non-batch )?dynamic dimension (?:of|on the data input of) ",
            r"Cross-tile reduction along dynamic dimension",
            r"to TPUStrategy\.run\(\) has unknown rank, which is not allowed",
        ),
        "A size is not fixed when the program is compiled. Most often it is the batch's, because a "
        "dataset's last batch may be smaller. The TPU then compiles every batch with a bound "
        "instead of a size, which some operations do not support.",
        "Use `dataset.batch(n, drop_remainder=True)`. For `predict`, pad the last batch and cut "
        "the result. Pad sequences or images of different sizes to one size: `padded_batch(n, "
        "padded_shapes=..., drop_remainder=True)`. If TensorFlow lost a shape that you know, as "
        "after `tf.py_function` in `dataset.map`, set it with `tf.ensure_shape`.",
        (
            "tensorflow/tensorflow#45175",
            "tensorflow/tensorflow#41899",
            "tensorflow/tensorflow#42401",
            "tensorflow/tensorflow#33890",
        ),
    ),
    Explanation(
        "29",
        "A loop or a TensorArray without a bound",
        (
            r"requires a fixed tensor list size",
            r"with op \w{0,9}TensorList\w{0,9} must be a compile",
            r"TensorList crossing the XLA/TF boundary",
        ),
        "XLA reserves memory in advance for a TensorArray, and for the values that a loop keeps "
        "for its gradient. Here their size is unknown.",
        "Make `maximum_iterations` or the TensorArray's `size` a constant, and compile the "
        "outermost function, gradient included.",
        (_KNOWN_ISSUES, "tensorflow/tensorflow#39162"),
        rule="list-size",
    ),
    Explanation(
        "50",
        "A persistent tape's gradient of a branch, where a size is unknown",
        (r"/AddN\S{0,99} of type AddN must have the same size and shape\. {1,2}Input 0: \[0\b",),
        "For XLA, a `tf.cond` also returns the intermediate values of its branches, and TensorFlow "
        "replaces an unknown size in their shapes by 0. A dataset whose last batch is smaller "
        "makes the batch's size unknown. `tf.GradientTape(persistent=True)` adds these values.",
        "Use a tape that is not persistent, or fix the batch's size: "
        "`dataset.batch(n, drop_remainder=True)`.",
        ("`_convert_dynamic_dimension_to_zero` in TensorFlow's tensorflow/python/ops/cond_v2.py",),
    ),
    Explanation(
        "142",
        "A check inside the compiler or libtpu failed",
        (
            r"\bCheck failed: [^\n]{1,300} \([\w./-]{1,160}\.(?:cc|h):\d+\)",
            # As libtpu writes it, and as TensorFlow and XLA write it. Others name their own folder.
            r"(?m)^(?:.{0,40} )?F\d{4} [\d:.]{8,24} +\d+ \w{1,80}\.(?:cc|h):\d+\] ",
            r": F (?:external/(?:local_)?xla|tensorflow/core/tpu)/[\w./-]{1,160}\.(?:cc|h):\d+\] ",
            r"RET_CHECK failure \([\w./-]{1,160}\.(?:cc|h):\d+\)",
            r"\*\*\* (?:SIGABRT|SIGSEGV|SIGFPE|SIGILL) received by PID \d",
            r"Conflicting required assignment for ?: ",
            r"Cannot lower jaxpr with verifier errors",
        ),
        "The compiler contradicts itself at the place that the message names (`file.cc:123`), "
        "which is a file of XLA or libtpu, and may end the process. No line of yours is forbidden "
        "there: it is a fault of this release, or of a pair of releases that do not fit.",
        "If an error stands in the lines before, it is the cause. Otherwise try another release: "
        '`%pip install -U "jax[tpu]"`, or the last that worked, then restart the kernel. '
        '`tpunb.compile(step, *args, tpu="v5e-8")` asks the compiler without ending the notebook: '
        "leave out parts of the step until it answers, and write that part differently. Report it "
        "with the message to https://github.com/jax-ml/jax.",
        ("pytorch/xla#8591", "jax-ml/jax#23825", "TensorSpeech/TensorFlowASR#214"),
        rank=1,
    ),
)
