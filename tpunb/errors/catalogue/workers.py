"""Errors of datasets, and of a TPU's workers, which have their own files and memory."""

from __future__ import annotations

from tpunb.errors.catalogue.entry import Clue, Explanation

_REMOTE = r"Additional GRPC error information|root error\(s\) found|\[Op:"
_UNAVAILABLE = r"\b(?:UnavailableError|Unavailable|UNAVAILABLE|INTERNAL): "
_TARGET = r"\nAdditional GRPC error information from remote target /job:worker"
# If the worker's target is named, the worker died: error 14.
_NO_ANSWER = r"failed to connect to all addresses(?![^\n]{0,300}" + _TARGET + ")"

WORKERS = (
    Explanation(
        "12",
        "A dataset made before connecting",
        (
            r"Encode\(\) method is not implemented for DatasetVariantWrapper",
            # A function captured a dataset and is sent to a worker.
            r"in order to run __inference_\w{1,200}\d: Unable to parse tensor proto",
        ),
        "A dataset or a tf.function that was made before connecting cannot be sent to the TPU's "
        "worker.",
        "Connect first, with `%tpu_connect` at the top of the notebook, and make datasets and "
        "functions after it.",
        ("tensorflow/tensorflow#39913", "tensorflow/tensorflow#34932"),
    ),
    Explanation(
        "13",
        "strategy.run in a second thread",
        (
            r"No OpKernel was registered to support Op '?TPUReplicate(?:dInput|dOutput|Metadata)",
            r"No registered 'TPUReplicate(?:dInput|dOutput|Metadata)' OpKernel",
        ),
        "By default, only the first thread places operations on the TPU's worker.",
        'In that thread, call strategy.run within `with tf.device("/job:worker"):`.',
        ("tensorflow/tensorflow#44487",),
    ),
    Explanation(
        "14",
        "The TPU's worker died or was restarted",
        (
            _UNAVAILABLE + r"[^\n]{0,200}Socket closed",
            r"(?:Socket closed|Connection reset by peer)" + _TARGET,
            r"failed to connect to all addresses[^\n]{0,300}" + _TARGET,
            r"Unable to find a context_id matching",
            r"expects a different device incarnation",
            Clue(
                _UNAVAILABLE + r"(?:recvmsg: ?)?Connection reset by peer",
                where=_REMOTE + r"|tensorflow.python.(?:eager|framework|ops)",
            ),
            r"Resource input tensor contains an invalid device",
            r"Unable to find the relevant tensor remote_handle",
            r"Assigned device '/job:worker/[^\n]{1,100}' does not match any device",
            r"/job:worker/\S{1,100}:(?:CPU|TPU):\d+ unknown device",
        ),
        "The connection to the worker broke. Most often the worker's host ran out of memory; "
        "preemption and maintenance have the same effect.",
        "Run `%tpu_connect` again and make the model again. If the error recurs, remove "
        "`dataset.cache()` and use a smaller batch and smaller shuffle buffers.",
        ("tensorflow/tpu#609", "tensorflow/tensorflow#36136", "tensorflow/tensorflow#47460"),
    ),
    Explanation(
        "15",
        "A remote worker cannot call back",
        (
            _UNAVAILABLE + r"(?:\{\{[^}\n]{0,200}\}\} )?" + _NO_ANSWER,
            Clue(_NO_ANSWER, where=_REMOTE),
        ),
        "A generator or a py_function runs in the notebook's process, which a remote TPU worker "
        "cannot reach. Different versions of TensorFlow cause the same message.",
        "Feed the TPU from `tf.data.Dataset.from_tensor_slices` or TFRecord files with TensorFlow "
        "operations only, and use equal versions.",
        ("tensorflow/tensorflow#63832", "tensorflow/tensorflow#39719"),
    ),
    Explanation(
        "16",
        "An incomplete checkpoint",
        (
            Clue(
                r"Read less bytes than requested|Checksum does not match: stored \d+ vs",
                where=r"checkpoint\w*\.py|TensorBundle",
            ),
        ),
        "Saving was interrupted, for example by the preemption of a TPU, so the newest checkpoint "
        "is incomplete.",
        "Restore the checkpoint before it. Keep several: `tf.train.CheckpointManager(..., "
        "max_to_keep=3)`.",
        ("tensorflow/tensorflow#61552",),
    ),
    Explanation(
        "17",
        "A TPU Node cannot see this disk",
        (r"File system scheme '\[local\]' not implemented",),
        "The worker of a TPU Node is another machine. It cannot read or write files on the "
        "notebook's machine.",
        "Keep files in a bucket (`gs://...`), or use a TPU VM with `%tpu_connect local`. Save "
        'with `tf.train.CheckpointOptions(experimental_io_device="/job:localhost")`.',
        ("tensorflow/tensorflow#36447", "tensorflow/tensorflow#49177"),
    ),
    Explanation(
        "18",
        "Python on a TPU's worker",
        (
            r"No registered '(?:Eager)?PyFunc' OpKernel for '?CPU",
            r"Malformed device specification '/device::0' in node: \{name:'EagerPyFunc'",
            r"callback pyfunc_\d+ is not found",
        ),
        "The input pipeline calls Python (py_function, numpy_function, from_generator), and a "
        "remote TPU worker has no Python.",
        "Write the pipeline in TensorFlow operations, or prepare TFRecord files. A remote worker "
        "does not support from_generator.",
        ("tensorflow/tensorflow#24099", "tensorflow/tensorflow#32712"),
    ),
    Explanation(
        "19",
        "A constant too large to send",
        (r"(?<!\d: )Unable to parse tensor proto",),
        "An array of more than 2 GB became a constant of the graph, most often through "
        "from_tensor_slices or fit with NumPy arrays. One message holds at most 2 GB.",
        "Write the data as TFRecord files and read them with `tf.data.TFRecordDataset`.",
        ("tensorflow/tensorflow#33747",),
    ),
    Explanation(
        "20",
        "A dataset sharded by its elements",
        (r"AUTO sharding policy will apply DATA sharding policy",),
        "The dataset is not made from files, so every worker reads all of it and keeps its own "
        "part. This is expected.",
        "Nothing is wrong. To silence the warning: `options = tf.data.Options(); "
        "options.experimental_distribute.auto_shard_policy = tf.data.experimental."
        "AutoShardPolicy.DATA; dataset = dataset.with_options(options)`.",
        ("tensorflow/tensorflow#45157",),
        rank=2,
    ),
    Explanation(
        "21",
        "Sparse or ragged input is prefetched to the TPU",
        (r"does not support distributed datasets with device prefetch when using sparse",),
        "A TPU's memory cannot hold sparse or ragged tensors, but distributed datasets are copied "
        "there by default.",
        "Make the tensors dense in the pipeline: `dataset.map(lambda x: x.to_tensor(shape=[None, "
        "64]))` for ragged batches, `tf.sparse.to_dense(x)` for sparse ones. If only the host "
        "reads them: "
        "`strategy.experimental_distribute_dataset(dataset, tf.distribute.InputOptions("
        "experimental_fetch_to_device=False))`.",
        ("tensorflow: tpu_strategy.py",),
    ),
)
