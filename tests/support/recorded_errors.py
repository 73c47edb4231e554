"""Errors as TPU users reported them, and other texts that must not match."""

from __future__ import annotations

from tpunb.errors.explain import explain

NO_TPU_IN_COLAB = """\
---------------------------------------------------------------------------
\x1b[0;31mIndexError\x1b[0m                                Traceback (most recent call last)
\x1b[0;32m<ipython-input-3-7d3>\x1b[0m in <cell line: 0>\x1b[0;34m()\x1b[0m
\x1b[1;32m      1\x1b[0m resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu='local')
\x1b[0;32m----> 2\x1b[0;31m strategy = tf.distribute.TPUStrategy(resolver)

\x1b[0;32m/usr/local/lib/python3.11/dist-packages/tensorflow/python/distribute/tpu_strategy.py\x1b[0m in __init__
\x1b[0;31mIndexError\x1b[0m: index 0 is out of bounds for axis 0 with size 0
"""

INTERRUPTED = """\
Traceback (most recent call last):
  File "connect.py", line 4, in <module>
    tf.config.experimental_connect_to_cluster(resolver)
  File "/usr/lib/python3.11/site-packages/tensorflow/python/eager/remote.py", line 231, in connect_to_cluster
    context.set_server_def(server_def)
  File "/usr/lib/python3.11/site-packages/tensorflow/python/eager/context.py", line 733, in set_server_def
    pywrap_tfe.TFE_ContextSetServerDef(self._context_handle, self._keep_alive_secs, server_def_str)
KeyboardInterrupt
"""

RESTORED = """\
Traceback (most recent call last):
  File "/usr/lib/python3.11/site-packages/tensorflow/python/checkpoint/checkpoint.py", line 2706, in restore
    status = self.read(save_path, options=options)
IndexError: Read less bytes than requested
"""

ASSERTION = """\
Traceback (most recent call last):
  File "/usr/lib/python3.11/site-packages/keras/src/backend/tensorflow/optimizer.py", line 134, in _distributed_tf_update_step
    distribution.extended.update(
AssertionError
"""

REDUCED = """\
Traceback (most recent call last):
  File "train.py", line 60, in <module>
    loss = strategy.reduce("MEAN", per_replica, axis=0)
  File "/usr/lib/python3.11/site-packages/tensorflow/python/distribute/distribute_lib.py", line 1622, in reduce
    return self.run(mean_reduce_fn, args=(value,))
ValueError: Invalid reduction dimension 0 for input with 0 dimensions. for '{{node Sum}} = Sum[T=DT_FLOAT]'
"""

