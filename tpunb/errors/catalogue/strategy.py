"""Errors in programs that use TPUStrategy, Keras included."""

from __future__ import annotations

from tpunb.errors.catalogue.entry import Clue, Explanation
from tpunb.errors.catalogue.keras_2 import KERAS_2_RUNS_IT

_TPU_STRATEGY = "tensorflow: tpu_strategy.py"
_DISTRIBUTE_LIB = "tensorflow: distribute_lib.py"

_OF_TPU = r"TPUStrategy (?:object|of)"
_NEEDS_SCOPE = rf'Need to be inside "with strategy\.scope\(\)" for <[^\n]{{0,120}}{_OF_TPU}'
_MIXED = r"Mixing different tf\.distribute\.Strategy objects"
# A call in the user's code, not Keras's own call in a step. Source lines may come between.
_CALLS_BUILD = (
    r'File "(?![^"\n]{0,300}\Woptimizers\W)[^"\n]{1,300}", line \d+, in [^\n]{1,100}\n'
    r'(?: {4,}[^\n]{0,300}\n){0,4} {0,2}File "[^"\n]{1,300}\Woptimizers\W\w{1,40}\.py", '
    r"line \d+, in build\b"
)
# Keras removes its other files from tracebacks.
_KERAS_3_FIT = (
    r"(?<!tf_)keras\Wsrc\W"
    r"(?:utils\Wtraceback_utils|backend\Wtensorflow\Wtrainer)\.py"
)

# Keras's line for a step: an accuracy is never NaN or greater than 1 by itself.
_TOO_MUCH = (
    r"\d[mun]?s/(?:step|epoch) - [^\n]{0,300}\b\w{0,40}accuracy: "
    r"(?:nan\b|(?!\d{1,5}\.\d{1,9}e)(?:1\.(?!0{1,8}\b)|[2-9]\.|[1-9]\d{1,4}\.)\d)"
)

