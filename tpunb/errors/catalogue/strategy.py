"""Errors of writing a program with TPUStrategy, Keras included."""

from __future__ import annotations

from tpunb.errors.catalogue.entry import Clue, Explanation
from tpunb.errors.catalogue.keras_2 import KERAS_2_RUNS_IT

_TPU_STRATEGY = "tensorflow: tpu_strategy.py"
_DISTRIBUTE_LIB = "tensorflow: distribute_lib.py"

_OF_TPU = r"TPUStrategy (?:object|of)"
_NEEDS_SCOPE = rf'Need to be inside "with strategy\.scope\(\)" for <[^\n]{{0,120}}{_OF_TPU}'
_MIXED = r"Mixing different tf\.distribute\.Strategy objects"
# A call of the user's, and not one of Keras's in a step. Source lines may stand between.
_CALLS_BUILD = (
    r'File "(?![^"\n]{0,300}\Woptimizers\W)[^"\n]{1,300}", line \d+, in [^\n]{1,100}\n'
    r'(?: {4,}[^\n]{0,300}\n){0,4} {0,2}File "[^"\n]{1,300}\Woptimizers\W\w{1,40}\.py", '
    r"line \d+, in build\b"
)
# Keras leaves its other files out of tracebacks.
_KERAS_3_FIT = (
    r"(?<!tf_)keras\Wsrc\W"
    r"(?:utils\Wtraceback_utils|backend\Wtensorflow\Wtrainer)\.py"
)

# In Keras's line of a step: no accuracy is NaN, or larger than 1, by itself.
_TOO_MUCH = (
    r"\d[mun]?s/(?:step|epoch) - [^\n]{0,300}\b\w{0,40}accuracy: "
    r"(?:nan\b|(?!\d{1,5}\.\d{1,9}e)(?:1\.(?!0{1,8}\b)|[2-9]\.|[1-9]\d{1,4}\.)\d)"
)