RECORDED = [
    (1, "ValueError: Please provide a TPU Name to connect to."),
    (2, "/usr/lib/python3.10/os.py in __getitem__(self, key)\nKeyError: 'COLAB_TPU_ADDR'"),
    (2, '    raise KeyError(key) from None\nKeyError: "COLAB_TPU_ADDR"'),
    (
        3,
        "NotFoundError: TPUs not found in the cluster. Failed in initialization: No OpKernel was registered to support Op 'ConfigureDistributedTPU' used by {{node ConfigureDistributedTPU}} with these attrs: [compilation_failure_closes_chips=false]\nRegistered devices: [CPU]",
    ),
    (
        3,
        "tensorflow.python.framework.errors_impl.InvalidArgumentError: No OpKernel was registered to support Op 'ConfigureDistributedTPU' used by node ConfigureDistributedTPU (defined at /usr/local/lib/ops.py:1748) with these attrs: [tpu_embedding_config=\"\"]",
    ),
    (4, "ModuleNotFoundError: No module named 'tensorflow'"),
    (
        4,
        "ERROR: Cannot install tensorflow-tpu==2.18.0 because these package versions have conflicting dependencies.",
    ),
    (5, NO_TPU_IN_COLAB),
    (6, INTERRUPTED),
    (
        7,
        "ValueError: Could not lookup TPU metadata from name 'b'my-tpu''. Please doublecheck the tpu argument in the TPUClusterResolver constructor. Exception: Could not automatically determine credentials.",
    ),
    (
        8,
        "WARNING:tensorflow:Failed to connect to the Tensorflow master. The TPU worker may not be ready (still scheduling) or the Tensorflow master address is incorrect: got (grpc://10.0.0.2:8470).\nWARNING:tensorflow:Retrying (1/24).",
    ),
    (
        8,
        "RuntimeError: Failed to connect to master. The TPU might not be ready (e.g. still scheduling) or the master address is incorrect: got (grpc://10.0.0.2:8470)",
    ),
    (
        9,
        "RuntimeError: Unable to initialize backend 'tpu': ABORTED: The TPU is already in use by process with pid 2718466. Not attempting to load libtpu.so in this process. (set JAX_PLATFORMS='' to automatically choose an available backend)",
    ),
    (
        9,
        "libtpu.so already in used by another process. Not attempting to load libtpu.so in this process.",
    ),
    (
        9,
        'ABORTED: Internal error when accessing libtpu multi-process lockfile. Run "$ sudo rm /tmp/libtpu_lockfile".',
    ),
    (
        10,
        "NotFoundError: Op type not registered 'ExperimentalRebatchDataset' in binary running on n-23c14aca-w-0. Make sure the Op and Kernel are registered in the binary running in this process.",
    ),
    (
        10,
        "InvalidArgumentError: '__inference_train_function_12345' is neither a type of a primitive operation nor a name of a function registered in binary running on n-77d3a1ee-w-0. Make sure the operation or function is registered in the binary running in this process.",
    ),
    (
        11,
        "WARNING:tensorflow:TPU system local has already been initialized. Reinitializing the TPU can cause previously created variables on TPU to be lost.",
    ),
    (
        12,
        "2020-05-27 09:12:11.123: E tensorflow/core/framework/dataset.cc:88] The Encode() method is not implemented for DatasetVariantWrapper objects.",
    ),
    (
        13,
        "InvalidArgumentError: No OpKernel was registered to support Op 'TPUReplicatedInput' used by node input0 (defined at <ipython-input-2-d6d8345ba1f0>:195) with these attrs: [N=8, T=DT_INT32]\nRegistered devices: [CPU, XLA_CPU]\nRegistered kernels:\n  <no registered kernels>\n\n\t [[input0]]",
    ),
    (
        14,
        "UnavailableError: 2 root error(s) found.\n  (0) Unavailable: Socket closed\n  (1) Unavailable: Unable to find a context_id matching the specified one (12465293436922014039). Perhaps the worker was restarted, or the context was GC'd?\n0 successful operations.\n0 derived errors ignored.",
    ),
    (
        14,
        "tensorflow.python.framework.errors_impl.UnavailableError: Socket closed\nError in atexit._run_exitfuncs:",
    ),
    (
        15,
        'UnavailableError: {{function_node __inference_train_function_99378}} failed to connect to all addresses\nAdditional GRPC error information from remote target /job:localhost/replica:0/task:0/device:CPU:0:\n:{"created":"@1601903304.230958587","description":"Failed to pick subchannel","grpc_status":14}\n\t [[{{node IteratorGetNext}}]]',
    ),
    (
        15,
        "err: tensorflow.python.framework.errors_impl.InternalError: 8 root error(s) found.\nerr: (0) INTERNAL: {{function_node __inference_train_function_11526}} failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:50188: Failed to connect to remote host: Connection refused",
    ),
    (16, RESTORED),
    (
        17,
        "UnimplementedError: From /job:worker/replica:0/task:0:\nFile system scheme '[local]' not implemented (file: '/content/gdrive/My Drive/data/encodeddata_inGZIP.tfrecord')\n\t [[{{node MultiDeviceIteratorGetNextFromShard}}]]",
    ),
    (
        18,
        "NotFoundError: {{function_node __inference_train_function_128421}} No registered 'PyFunc' OpKernel for 'CPU' devices compatible with node {{node PyFunc}}\n\t.  Registered:  <no registered kernels>\n\n\t [[PyFunc]]",
    ),
    (
        19,
        'InternalError: Failed copying input tensor from /job:localhost/replica:0/task:0/device:CPU:0 to /job:worker/replica:0/task:0/device:CPU:0 in order to run AutoShardDataset: Unable to parse tensor proto\nAdditional GRPC error information:\n{"created":"@1572103296.361904413","description":"Error received from peer","grpc_message":"Unable to parse tensor proto","grpc_status":3} [Op:AutoShardDataset]',
    ),
    (
        20,
        '2021-11-18 20:17:39.591: W tensorflow/core/grappler/optimizers/data/auto_shard.cc:695] AUTO sharding policy will apply DATA sharding policy as it failed to apply FILE sharding policy because of the following reason: Found an unshardable source dataset: name: "TensorSliceDataset/_2"',
    ),
    (
        21,
        "ValueError: Found tensor  with spec <class 'tensorflow.python.ops.ragged.ragged_tensor.RaggedTensorSpec'>. TPUStrategy does not support distributed datasets with device prefetch when using sparse or ragged tensors.",
    ),
    (
        22,
        "InvalidArgumentError: Detected unsupported operations when trying to compile graph cluster_one_17[] on XLA_TPU_JIT: AsString (No registered 'AsString' OpKernel for XLA_TPU_JIT devices compatible with node {{node AsString}}){{node AsString}}\n\tTPU compilation failed\n\t [[tpu_compile_succeeded_assert/_5]]",
    ),
    (
        23,
        "Compilation failure: Detected unsupported operations when trying to compile graph __inference_f_12[] on XLA_TPU_JIT: AsString (No registered 'AsString' OpKernel for XLA_TPU_JIT devices compatible with node {{node AsString}}), StringFormat (No registered 'StringFormat' OpKernel for XLA_TPU_JIT devices compatible with node {{node StringFormat}})",
    ),
    (
        24,
        "InvalidArgumentError: Unsupported data type for TPU: string, caused by output Pad_1:0 [Op:__inference_train_function_67882]",
    ),
    (
        24,
        "TypeError: <dtype: 'string'> is not a supported TPU infeed type. Supported types are: [tf.float32, tf.int32, tf.complex64, tf.int64, tf.bool, tf.bfloat16, tf.uint32]",
    ),
    (
        25,
        "NotFoundError: No registered 'Identity' OpKernel for 'TPU' devices compatible with node {{node Identity}}\n\t (OpKernel was found, but attributes didn't match) Requested Attributes: T=DT_UINT8",
    ),
    (
        26,
        "INFO:tensorflow:Error recorded from training_loop: Compilation failure: Detected unsupported operations when trying to compile graph _functionalize_body_1[] on XLA_TPU_JIT: Where (No registered 'Where' OpKernel for XLA_TPU_JIT devices compatible with node node Where (defined at run_gec.py:336)  = Where[T=DT_INT32, _device=\"/device:TPU_REPLICATED_CORE\"](mul)\n.  Registered:  device='CPU'; T in [DT_BOOL]",
    ),
    (
        27,
        "InvalidArgumentError: Input 0 to node `zeros` with op Fill must be a compile-time constant.\n\nXLA compilation requires that operator arguments that represent shapes or dimensions be evaluated to concrete values at compile time.",
    ),
    (
        28,
        "UnimplementedError: {{function_node __inference_distributed_function_299068}} Compilation failure: Dynamic concatenation is not supported yet: %reshape.3993 = s32[832]{0} reshape(s32[2,416]{1,0} %reshape.621)\n\tTPU compilation failed",
    ),
    (
        28,
        "(0) Invalid argument: {{function_node __inference_train_function_16413}} Compilation failure: Reshape's input dynamic dimension is decomposed into multiple output dynamic dimensions, but the constraint is ambiguous and XLA can't infer the output dimension",
    ),
    (
        28,
        "I1017 19:47:34 deterministic.py:457 TPU has inputs with dynamic shapes: [<tf.Tensor 'while/Const:0' shape=() dtype=int32>]",
    ),
    (
        29,
        "UnimplementedError:  Support for TensorList crossing the XLA/TF boundary is not implemented\n\t [[node dummy_name/StatefulPartitionedCall (defined at <ipython-input-12-b36d3a96b1c7>:30) ]] [Op:__inference_simple_train_5054]",
    ),
    (
        30,
        "Status code: Resource exhausted [9x]\n  Compilation failure: Ran out of memory in memory space hbm. Used 8.38G of 8.00G hbm. Exceeded hbm capacity by 385.25M.",
    ),
    (
        30,
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 63.80G of 30.75G hbm.",
    ),
    (
        31,
        "RuntimeError: Resource exhausted: From /job:tpu_worker/replica:0/task:0:\nAttempting to reserve 3.95G at the bottom of memory. That was not possible. There are 1.92G free, 0B reserved, and 1.92G reservable.; \nHBM capacity 8.00G:",
    ),
    (
        32,
        "NotImplementedError: TPUStrategy.run(fn, ...) does not support pure eager execution. please make sure the function passed into `strategy.run` is a `tf.function` or `strategy.run` is called inside a `tf.function` if eager behavior is enabled.",
    ),
    (33, "AttributeError: 'PerReplica' object has no attribute 'numpy'"),
    (33, "TypeError: 'PerReplica' object is not subscriptable"),
    (
        33,
        "ValueError: It looks like you are using a PerReplica object while not inside a replica context, which is not supported. Try running your op or function inside a replica context by using `strategy.run`",
    ),
    (
        34,
        "ValueError: Trying to create optimizer slot variable under the scope for tf.distribute.Strategy (<tensorflow.python.distribute.tpu_strategy.TPUStrategy object at 0x7f1>), which is different from the scope used for the original variable.",
    ),
    (
        34,
        "ValueError: Variable (<tf.Variable 'dense/kernel:0' shape=(3, 1) dtype=float32, numpy=\narray([[0.376],\n       [-0.5]], dtype=float32)>) was not created in the distribution strategy scope of (<TPUStrategy object at 0x7f4>).",
    ),
    (34, ASSERTION),
    (
        35,
        "ValueError: in user code:\n\n    ValueError: tf.function-decorated function tried to create variables on non-first call.",
    ),
    (
        36,
        "RuntimeError: `merge_call` called while defining a new graph or a tf.function. This can often happen if the function `fn` passed to `strategy.run()` contains a nested `@tf.function`, and the nested `@tf.function` contains a synchronization point",
    ),
    (
        37,
        "ValueError: Please use `tf.keras.losses.Reduction.SUM` or `tf.keras.losses.Reduction.NONE` for loss reduction when losses are used with `tf.distribute.Strategy`, except for specifying losses in `Model.compile()`",
    ),
    (38, "ValueError: The `global_batch_size` 10 is not divisible by `num_replicas_in_sync` 4 "),
    (39, REDUCED),
    (
        40,
        "InvalidArgumentError: {{function_node __wrapped__CollectiveGatherV2}} Shape mismatch in the collective instance 100. Op at device /job:localhost/replica:0/task:0/device:CPU:1 expected shape [2,3] but another member in the group expected shape [2,2].",
    ),
    (
        41,
        "ValueError: `logical_core_id` to assign must be lower then total number of logical devices per replica. Received logical core id 2 but there are only total of 2 logical devices in replica.",
    ),
    (
        41,
        "ValueError: Cannot assign a tensor to a logical device in SPMD mode. To disable SPMD, Please construct the TPUStrategy with `experimental_spmd_xla_partitioning=False`",
    ),
    (
        42,
        "ValueError: requested 8 replicas but only 4 replicas with shape [1 1 1 2] and computation_stride [1 1 1 1] fit in a TPU mesh of shape [2 2 1 2]",
    ),
    (
        43,
        "NotFoundError: Graph execution error:\n\ncould not find registered transfer manager for platform Host -- check target linkage\n\t [[{{node StatefulPartitionedCall}}]] [Op:__inference_multi_step_on_iterator_33145]",
    ),
    (
        44,
        "InvalidArgumentError: Value for attr 'dtype' of bfloat16 is not in the list of allowed values: uint8, int32, int64, half, float, double",
    ),
    (
        45,
        "RuntimeError: TPU is already initialized for embeddings. This may be caused by using multiple TPUEmbedding instances in a TPU scope which is unsupported",
    ),
    (46, "RuntimeError: Virtual devices cannot be modified after being initialized"),
    (
        47,
        "2026-11-22 11:49:29.267680: F external/local_xla/xla/stream_executor/tpu/tpu_library_init_fns.inc:12] ConfigureDistributedTpuOp_DoWork not available in this library.",
    ),
    (
        47,
        "F0000 00:00:1795347870.259790   12189 tpu_executor_init_fns.inc:128] TpuExecutable_FreeMaybeOwningDeviceMemoryArray not available in this library.",
    ),
    (
        47,
        "ConnectError: tensorflow-tpu 2.20.0 cannot use libtpu 0.0.52: it ends the process when TensorFlow loads it.",
    ),
    (
        3,
        "W0000 00:00:1795347870.259790 12189 tpu_api.cc:1] No TPU platform found. Platform manager status: OK",
    ),
    (
        30,
        "RESOURCE_EXHAUSTED: TPU TensorCore Hbm usage: 34.82G, SparseCore Hbm usage 174.10G, exceeding available bytes: 95.74G",
    ),
    (30, "XlaRuntimeError: RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: the program needs 49.34G"),
    (
        22,
        "No registered 'AsString' OpKernel for 'TPU' devices compatible with node {{node AsString}}",
    ),
    (25, "InvalidArgumentError: Unsupported data type for TPU: complex128, caused by output x:0"),
    (
        25,
        "While rewriting computation to not contain X64 element types, XLA encountered an HLO for which this rewriting is not implemented: %dot.3 = f64[2,2]{1,0} dot(f64[2,2]{1,0} %a, f64[2,2]{1,0} %b)",
    ),
    (27, "No registered 'Unique' OpKernel for 'TPU' devices compatible with node {{node Unique}}"),
    (
        29,
        "Input 1 to node `TensorArrayV2` with op TensorListReserve must be a compile-time constant.",
    ),
    (
        34,
        "InvalidArgumentError: Trying to access resource Variable located in device /job:localhost/replica:0/task:0/device:CPU:0 from device /job:localhost/replica:0/task:0/device:TPU:0",
    ),
    (
        9,
        "RuntimeError: Unable to initialize backend 'tpu': UNKNOWN: TPU initialization failed: open(/dev/vfio/1): Device or resource busy: Device or resource busy; Couldn't open iommu group /dev/vfio/1 (set JAX_PLATFORMS='' to automatically choose an available backend)",
    ),
    (
        10,
        "InvalidArgumentError: NodeDef expected inputs 'string' do not match 0 inputs specified; Op<name=_Send; signature=tensor:T -> ; attr=T:type; attr=tensor_name:string; attr=send_device:string>; NodeDef: {{node _Send}}",
    ),
    (
        28,
        "Compilation failure: XLA has not implemented dynamic sized slice with non-trival stride yet. Please file a bug against XLA",
    ),
    (
        28,
        "UnimplementedError: {{function_node __inference_train_function_66860}} Compilation failure: CustomCall is not supported to have a dynamic dimension\n\tTPU compilation failed\n\t [[{{node tpu_compile_succeeded_assert/_7048177641045036345/_5}}]]",
    ),
    (
        28,
        'UNIMPLEMENTED: CustomCall "ApproxTopK" is not supported to have a dynamic dimension',
    ),
    (
        28,
        "UnimplementedError:  Compilation failure: Asked to propagate a dynamic dimension from hlo %scatter.14694 = f32[8333,256]{1,0} scatter(f32[8333,256]{1,0} %broadcast.14689, s32[320]{0} %reshape.2569), which is not implemented.",
    ),
    (
        28,
        "InvalidArgumentError: 9 root error(s) found.\n  (0) INVALID_ARGUMENT: {{function_node __inference_train_function_56513}} Squeeze op does not support bounded dynamic dimensions.",
    ),
    (
        28,
        "(0) Unimplemented: Compilation failure: Dynamic Spatial Convolution is not supported: lhs shape is f32[<=16,32,32,3]",
    ),
    (28, "Compilation failure: Dynamic shape is not supported for non trivial window"),
    (
        28,
        "ValueError: input tensor Tensor('cond/Identity:0', dtype=float32) to TPUStrategy.run() has unknown rank, which is not allowed",
    ),
    (
        140,
        "ValueError: SyncOnReadVariable does not support `assign_add` in cross-replica context when aggregation is set to `tf.VariableAggregation.SUM`.",
    ),
    (
        30,
        "RESOURCE_EXHAUSTED: Allocation (size=2305843009213693952) would exceed memory (size=17179869184) :: %s0 = inlined_call_operand.hbm [shape: f32[1073741824,536870912], index: 0, kind: input] :: slice_add_fusion",
    ),
    (
        31,
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Error allocating device buffer: Attempting to allocate 4.39G. That was not possible. There are 2.30G free.; (0x0x0_HBM0)",
    ),
    (
        31,
        "ValueError: RESOURCE_EXHAUSTED: E0100: RuntimeBufferAllocationFailure:\nError allocating device buffer",
    ),
    (
        31,
        "XlaRuntimeError: RESOURCE_EXHAUSTED: Error loading program 'jit_step': Attempting to reserve 29.49G at the bottom of memory. That was not possible. There are 147.64M free, 0B reserved, and 147.64M reservable.",
    ),
    (
        59,
        "RuntimeError: Bad StatusOr access: RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space vmem. Used 32.42M of 16.00M vmem. Exceeded vmem capacity by 16.42M",
    ),
    (
        59,
        "RESOURCE_EXHAUSTED: E1001: CompileTimeScopedVmemOom:\nRan out of memory in memory space vmem while allocating on stack for %add.1 = f32[8192,1024]{1,0:T(8,128)} custom-call(%x.1)",
    ),
    (
        59,
        "XlaRuntimeError: RESOURCE_EXHAUSTED: Allocation (size=134217728) would exceed memory (size=67108864) :: #allocation25 [shape = 'u8[134217728]{0}', space=vmem, size = 0x8000000, tag = 'scoped memory for kernel.2'] :: kernel.2",
    ),
    (
        60,
        "INTERNAL: Mosaic failed to compile TPU kernel with MLIR module name `<no name>` HLO name `_lambda_.1`: E2003: CompileTimeMosaicUnprovenMemoryAccessAlignment: cannot statically prove that index in dimension 0 is a multiple of 8\nSee https://openxla.org/xla/errors/error_2003 for more details.",
    ),
    (
        60,
        "INTERNAL: Mosaic failed to compile TPU kernel: cannot statically prove that index in dimension 1 is a multiple of 128",
    ),
    (
        61,
        "ValueError: The Pallas TPU lowering currently requires that the last two dimensions of your block shape are divisible by 8 and 128 respectively, or be equal to the respective dimensions of the overall array. Block spec for args[0] in pallas_call add has block shape (4, 256)",
    ),
    (
        61,
        "ValueError: The Pallas TPU lowering currently requires that rank 1 block shapes, either 1) the first (and only) dimension of the block shape is equal to the first (and only) dimension of the array shape",
    ),
    (
        61,
        "UNIMPLEMENTED: Mosaic failed to compile TPU kernel: Failed to set window params for input 0: Operand of shape (..., 256, 8192) has tiling (16, 128), but its block shape (..., 8, 8192) is not divisible by tiling evenly nor matches the full shape.",
    ),
    (
        61,
        "NotImplementedError: Mosaic failed to lower: the second last dimension of a block should be divisible by 8, got 4",
    ),
    (
        62,
        "INTERNAL: Mosaic failed to compile TPU kernel: Unsupported matmul RHS type on target: 'vector<256x256xi8>'\n",
    ),
    (
        62,
        "HLO name `_lambda_.1`: E2001: CompileTimeMosaicUnsupportedRhsType: Unsupported matmul RHS type on target: vector<128x128xi8>",
    ),
    (
        63,
        "INTERNAL: Accelerator device halted prematurely, perhaps due to an on-device check-failure. Node 0 halted unexpectedly at tag:pc TensorCoreSequencer:1:0x1d9 ...",
    ),
    (63, "E0200: RuntimeUnexpectedCoreHalt: INTERNAL: observed errors are: [Hardware]"),
    (
        64,
        "XlaRuntimeError: INVALID_ARGUMENT: Executable(jit_embedding_pipeline_step_fn) expected parameter 2482 of size 5242880 (bf16[16,1280,40]{2,1,0:T(8,128)(2,1)}) but got buffer with incompatible size 1638400 (bf16[16,1280,40]{1,2,0:T(8,128)(2,1)}): while running replica 0",
    ),
    (
        65,
        "INVALID_ARGUMENT: Tensor which is moved to host (starting from tuple.64) is returned from the entry computation but the layout for this output is not set to host memory.",
    ),
    (
        66,
        "RuntimeError: Bad StatusOr access: UNKNOWN: TPU initialization failed: open(/dev/accel2): Operation not permitted: Operation not permitted; Couldn't open device: /dev/accel2",
    ),
    (
        66,
        "E tensorflow/core/distributed_runtime/rpc/grpc_server_lib.cc:533] Invalid argument: Invalid fd: -1; Couldn't open device: /dev/accel0 (Operation not permitted); Unable to create Node RegisterInterface for node 0",
    ),
    (67, "jaxlib.xla_extension.XlaRuntimeError: UNAVAILABLE: No TPU Platform available."),
    (67, "RuntimeError: No ba16c7433 device found."),
    (68, "AttributeError: 'NoneType' object has no attribute 'merge_call'"),
    (
        68,
        "RuntimeError: Use `_distributed_apply()` instead of `apply_gradients()` in a cross-replica context.",
    ),
    (69, "ValueError: Flattening a PerReplica to components is not supported in replica context."),
    (
        71,
        'Traceback (most recent call last):\n  File "/home/me/train.py", line 7, in <module>\n    optimizer.build(model.trainable_variables)\n  File "/lib/keras/src/optimizers/adam.py", line 97, in build\n    super().build(var_list)\nRuntimeError: Need to be inside "with strategy.scope()" for <tensorflow.python.distribute.tpu_strategy.TPUStrategy object at 0x7f1>',
    ),
    (
        34,
        'Traceback (most recent call last):\n  File "/lib/keras/src/optimizers/base_optimizer.py", line 501, in apply\n    self.build(trainable_variables)\n  File "/lib/keras/src/optimizers/adam.py", line 97, in build\n    super().build(var_list)\nRuntimeError: Need to be inside "with strategy.scope()" for <tensorflow.python.distribute.tpu_strategy.TPUStrategy object at 0x7f1>',
    ),
    (
        72,
        'Traceback (most recent call last):\n  File "/lib/keras/src/utils/traceback_utils.py", line 122, in error_handler\nRuntimeError: Mixing different tf.distribute.Strategy objects: <tensorflow.python.distribute.tpu_strategy.TPUStrategy object at 0x7f1> is not <tensorflow.python.distribute.distribute_lib._DefaultDistributionStrategy object at 0x7f2>',
    ),
    (
        34,
        'Traceback (most recent call last):\n  File "/lib/tf_keras/src/utils/traceback_utils.py", line 70, in error_handler\nRuntimeError: Mixing different tf.distribute.Strategy objects: <tensorflow.python.distribute.tpu_strategy.TPUStrategy object at 0x7f1> is not <tensorflow.python.distribute.distribute_lib._DefaultDistributionStrategy object at 0x7f2>',
    ),
    (
        34,
        "ValueError: Metric (MeanAbsoluteError(name=mean_absolute_error,dtype=float32)) passed to `model.compile` was created inside a different distribution strategy scope than the model.",
    ),
    (
        70,
        "300/300 ━━━━━━━━━━━━━━━━━━━━ 22s 47ms/step - loss: nan - sparse_categorical_accuracy: nan - val_loss: nan - val_sparse_categorical_accuracy: nan",
    ),
    (
        70,
        "469/469 ━━━━━━━━━━━━━━━━━━━━ 28s 45ms/step - loss: nan - sparse_categorical_accuracy: 2.1701 - val_loss: 0.3587 - val_sparse_categorical_accuracy: 0.8993",
    ),
    (70, "100/100 - 3s - 30ms/step - accuracy: 7.4125 - loss: 1.3021"),
]