STRATEGY = (
    Explanation(
        "32",
        "strategy.run outside a tf.function",
        (r"TPUStrategy\.run\(fn, \.\.\.\) does not support pure eager execution",),
        "A TPU runs only compiled functions, and strategy.run was called from plain Python here.",
        "Decorate the function, or the function that calls strategy.run, with `@tf.function`. Or "
        "write the body into a `%%tpu_run` cell.",
        ("tensorflow/tensorflow#41074",),
        rule="eager-run",
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
        "strategy.run returns one value for each replica, not one tensor.",
        "Write `value.values[0]` for the value of replica 0. `strategy.reduce` and "
        "`strategy.gather` combine the values; for a cell, use `%%tpu_run -r NAME=mean` and "
        "`-g NAME`.",
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
        "they are not on the TPU. They are made together with the object, when it is built "
        "(`model.build`, `optimizer.build`, a first call), or by `model.compile`.",
        "Do all of this inside `with strategy.scope():`. Existing variables do not move: make the "
        "model and the optimizer again.",
        ("tensorflow/tensorflow#55713", "tensorflow/tensorflow#37054"),
        rank=1,
    ),
    Explanation(
        "71",
        "An optimizer built outside strategy.scope()",
        (Clue(_NEEDS_SCOPE, where=_CALLS_BUILD),),
        "`optimizer.build` makes a variable for each of the model's variables. These are on the "
        "TPU, but the call is outside the strategy's scope.",
        "Make the optimizer again, because the failed call left it half built, and build it "
        "inside the scope: `with strategy.scope(): optimizer.build(model.trainable_variables)`. Or "
        "remove the call: the first step builds the optimizer.",
        ("tensorflow: distribute_lib.py",),
    ),
    Explanation(
        "72",
        "Keras 3 trains a model compiled outside strategy.scope()",
        (Clue(_MIXED + r": [^\n]{0,200}" + _OF_TPU, where=_KERAS_3_FIT),),
        "`model.compile`, or the making of its optimizer, is outside the strategy's scope; perhaps "
        "the model is too. Keras 3 makes the variables of the optimizer and of the metrics there.",
        "Put the model and `model.compile(...)`, with the optimizer and the metrics, inside `with "
        "strategy.scope():`. Keras 2 allows `compile` alone outside if the optimizer is given by "
        f"name: {KERAS_2_RUNS_IT}.",
        ("tensorflow: distribute_lib.py",),
    ),
    Explanation(
        "35",
        "Variables made inside a tf.function",
        (
            r"tried to create variables on non-first call",
            r"only supports singleton tf\.Variables",
        ),
        "A tf.function runs as a graph many times, so it would make a new variable, layer or "
        "optimizer each time.",
        "Make variables, layers and optimizers once, outside the function and in "
        "`strategy.scope()`.",
        ("tensorflow/tensorflow#27120",),
    ),
    Explanation(
        "36",
        "A synchronisation inside a nested function",
        (r"`merge_call` called while defining a new graph",),
        "The replicas meet (for an optimizer's update, for example) inside a tf.function within "
        "the replica function, or in a branch or a loop.",
        "Put one `@tf.function` around strategy.run and none inside it. Move the update out of the "
        "condition.",
        ("keras-team/keras-cv#1752",),
    ),
    Explanation(
        "68",
        "An update outside a replica function",
        (
            r"'NoneType' object has no attribute 'merge_call'",
            r"instead of `apply_gradients\(\)` in a cross-replica context",
            r"apply_gradients\(\) cannot be called in cross-replica context",
            r"Use `(?:_distributed_apply|_distributed_apply_gradients)\(\)` instead of",
        ),
        "An optimizer updates variables directly in `strategy.scope()`. It needs the gradients of "
        "a replica, and this code does not run on a replica.",
        "Use the scope only to make things. Put the step into a function and run it on the "
        "replicas, with `strategy.run(step, args=(batch,))` inside a `@tf.function`, or put it "
        "into a cell of `%%tpu_run`.",
        ("tensorflow/tensorflow#36955", "tensorflow/tensorflow#43974"),
    ),
    Explanation(
        "69",
        "Per-replica values that are not arguments of the replica function",
        (r"Flattening a PerReplica to components is not supported in replica context",),
        "A replica function uses a batch, or another value with a part for each replica, that it "
        "took from the notebook. There the value still has the parts of all replicas.",
        "Pass the value to the replica function, which then gets its own part: `strategy.run(step, "
        "args=(batch,))`. A cell of `%%tpu_run` does so with every name that it reads.",
        ("tensorflow/tensorflow#35404",),
    ),
    Explanation(
        "37",
        "A Keras 2 loss with automatic reduction",
        (r"Please use `tf\.keras\.losses\.Reduction\.SUM` or",),
        "In a custom loop, Keras 2 cannot know whether to divide by a replica's batch or by the "
        "global batch. Keras 3 divides by the replica's batch and raises no error.",
        "Make the loss with `reduction=tf.keras.losses.Reduction.NONE` and divide its sum by the "
        "global batch size (`tf.nn.compute_average_loss`).",
        ("OpenNMT/OpenNMT-tf#526",),
    ),
    Explanation(
        "38",
        "A global batch that does not divide",
        (
            r"The `global_batch_size` [^\n]{0,40} is not divisible by",
            r"batch_size must be divisible by the number of TPU cores",
        ),
        "The global batch is divided evenly among the replicas, but its size is not a multiple of "
        "their number.",
        "Choose a multiple of `strategy.num_replicas_in_sync`.",
        (_DISTRIBUTE_LIB,),
    ),
    Explanation(
        "39",
        "strategy.reduce over an axis that does not exist",
        (
            Clue(
                r"Invalid reduction dimension \(?-?\d+ for input with 0 dimension",
                where=r"distribute_lib\.py[^\n]{0,60}\breduce\b|mean_reduce_helper",
            ),
        ),
        "Each replica's value is a scalar, such as a mean loss, and axis=0 asks for the mean over "
        "its rows. A mean of means is also nan if the last batch leaves some replicas empty.",
        "Use `strategy.reduce(op, value, axis=None)`. Or return per-example values, with "
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
        "Gathering joins the replicas' values along one axis; along all others their sizes must be "
        "equal. Inside a replica function, a TPU requires equal sizes along every axis.",
        "Pad the values to one shape before you gather them. If a last batch is smaller, use "
        "`drop_remainder=True` on the dataset.",
        (_DISTRIBUTE_LIB,),
    ),
    Explanation(
        "73",
        "Replicas that disagree about a condition",
        (r"The replicas disagree about a condition around a cross-replica operation",),
        "A collective ends when every replica has called it. Here a condition or the end of a loop "
        "depends on a replica's own values, and on this batch they differ. On a TPU the replicas "
        "wait for each other forever.",
        "Make the condition the same on every replica, such as "
        "`ctx.all_reduce('SUM', tf.cast(condition, tf.int32)) > 0`. Or call the collective on "
        "every replica, and choose between values afterwards with `tf.where`.",
        (_DISTRIBUTE_LIB,),
        rule="collective-branch",
    ),
    Explanation(
        "140",
        "A variable with ON_READ updated outside the replica function",
        (r"SyncOnReadVariable does not support `assign_(?:add|sub)` in cross-replica context",),
        "Each replica has its own value of such a variable, and a read outside of a replica "
        "function gives their sum. It is not clear which replica's value should change.",
        "Update the variable inside the function that `strategy.run` calls. To start over, write "
        "`v.assign(0.0)`. Outside, `v.assign(x)` divides x among the replicas.",
        ("tensorflow/tensorflow#40366",),
    ),
    Explanation(
        "41",
        "A logical device that does not exist",
        (
            r"`logical_core_id` to assign must be lower",
            r"`logical_device_id` not in range",
            r"Cannot assign a tensor to a logical device in SPMD mode",
        ),
        "A replica has as many logical devices as its computation shape has cores: one by default. "
        "In SPMD mode tensors are split, not assigned.",
        "`%tpu_connect --computation-shape 1,1,1,2` makes two logical devices, numbered from 0. "
        "Remove `spmd=True` to assign tensors.",
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
        "Compare the shape with `%tpu_topology`. A v3-8 has the mesh [2, 2, 1, 2]: [1, 1, 1, 2] "
        "with 4 replicas fits it.",
        ("tensorflow: device_assignment.py",),
    ),
    Explanation(
        "43",
        "Keras compiles for the CPU of a TPU machine",
        (r"could not find registered transfer manager for platform Host",),
        "Keras compiles with XLA where it can, but TensorFlow's TPU build has no XLA for the CPU. "
        "The model was made outside the strategy's scope, or Keras is old.",
        "Make and compile the model in `strategy.scope()`, upgrade Keras, or compile with "
        "`jit_compile=False`.",
        ("keras-team/keras#19448", "tensorflow/tensorflow#61976"),
    ),
    Explanation(
        "44",
        "Augmentation layers in bfloat16",
        (r"Value for attr 'dtype' of bfloat16 is not in the list of allowed values",),
        "Under mixed_bfloat16, some augmentation layers use image operations that do not support "
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
        "Make only one TPUEmbedding in a scope. To read its tables, save a checkpoint and restore "
        "it in a TPUEmbedding made outside the TPU's scope.",
        ("tensorflow: tpu_embedding_v2.py",),
    ),
    Explanation(
        "48",
        "Embedding tables without a TPU",
        (
            r"Could not find device for node: \{\{node \w{0,40}TPUEmbedding",
            r"No OpKernel was registered to support Op '\w{0,40}TPUEmbedding",
        ),
        "`tf.tpu.experimental.embedding.TPUEmbedding` keeps its tables in a part of the hardware "
        "that only a TPU has. TensorFlow has no other kernels for them, and a virtual TPU does not "
        "imitate them.",
        "Use `tf.tpu.experimental.embedding.TPUEmbeddingV0`, which looks its tables up on the "
        "cores and takes the same tables and features; or use an Embedding layer; or run this on a "
        "TPU.",
        ("tensorflow: tpu_embedding_v2.py", "tensorflow: tpu_embedding_v1.py"),
    ),
    Explanation(
        "49",
        "A collective outside a replica function",
        (r"device for node: \{\{node (?:AllToAll|CollectivePermute|CrossReplicaSum)\}\}",),
        "Operations across replicas connect the cores of a TPU while all of them run one function. "
        "Called on its own, such an operation has no other core to exchange values with.",
        "Call it in the function that `strategy.run` runs, or in a cell of `%%tpu_run`. Outside "
        "them, use `strategy.reduce`.",
        ("tensorflow: tpu_ops.py",),
    ),
    Explanation(
        "46",
        "TensorFlow started before the virtual TPU",
        (
            r"Virtual devices cannot be modified after being initialized",
            r"needs \d+ logical CPU devices",
        ),
        "The cores of a virtual TPU are made when TensorFlow starts, but an earlier operation has "
        "already started it.",
        "Restart the kernel and run `%tpu_connect --simulate ...` before any TensorFlow operation.",
        ("tensorflow: context.py",),
    ),
    Explanation(
        "70",
        "Metrics of several replicas that are NaN or multiplied by the number of replicas",
        (_TOO_MUCH,),
        "Keras 3 before 3.10 adds up the metrics of the replicas: the loss and the accuracy that "
        "`fit` prints are NaN or multiplied by the number of replicas. The model itself learns.",
        'Run `%pip install "keras>=3.10"`, then restart the kernel. `%tpu_doctor` shows which '
        "release is installed. With 3.10 or later, NaN comes from the model or the data: "
        "`tf.debugging.enable_check_numerics()` on a CPU finds where.",
        ("tensorflow/tensorflow#86953", "keras-team/keras#19340", "keras-team/keras#21467"),
        rank=2,
    ),
)
