"""The only module that imports TensorFlow's private parts.

Every import from ``tensorflow.python`` in the package is here, with a comment that says what it is
for, so that a new TensorFlow release is checked in one place. The tests run on the oldest and on
the newest supported release.
"""

from __future__ import annotations

# The TPU strategy's own implementation. The virtual TPU keeps its variables, input pipelines,
# reductions and refusals.
from tensorflow.python.distribute.tpu_strategy import (
    TPUExtended,
    TPUStrategy,
    TPUStrategyV1,
    TPUStrategyV2,
    _TPUReplicaContext,
)

# The description of the TPU system that TPUExtended asks a resolver for.
from tensorflow.python.tpu.tpu_system_metadata import TPUSystemMetadata

# This control flow context answers "Am I inside a TPU computation?". TPU variables ask it for their
# handle.
from tensorflow.python.tpu.tpu_replication import TPUReplicateContext

# cross_replica_sum and similar operations read the number of replicas from here.
from tensorflow.python.tpu.tpu_function import tpu_shard_context

# The cross-replica operations themselves, and the test for a replica function that is being traced.
from tensorflow.python.tpu.ops import tpu_ops
from tensorflow.python.distribute.tpu_util import TPUUninitializedVariable, enclosing_tpu_context

# Groups one value per replica into PerReplica or Mirrored, and ungroups it.
from tensorflow.python.distribute import distribute_utils
from tensorflow.python.distribute import values as distribute_values
from tensorflow.python.distribute import distribute_lib
from tensorflow.python.distribute import device_util
from tensorflow.python.distribute import input_lib
from tensorflow.python.distribute import input_util
from tensorflow.python.distribute.v1 import input_lib as input_lib_v1

# Traces the replica function into a graph of its own.
from tensorflow.python.framework.func_graph import FuncGraph, func_graph_from_py_func
from tensorflow.python.framework import auto_control_deps
from tensorflow.python.framework import auto_control_deps_utils
from tensorflow.python.framework import dtypes
from tensorflow.python.framework.function_def_to_graph import function_def_to_graph_def
from tensorflow.python.framework import ops
from tensorflow.python.ops import handle_data_util

# Convert a traced graph into a FunctionDef, and a FunctionDef into something to call.
from tensorflow.python.eager import context
from tensorflow.python.eager.polymorphic_function import atomic_function

# AutoGraph treats what this marks as TensorFlow's own: it leaves the marked function as it is, and
# converts the functions that the user passes to it.
from tensorflow.python.autograph.impl.api import autograph_artifact

# The objects with state that tracing may change.
from tensorflow.python.trackable.base import Trackable

# Checks arrays before they become tensors; the public registration refuses NumPy's types.
from tensorflow.python.framework import tensor_conversion_registry

# Callbacks that receive each function after it has been traced.
from tensorflow.python.eager.polymorphic_function import transform as function_transform

# Tells whether XLA will compile the function that is being traced.
from tensorflow.python.ops import control_flow_util

# Tells whether a model is being saved; and turns a FunctionDef into a function that a graph copies.
from tensorflow.python.saved_model.save_context import in_save_context
from tensorflow.python.client import pywrap_tf_session
from tensorflow.python.framework import c_api_util

# This context answers "Am I compiled by XLA?". Functions traced in it have traces of their own.
from tensorflow.python.ops.control_flow_ops import XLAControlFlowContext

# Lets checkpoints reach variables of several tasks.
from tensorflow.python.checkpoint.functional_saver import MultiDeviceSaver

# Lists the operations that XLA has kernels for.
from tensorflow.python.framework.kernels import get_registered_kernels_for_op

# Annotations of a tensor with a logical device or a partition, the precision of XLA's own products,
# and variables that every logical device of a replica holds.
from tensorflow.python.compiler.xla.experimental.xla_sharding import xla_data_pb2
from tensorflow.python.distribute.tpu_replicated_variable import TPUReplicatedVariable

# A TPU's requirements on arguments and results: padding, and the meaning of "flat".
from tensorflow.python.compiler.xla.xla import is_flat
from tensorflow.python.tpu import tpu

# Lets `outside_compilation` find the replica around it.
from tensorflow.python.tpu import tpu_replication

# Warns of names of old releases in TensorFlow's own way.
from tensorflow.python.platform import tf_logging as logging
from tensorflow.python.util import deprecation

# Reads inputs that are variables before they reach the replicas.
from tensorflow.python.util import variable_utils

# The iterators that pass batches to single devices, and the datasets that cut batches for them.
from tensorflow.python.data.experimental.ops import distribute as dataset_distribution
from tensorflow.python.data.experimental.ops.distribute import _AutoShardDataset as AutoShardDataset
from tensorflow.python.data.experimental.ops.distribute import (
    _LegacyRebatchDataset as LegacyRebatchDataset,
)
from tensorflow.python.data.ops import dataset_ops
from tensorflow.python.data.ops import iterator_ops
from tensorflow.python.data.ops import multi_device_iterator_ops
from tensorflow.python.data.ops import readers as dataset_readers
from tensorflow.python.data.ops.from_tensor_slices_op import _TensorSliceDataset
from tensorflow.python.data.ops.from_tensors_op import _TensorDataset
from tensorflow.python.data.ops.random_op import _RandomDataset
from tensorflow.python.data.ops.range_op import _RangeDataset
from tensorflow.python.data.ops.rebatch_op import _RebatchDataset as RebatchDataset

# The parts that install changes: TensorFlow's ways to a TPU and to its devices, and the classes
# that report device names.
from tensorflow.python.client.session import BaseSession
from tensorflow.python.client.session import _DeviceAttributes as DeviceAttributes
from tensorflow.python.distribute import tpu_values
from tensorflow.python.distribute.cluster_resolver.tpu.tpu_cluster_resolver import (
    TPUClusterResolver,
)
from tensorflow.python.eager import remote
from tensorflow.python.framework import config
from tensorflow.python.framework.ops import EagerTensor, SymbolicTensor
from tensorflow.python.ops.resource_variable_ops import (
    BaseResourceVariable,
    ResourceVariable,
)
from tensorflow.python.tpu import tpu_strategy_util

# The calls that wait for workers, so that they can be made without Python's lock; and the call of a
# function, so that it can be made in another thread.
from tensorflow.python import pywrap_tfe

# Ends a running function.
from tensorflow.python.eager import cancellation

# Protocol buffers of functions and their nodes.
from google.protobuf import message
from tensorflow.core.framework.attr_value_pb2 import AttrValue
from tensorflow.core.framework.function_pb2 import FunctionDef
from tensorflow.core.framework.graph_debug_info_pb2 import GraphDebugInfo
from tensorflow.core.framework.node_def_pb2 import NodeDef

# The counters that tf.data keeps of the stages of an iterator.
from tensorflow.core.framework.model_pb2 import ModelProto

# The first seed of an operation that has a seed of its own, while no global seed is set.
from tensorflow.python.framework.random_seed import DEFAULT_GRAPH_SEED

# All registered operations, and the values of constants.
from tensorflow.python.framework import op_def_registry
from tensorflow.python.framework import tensor_util

IN_MEMORY_DATASETS = (_RandomDataset, _RangeDataset, _TensorDataset, _TensorSliceDataset)
OpSharding = xla_data_pb2.OpSharding
PrecisionConfig = xla_data_pb2.PrecisionConfig
TPU_VARIABLES = (
    tpu_values.TPUDistributedVariable,
    tpu_values.TPUMirroredVariable,
    tpu_values.TPUSyncOnReadVariable,
)