RETRACING = "WARNING:tensorflow:5 out of the last 5 calls to <function step at 0x7f0> triggered tf.function retracing. Tracing is expensive"

ORDINARY = [
    "KeyError: 'loss'",
    "KeyError: 'TPU'",
    "AssertionError",
    "AssertionError: shapes differ",
    "IndexError: list index out of range",
    "IndexError: index 0 is out of bounds for axis 0 with size 0",
    "KeyboardInterrupt",
    "NameError: name 'strategy' is not defined",
    "AttributeError: 'Tensor' object has no attribute 'numpy'",
    "ModuleNotFoundError: No module named 'tensorflow_hub'",
    "ModuleNotFoundError: No module named 'tensorflow.contrib'",
    "ValueError: Invalid reduction dimension 0 for input with 0 dimensions. for '{{node Mean}}'",
    "urllib.error.URLError: <urlopen error [Errno -2] Name or service not known>",
    "paramiko.ssh_exception.SSHException: Socket closed",
    "OSError: Socket is closed",
    "google.api_core.exceptions.ServiceUnavailable: 503 failed to connect to all addresses",
    "requests.exceptions.ConnectionError: HTTPConnectionPool(host='localhost', port=80): Max retries exceeded",
    "WARNING: Retrying (1/5) download of model.safetensors",
    "NotFoundError: Op type not registered 'SentencepieceOp' in binary running on 5f3c1a2b7d9e. Make sure the Op and Kernel are registered in the binary running in this process.",
    "InvalidArgumentError: Value for attr 'T' of bfloat16 is not in the list of allowed values: double, float, half",
    "ResourceExhaustedError: OOM when allocating tensor with shape[4096,4096] and type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc",
    "InvalidArgumentError: No OpKernel was registered to support Op 'CudnnRNNV3' used by {{node CudnnRNNV3}}",
    "DataLossError: Unable to open table file /tmp/model.h5: DATA_LOSS: not an sstable (bad magic number)",
    "FileNotFoundError: [Errno 2] No such file or directory: 'train.tfrecord'",
    "PermissionDeniedError: Error executing an HTTP request: HTTP response code 403",
    "ERROR: Cannot install pandas==1.0 and numpy==2.0 because these package versions have conflicting dependencies.",
    "InvalidArgumentError: Trying to access resource v located in device /job:localhost/replica:0/task:0/device:CPU:0 from device /job:localhost/replica:0/task:0/device:GPU:0",
    "RuntimeError: Physical devices cannot be modified after being initialized",
    "RuntimeError: CUDA error: out of memory",
    "UnavailableError: Connection reset by peer",
    "TypeError: unsupported operand type(s) for +: 'int' and 'str'",
    "TypeError: float() argument must be a string or a real number, not 'list'",
    "loss: nan - accuracy: 0.1",
    "10/10 ━━━━━━━━━━━━━━━━━━━━ 1s 9ms/step - accuracy: 1.0000 - loss: nan",
    "10/10 - 1s - 9ms/step - accuracy: 9.7656e-04 - loss: 6.9078 - val_accuracy: 1.0000e-04",
    "10/10 - 1s - 9ms/step - accuracy: 1.0000e+00 - loss: nan",
    "[epoch 3] loss: 0.41 - accuracy: 97.5",
    "EAL: Cannot open /dev/vfio/151: Device or resource busy",
    "OSError: [Errno 16] Device or resource busy: '/dev/vfio/20'",
    "PermissionError: [Errno 13] Permission denied: '/dev/kvm'",
    "RtApiWasapi::wasapiThread: Error allocating device buffer memory.",
    "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 285212672 bytes.",
    "a.py:3:0: E0102: function already defined line 1 (function-redefined)",
    "a.py:3:0: E0100: __init__ method is a generator (init-is-generator)",
    "a.py:3:0: E1200: Unsupported logging format character 'y' (logging-unsupported-format)",
    "E0102 12:00:00.259790   12189 server.cc:128] The request has failed",
    "ValueError: NodeDef expected inputs '' do not match 1 inputs specified; Op<name=Const>",
    "InvalidArgumentError: padded_shape[0]=257 is not divisible by block_shape[0]=2",
    "ValueError: `height` and `width` have to be divisible by 8 but are 255 and 256.",
    "AssertionError: erb_bins should be divisible by 8",
    "AttributeError: 'NoneType' object has no attribute 'call'",
    "WARNING:absl:No GPU/TPU found, falling back to CPU.",
    "ModuleNotFoundError: No module named 'jaxtyping'",
    "AttributeError: module 'jaxopt' has no attribute 'Adam'",
    "ModuleNotFoundError: No module named 'flax'",
    "AttributeError: partially initialized module 'jax' has no attribute 'numpy' (most likely due to a circular import)",
    "RuntimeError: The size of tensor a (3) must match the size of tensor b (4) at non-singleton dimension 0",
    "ValueError: operands could not be broadcast together with shapes (3,) (4,)",
    "ValueError: cannot reshape array of size 8 into shape (3,2)",
    "ValueError: matmul: Input operand 1 has a mismatch in its core dimension 0",
    "TypeError: unhashable type: 'list'",
    "OverflowError: Python int too large to convert to C long",
    "ValueError: The truth value of an array with more than one element is ambiguous. Use a.any() or a.all()",
    "KeyError: 'Record has been deleted'",
    "sqlalchemy.exc.InvalidRequestError: Object has been deleted or donated elsewhere",
    "RuntimeError: Unable to initialize backend 'cuda': FAILED_PRECONDITION: No visible GPU devices.",
    "RuntimeError: Unknown backend: 'gpu' requested, but no platforms that are instances of gpu are present.",
    "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 3221225472 bytes.",
    "jax.errors.JaxRuntimeError: INTERNAL: Failed to execute XLA Runtime executable: CUDA_ERROR_ILLEGAL_ADDRESS",
    "threading.BrokenBarrierError",
    "grpc._channel._InactiveRpcError: status = StatusCode.DEADLINE_EXCEEDED details = Deadline Exceeded",
    "ERROR: unknown command line flag 'nosuch'",
    "error: unregistered operation 'foo.bar' found in dialect ('foo') that does not allow unknown operations",
    "",
]  # fmt: skip


def number(error_or_text: object) -> int | None:
    found = explain(error_or_text)
    return None if found is None else found.number