STRATEGY = (
    Explanation(
        "32",
        "strategy.run outside a tf.function",
        (r"TPUStrategy\.run\(fn, \.\.\.\) does not support pure eager execution",),
        "A TPU runs compiled functions only, and here strategy.run was given plain Python.",
        "Decorate the function, or the one that calls strategy.run, with `@tf.function`; or write "
        "the body into a `%%tpu_run` cell.",
        ("tensorflow/tensorflow#41074",),
    ),
    Explanation(
        "33",
        "A per-replica value used as a tensor",
        (
            r"'PerReplica' object has no attribute",
            r"'PerReplica' object is not (?:subscriptable|iterable)",
            r"using a PerReplica object while not inside a replica context",
            r"unsupported operand type\(s\) for [^\n]{1,20}: (?:'\w+' and )?'PerReplica'",
            r"argument must be a string[^\n]{0,60}, not 'PerReplica'",
            r"not supported between instances of (?:'\w+' and )?'PerReplica'",
            r"bad operand type for [^\n]{1,12}: 'PerReplica'",
            r"must be real number, not PerReplica",
            r"unsupported format string passed to PerReplica",
            r"(?:type|object of type) '?PerReplica'? (?:doesn't define|has no) ",
            r"'PerReplica' object (?:does not support|cannot be interpreted)",
            r"indices must be integers or slices, not PerReplica",
        ),
        "strategy.run gives one value for each replica, not one tensor.",
        "Write `value.values[0]` for replica 0's. `strategy.reduce` and `strategy.gather` combine "
        "them all, in a cell `%%tpu_run -r NAME=mean` and `-g NAME`.",
        ("tensorflow/tensorflow#44973",),
    ),
    Explanation(
        "34",
        "Made outside strategy.scope()",
        (
            r"Trying to create optimizer slot variable under the scope",
            r"was not created in the distribution strategy scope",
            r"metric was not created in TPUStrategy scope",
            r"passed to `model\.compile` was created inside a different distribution strategy",
            r"`colocate_vars_with` must only be passed a variable created in this",
            r"'ResourceVariable' object has no attribute '_packed_variable'",
            # A TPU core, or a virtual one: the first CPU is the host.
            r"Trying to access resource [^\n]{0,300} from device [^\n]{0,100}(?:TPU:\d|CPU:[1-9])",
            Clue(r"\bAssertionError\b", where=r"_distributed_tf_update_step"),
            _NEEDS_SCOPE,
            Clue(_MIXED, where=_OF_TPU + r"|tpu_strategy\.py"),
        ),
        "Variables of a model, a metric or an optimizer were made outside the strategy's scope, so "
        "they are not on the TPU. They are made where the object is, where it is built "
        "(`model.build`, `optimizer.build`, a first call), or by `model.compile`.",
        "Do all of this inside `with strategy.scope():`. Variables that exist already stay where "
        "they are: make the model and the optimizer again.",
        ("tensorflow/tensorflow#55713", "tensorflow/tensorflow#37054"),
        rank=1,
    ),
    Explanation(
        "71",
        "An optimizer that is built outside strategy.scope()",
        (Clue(_NEEDS_SCOPE, where=_CALLS_BUILD),),
        "`optimizer.build` makes a variable for each of the model's variables. These are on the "
        "TPU, and the call stands outside the strategy's scope.",
        "Make the optimizer again, as the failed call leaves it half built, and build it inside: "
        "`with strategy.scope(): optimizer.build(model.trainable_variables)`. Or leave the call "
        "out: the first step builds the optimizer.",
        ("tensorflow: distribute_lib.py",),
    ),
    Explanation(
        "72",
        "Keras 3 trains what was compiled outside strategy.scope()",
        (Clue(_MIXED + r": [^\n]{0,200}" + _OF_TPU, where=_KERAS_3_FIT),),
        "`model.compile`, or the optimizer that it was given, stands outside the strategy's scope; "
        "perhaps the model does too. Keras 3 makes the variables of the optimizer and of the "
        "metrics there.",
        "Put the model and `model.compile(...)`, with the optimizer and the metrics, inside `with "
        "strategy.scope():`. Keras 2 lets `compile` alone stand outside, if it is given the "
        f"optimizer by name: {KERAS_2_RUNS_IT}.",
        ("tensorflow: distribute_lib.py",),
    ),
    Explanation(
        "35",
        "Variables made inside a tf.function",
        (
            r"tried to create variables on non-first call",
            r"only supports singleton tf\.Variables",
        ),
        "A tf.function runs as a graph many times, and a variable, a layer or an optimizer would "
        "be made anew each time.",
        "Make variables, layers and optimizers once, outside the function and in "
        "`strategy.scope()`.",
        ("tensorflow/tensorflow#27120",),
    ),
    Explanation(
        "36",
        "A synchronisation inside a nested function",
        (r"`merge_call` called while defining a new graph",),
        "The replicas meet (an optimizer's update, for example) inside a tf.function within the "
        "replica function, or in a branch or a loop.",
        "Put one `@tf.function` around strategy.run and none inside; move the update out of the "
        "condition.",
        ("keras-team/keras-cv#1752",),
    ),
    Explanation(
        "68",
        "An update outside of a replica function",
        (
            r"'NoneType' object has no attribute 'merge_call'",
            r"instead of `apply_gradients\(\)` in a cross-replica context",
            r"apply_gradients\(\) cannot be called in cross-replica context",
            r"Use `(?:_distributed_apply|_distributed_apply_gradients)\(\)` instead of",
        ),
        "An optimizer updates variables in `strategy.scope()` itself. It needs the gradients of "
        "a replica, and this code does not run on one.",
        "Only make things in the scope. Put the step into a function and run it on the replicas, "
        "`strategy.run(step, args=(batch,))` inside of a `@tf.function`, or into a cell of "
        "`%%tpu_run`.",
        ("tensorflow/tensorflow#36955", "tensorflow/tensorflow#43974"),
    ),
    Explanation(
        "69",
        "Per-replica values that a replica function does not get as arguments",
        (r"Flattening a PerReplica to components is not supported in replica context",),
        "A batch or another value that has a part for each replica is passed on within a replica "
        "function, which took it from the notebook. There it is still the value of all replicas.",
        "Pass it to the replica function, which then gets its own part: `strategy.run(step, "
        "args=(batch,))`. A cell of `%%tpu_run` does so with every name that it reads.",
        ("tensorflow/tensorflow#35404",),
    ),
    Explanation(
        "37",
        "A Keras 2 loss with automatic reduction",
        (r"Please use `tf\.keras\.losses\.Reduction\.SUM` or",),
        "In a loop of one's own, Keras 2 cannot know whether to divide by a replica's batch or by "
        "the global one. Keras 3 divides by the replica's and says nothing.",
        "Make the loss with `reduction=tf.keras.losses.Reduction.NONE` and divide its sum by the "
        "global batch size (`tf.nn.compute_average_loss`).",
        ("OpenNMT/OpenNMT-tf#526",),
    ),
    Explanation(
        "38",
        "A global batch that does not divide",
        (r"The `global_batch_size` [^\n]{0,40} is not divisible by",),
        "The global batch is shared out evenly among the replicas, and its size is not a multiple "
        "of their number.",
        "Choose a multiple of `strategy.num_replicas_in_sync`.",
        (_DISTRIBUTE_LIB,),
    ),
    Explanation(
        "39",
        "strategy.reduce over an axis that is not there",
        (
            Clue(
                r"Invalid reduction dimension \(?-?\d+ for input with 0 dimension",
                where=r"distribute_lib\.py[^\n]{0,60}\breduce\b|mean_reduce_helper",
            ),
        ),
        "Each replica's value is a scalar, such as a mean loss, and axis=0 asks for the mean of "
        "its rows. Means of means also give nan when the last batch leaves replicas empty.",
        "`strategy.reduce(op, value, axis=None)`; or return per-example values, with "
        "`drop_remainder=True` on the dataset.",
        ("tensorflow/tensorflow#61231", "tensorflow/tensorflow#41657"),
    ),
    Explanation(
        "40",
        "Replicas with values of unequal shapes",
        (
            r"Shape mismatch in the collective instance",
            Clue(
                r"ConcatOp : Dimension \d+ in both shapes must be equal",
                where=r"_gather_to|distribute_lib\.py[^\n]{0,60}\bgather\b|cross_device_ops\.py",
            ),
            r"From merging shape \d+ with other shapes\. for '\{\{node [^\n]{0,100}CrossReplicaSum",
            r"A collective in a replica function wants values of the same shape on all replicas",
            r"/CrossReplicaSum\S{0,99} of type AddN must have the same size and shape",
        ),
        "Gathering puts the replicas' values together along one axis; along all others they must "
        "be equal. Inside a replica function a TPU wants them equal along every axis.",
        "Pad the values to one shape before they are gathered; use `drop_remainder=True` on the "
        "dataset if a last batch is smaller.",
        (_DISTRIBUTE_LIB,),
    ),
    Explanation(
        "41",
        "A logical device that does not exist",
        (
            r"`logical_core_id` to assign must be lower",
            r"`logical_device_id` not in range",
            r"Cannot assign a tensor to a logical device in SPMD mode",
        ),
        "A replica has as many logical devices as its computation shape has cores, one by "
        "default; in SPMD mode tensors are split, not assigned.",
        "`%tpu_connect --computation-shape 1,1,1,2` gives two of them, numbered from 0; leave out "
        "`--spmd` to assign tensors.",
        (_TPU_STRATEGY,),
    ),
    Explanation(
        "42",
        "A computation shape that does not fit",
        (
            r"computation_shape must have shape \[\d\]",
            r"computation footprint [^\n]{0,80} does not fit in TPU topology",
            r"requested \d+ replicas but only \d+ replicas with shape",
        ),
        "The cores of a replica, or all replicas together, do not fit on the TPU's mesh.",
        "Compare with `%tpu_topology`. A v3-8 has the mesh [2, 2, 1, 2]: [1, 1, 1, 2] with 4 "
        "replicas fits it.",
        ("tensorflow: device_assignment.py",),
    ),
    Explanation(
        "43",
        "Keras compiles for the CPU of a TPU machine",
        (r"could not find registered transfer manager for platform Host",),
        "Keras compiles by XLA where it can, and TensorFlow's TPU build has no XLA for the CPU: "
        "the model was made outside the strategy's scope, or Keras is old.",
        "Make and compile the model in `strategy.scope()`, upgrade Keras, or compile with "
        "`jit_compile=False`.",
        ("keras-team/keras#19448", "tensorflow/tensorflow#61976"),
    ),
    Explanation(
        "44",
        "Augmentation layers in bfloat16",
        (r"Value for attr 'dtype' of bfloat16 is not in the list of allowed values",),
        "Under mixed_bfloat16 some augmentation layers use image operations that do not know "
        "bfloat16.",
        'Make these layers with `dtype="float32"`, or augment in the input pipeline.',
        ("keras-team/keras#17508",),
    ),
    Explanation(
        "45",
        "TPUEmbedding",
        (
            r"TPU is already initialized for embeddings",
            r"Unable to retrieve embedding tables when using a TPU",
        ),
        "A TPU holds the tables of one TPUEmbedding, and they cannot be read from it directly.",
        "Make only one in a scope. To read its tables, save a checkpoint and restore it in one "
        "that is made outside the TPU's scope.",
        ("tensorflow: tpu_embedding_v2.py",),
    ),
    Explanation(
        "48",
        "Embedding tables without a TPU",
        (
            r"Could not find device for node: \{\{node \w{0,40}TPUEmbedding",
            r"No OpKernel was registered to support Op '\w{0,40}TPUEmbedding",
        ),
        "`tf.tpu.experimental.embedding.TPUEmbedding` keeps its tables in a part of a TPU that "
        "nothing else has: TensorFlow has no other kernels for them, and a virtual TPU does not "
        "imitate them.",
        "Use `tf.tpu.experimental.embedding.TPUEmbeddingV0`, which looks its tables up on the "
        "cores and takes the same tables and features, or an Embedding layer; or run this on a "
        "TPU.",
        ("tensorflow: tpu_embedding_v2.py", "tensorflow: tpu_embedding_v1.py"),
    ),
    Explanation(
        "49",
        "A collective outside of a replica function",
        (r"device for node: \{\{node (?:AllToAll|CollectivePermute|CrossReplicaSum)\}\}",),
        "Operations across replicas join the cores of a TPU while all of them run one function; "
        "called by itself, such an operation has nobody to talk to.",
        "Call it in the function that `strategy.run` runs, or in a cell of `%%tpu_run`; outside of "
        "these there is `strategy.reduce`.",
        ("tensorflow: tpu_ops.py",),
    ),
    Explanation(
        "46",
        "TensorFlow started before the virtual TPU",
        (
            r"Virtual devices cannot be modified after being initialized",
            r"needs \d+ logical CPU devices",
        ),
        "The cores of a virtual TPU are made when TensorFlow starts, and a first operation has "
        "started it already.",
        "Restart the kernel and run `%tpu_connect --simulate ...` before any TensorFlow operation.",
        ("tensorflow: context.py",),
    ),
    Explanation(
        "70",
        "Metrics of several replicas that are NaN, or too large by their number",
        (_TOO_MUCH,),
        "Keras 3 before 3.10 adds metrics up over the replicas: the loss and the accuracy that "
        "`fit` prints are NaN, or too large by the number of replicas. The model itself learns.",
        'Run `%pip install "keras>=3.10"`, then restart the kernel. `%tpu_doctor` says which '
        "release is installed. With 3.10 or later NaN comes from the model or the data: "
        "`tf.debugging.enable_check_numerics()` on a CPU finds where.",
        ("tensorflow/tensorflow#86953", "keras-team/keras#19340", "keras-team/keras#21467"),
        rank=2,
    ),
)
