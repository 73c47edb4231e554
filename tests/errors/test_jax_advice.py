"""Advice with the names and numbers of JAX's messages, as JAX 0.7.2, 0.10.2 and 0.12.0.1 write them."""

from __future__ import annotations

import re

import pytest

from tpunb.errors.catalogue import ENTRIES
from tpunb.errors.catalogue.jax_shardings import JAX_SHARDINGS
from tpunb.errors.explain import explain

RECORDED = [
    (
        "in_specs_three_for_two",
        "93",
        "0.7.2, 0.10.2, 0.12.0.1",
        "ValueError: pytree structure error: different lengths of tuple at key path\n    shard_map in_specs\nAt that key path, the prefix pytree shard_map in_specs has a subtree of type tuple of length 3, but the full pytree has a subtree of the same type but of length 2.",
    ),
    (
        "in_specs_too_long",
        "93",
        "0.7.2",
        "ValueError: shard_map applied to the function '<lambda>' was given an in_specs entry which is too long to be compatible with the corresponding input value from the function:\n\nin_specs is PartitionSpec('batch', 'model') which has length 2, but args[0], where args[0] is bound to <lambda>'s parameter 'a', has shape float32[4], which has rank 1 (and 1 < 2)\n\nEntries in in_specs must be of length no greater than the number of axes in the corresponding input value.\n\nEither revise the spec to be shorter, or modify '<lambda>' so that its inputs have sufficient rank.",
    ),
    (
        "in_specs_too_long",
        "93",
        "0.10.2, 0.12.0.1",
        "ValueError: shard_map applied to the function '<lambda>' was given an in_specs entry which is too long to be compatible with the corresponding input value from the function:\n\nin_specs is P('batch', 'model') which has length 2, but the passed args[0], where args[0] is bound to <lambda>'s parameter 'a', has shape float32[4], which has rank 1 (and 1 < 2)\n\nEntries in in_specs must be of length no greater than the number of axes in the corresponding input value.\n\nEither revise the spec to be shorter, or modify '<lambda>' so that its inputs have sufficient rank.",
    ),
    (
        "in_specs_unknown_axis",
        "93",
        "0.7.2, 0.10.2, 0.12.0.1",
        "ValueError: shard_map in_specs argument must refer to an axis marked as manual (frozenset({'batch'})), but:\n\n  in_specs refers to 'data'\n\nCheck the in_specs values passed to shard_map.",
    ),
    (
        "out_specs_unknown_axis",
        "93",
        "0.7.2, 0.10.2, 0.12.0.1",
        "ValueError: shard_map out_specs argument must refer to an axis marked as manual (frozenset({'batch'})), but:\n\n  out_specs refers to 'data'\n\nCheck the out_specs values passed to shard_map.",
    ),
    (
        "out_specs_P_no_psum",
        "94",
        "0.7.2",
        "ValueError: shard_map applied to the function '<lambda>' was given out_specs which require replication which can't be statically inferred given the mesh:\n\nThe mesh given has shape (8,) with corresponding axis names ('batch',).\n\nout_specs is PartitionSpec() which implies that the corresponding output value is replicated across mesh axis 'batch', but could not infer replication over any axes\n\nCheck if these output values are meant to be replicated over those mesh axes. If not, consider revising the corresponding out_specs entries. If so, consider disabling the check by passing the check_vma=False argument to `jax.shard_map`.",
    ),
    (
        "out_specs_P_no_psum",
        "94",
        "0.10.2, 0.12.0.1",
        "ValueError: shard_map applied to the function '_rem_singleton' was given out_specs which require replication which can't be statically inferred given the mesh:\n\nThe mesh given has shape (8,) with corresponding axis names ('batch',).\n\nout_specs is P() which implies that the corresponding output value is replicated across mesh axis 'batch', but could not infer replication over any axes\n\nCheck if these output values are meant to be replicated over those mesh axes. If not, consider revising the corresponding out_specs entries. If so, consider disabling the check by passing the check_vma=False argument to `jax.shard_map`.",
    ),
    (
        "out_specs_scalar",
        "93",
        "0.7.2",
        "ValueError: shard_map applied to the function '<lambda>' was given an out_specs entry which is too long to be compatible with the corresponding output value from the function:\n\nout_specs is PartitionSpec('batch',) which has length 1, but <lambda>(*args) has shape float32[], which has rank 0 (and 0 < 1)\n\nEntries in out_specs must be of length no greater than the number of axes in the corresponding output value.\n\nEither revise the spec to be shorter, or modify '<lambda>' so that its outputs have sufficient rank.\n\nFor scalar values (rank 0), consider using an out_specs entry of `P()`, where `P = jax.sharding.PartitionSpec`. In particular, for rank 0 outputs which are not constant over the mesh, add at least one (singleton) axis to them so that they can be concatenated using out_specs.",
    ),
    (
        "out_specs_scalar",
        "93",
        "0.10.2, 0.12.0.1",
        "ValueError: shard_map applied to the function '<lambda>' was given an out_specs entry which is too long to be compatible with the corresponding output value from the function:\n\nout_specs is P('batch',) which has length 1, but <lambda>(*args) has shape float32[], which has rank 0 (and 0 < 1)\n\nEntries in out_specs must be of length no greater than the number of axes in the corresponding output value.\n\nEither revise the spec to be shorter, or modify '<lambda>' so that its outputs have sufficient rank.\n\nFor scalar values (rank 0), consider using an out_specs entry of `P()`, where `P = jax.sharding.PartitionSpec`. In particular, for rank 0 outputs which are not constant over the mesh, add at least one (singleton) axis to them so that they can be concatenated using out_specs.",
    ),
    (
        "out_specs_two_for_one",
        "93",
        "0.7.2, 0.10.2, 0.12.0.1",
        "ValueError: pytree structure error: different types at key path\n    shard_map out_specs\nAt that key path, the prefix pytree shard_map out_specs has a subtree of type\n    <class 'tuple'>\nbut at the same key path the full pytree has a subtree of different type\n    <class 'jax._src.shard_map.ShardMapTracer'>.",
    ),
    (
        "psum_wrong_axis_two",
        "94",
        "0.7.2",
        "ValueError: shard_map applied to the function '<lambda>' was given out_specs which require replication which can't be statically inferred given the mesh:\n\nThe mesh given has shape (4, 2) with corresponding axis names ('batch', 'model').\n\nout_specs is PartitionSpec('batch',) which implies that the corresponding output value is replicated across mesh axis 'model', but could not infer replication over any axes\n\nCheck if these output values are meant to be replicated over those mesh axes. If not, consider revising the corresponding out_specs entries. If so, consider disabling the check by passing the check_vma=False argument to `jax.shard_map`.",
    ),
    (
        "psum_wrong_axis_two",
        "94",
        "0.10.2, 0.12.0.1",
        "ValueError: shard_map applied to the function '_rem_singleton' was given out_specs which require replication which can't be statically inferred given the mesh:\n\nThe mesh given has shape (4, 2) with corresponding axis names ('batch', 'model').\n\nout_specs is P('batch',) which implies that the corresponding output value is replicated across mesh axis 'model', but could not infer replication over any axes\n\nCheck if these output values are meant to be replicated over those mesh axes. If not, consider revising the corresponding out_specs entries. If so, consider disabling the check by passing the check_vma=False argument to `jax.shard_map`.",
    ),
    ("psum_outside", "101", "0.7.2, 0.10.2, 0.12.0.1", "NameError: unbound axis name: batch"),
    (
        "indivisible_put",
        "88",
        "0.7.2",
        "ValueError: One of device_put args was given the sharding of NamedSharding(mesh=Mesh('batch': 8, axis_types=(Auto,)), spec=PartitionSpec('batch',), memory_kind=device), which implies that the global size of its dimension 0 should be divisible by 8, but it is equal to 10 (full shape: (10, 8))",
    ),
    (
        "indivisible_put",
        "88",
        "0.10.2",
        "IndivisibleError: Sharding NamedSharding(mesh=Mesh('batch': 8, axis_types=(Auto,)), spec=P('batch',), memory_kind=device) implies that array axis 0 is partitioned 8 times, but the dimension size is 10 (full shape: (10, 8), per-dimension tiling factors: [8, 1] should evenly divide the shape)",
    ),
    (
        "indivisible_put",
        "88",
        "0.12.0.1",
        "IndivisibleError: One of device_put args was given the sharding NamedSharding(mesh=Mesh('batch': 8, axis_types=(Auto,)), spec=P('batch',), memory_kind=device) implies that array axis 0 is partitioned 8 times, but the dimension size is 10 (full shape: (10, 8), per-dimension tiling factors: (8, 1) should evenly divide the shape).",
    ),
    (
        "indivisible_map",
        "88",
        "0.7.2",
        "ValueError: shard_map applied to the function '<lambda>' was given argument arrays with axis sizes that are not evenly divisible by the corresponding mesh axis sizes:\n\nThe mesh given has shape (8,) with corresponding axis names ('batch',).\n\nargs[0] of shape float32[10,8], where args[0] is bound to <lambda>'s parameter 'a', corresponds to in_specs of value PartitionSpec('batch',), which maps array axis 0 (of size 10) to mesh axis 'batch' (of size 8), but 8 does not evenly divide 10\n\nArray arguments' axis sizes must be evenly divisible by the mesh axis or axes indicated by the corresponding elements of the argument's in_specs entry. Consider checking that in_specs are correct, and if so consider changing the mesh axis sizes or else padding the input and adapting '<lambda>' appropriately.",
    ),
    (
        "indivisible_map",
        "88",
        "0.10.2, 0.12.0.1",
        "ValueError: shard_map applied to the function '<lambda>' was given argument arrays with axis sizes that are not evenly divisible by the corresponding mesh axis sizes:\n\nThe mesh given has shape (8,) with corresponding axis names ('batch',).\n\nthe passed args[0] of shape float32[10,8], where args[0] is bound to <lambda>'s parameter 'a', corresponds to in_specs of value P('batch',), which maps array axis 0 (of size 10) to mesh axis 'batch' (of size 8), but 8 does not evenly divide 10\n\nArray arguments' axis sizes must be evenly divisible by the mesh axis or axes indicated by the corresponding elements of the argument's in_specs entry. Consider checking that in_specs are correct, and if so consider changing the mesh axis sizes or else padding the input and adapting '<lambda>' appropriately.",
    ),
    (
        "indivisible_model",
        "88",
        "0.7.2",
        "ValueError: One of device_put args was given the sharding of NamedSharding(mesh=Mesh('batch': 4, 'model': 2, axis_types=(Auto, Auto)), spec=PartitionSpec(None, 'model'), memory_kind=device), which implies that the global size of its dimension 1 should be divisible by 2, but it is equal to 3 (full shape: (8, 3))",
    ),
    (
        "indivisible_model",
        "88",
        "0.10.2",
        "IndivisibleError: Sharding NamedSharding(mesh=Mesh('batch': 4, 'model': 2, axis_types=(Auto, Auto)), spec=P(None, 'model'), memory_kind=device) implies that array axis 1 is partitioned 2 times, but the dimension size is 3 (full shape: (8, 3), per-dimension tiling factors: [1, 2] should evenly divide the shape)",
    ),
    (
        "indivisible_model",
        "88",
        "0.12.0.1",
        "IndivisibleError: One of device_put args was given the sharding NamedSharding(mesh=Mesh('batch': 4, 'model': 2, axis_types=(Auto, Auto)), spec=P(None, 'model'), memory_kind=device) implies that array axis 1 is partitioned 2 times, but the dimension size is 3 (full shape: (8, 3), per-dimension tiling factors: (1, 2) should evenly divide the shape).",
    ),
    (
        "indivisible_a2a",
        "88",
        "0.7.2, 0.10.2, 0.12.0.1",
        "ValueError: The size of all_to_all split_axis (3) has to be divisible by the size of the named axis batch (8)",
    ),
    (
        "indivisible_scatter",
        "88",
        "0.7.2, 0.10.2, 0.12.0.1",
        "ValueError: tiled reduce_scatter operand scatter dimension size 3 must be divisible by shard_count 8",
    ),
    (
        "reshard_nomesh",
        "98",
        "0.7.2",
        "ValueError: Using PartitionSpec when you are not under a mesh context is not allowed. Please pass a NamedSharding instance or enter into a mesh context via `jax.set_mesh`. Got PartitionSpec('batch',)",
    ),
    (
        "reshard_nomesh",
        "98",
        "0.10.2, 0.12.0.1",
        "ValueError: Using PartitionSpec when you are not under a mesh context is not allowed. Please pass a NamedSharding instance or enter into a mesh context via `jax.set_mesh`. Got P('batch',)",
    ),
    (
        "constraint_nomesh",
        "98",
        "0.7.2, 0.10.2, 0.12.0.1",
        "RuntimeError: with_sharding_constraint requires a non-empty mesh in context if you are passing `PartitionSpec`s to shardings. You can define a context mesh via `jax.set_mesh(mesh)`. Alternatively, provide `Sharding`s to shardings and then the mesh context manager is not required.",
    ),
    (
        "put_nomesh",
        "98",
        "0.7.2, 0.10.2, 0.12.0.1",
        "ValueError: Please set a mesh via `jax.set_mesh` if a PartitionSpec is passed to device_put",
    ),
    (
        "map_nomesh",
        "98",
        "0.7.2, 0.10.2, 0.12.0.1",
        "ValueError: The context mesh cannot be empty. Use `jax.set_mesh(mesh)` to enter into a mesh context",
    ),
    (
        "zeros_nomesh",
        "98",
        "0.7.2",
        "AttributeError: 'PartitionSpec' object has no attribute '_is_concrete'",
    ),
    (
        "zeros_nomesh",
        "98",
        "0.10.2, 0.12.0.1",
        "AttributeError: 'P' object has no attribute '_is_concrete'",
    ),
    (
        "named_unknown",
        "96",
        "0.7.2",
        "ValueError: Resource axis: model of PartitionSpec('model',) is not found in mesh: ('batch',).",
    ),
    (
        "named_unknown",
        "96",
        "0.10.2, 0.12.0.1",
        "ValueError: Resource axis: model of P('model',) is not found in mesh: ('batch',).",
    ),
    (
        "named_dup",
        "96",
        "0.7.2",
        "DuplicateSpecError: A single NamedSharding spec specification can map every mesh axis to at most one positional dimension, but PartitionSpec('model', 'model') has duplicate entries for `model`",
    ),
    (
        "named_dup",
        "96",
        "0.10.2, 0.12.0.1",
        "DuplicateSpecError: A single NamedSharding spec specification can map every mesh axis to at most one positional dimension, but P('model', 'model') has duplicate entries for `model`",
    ),
    (
        "named_rank",
        "96",
        "0.7.2",
        "ValueError: One of device_put args is incompatible with its sharding annotation NamedSharding(mesh=Mesh('batch': 4, 'model': 2, axis_types=(Auto, Auto)), spec=PartitionSpec('batch', 'model'), memory_kind=device): Sharding NamedSharding(mesh=Mesh('batch': 4, 'model': 2, axis_types=(Auto, Auto)), spec=PartitionSpec('batch', 'model'), memory_kind=device) is only valid for values of rank at least 2, but was applied to a value of rank 1.",
    ),
    (
        "named_rank",
        "96",
        "0.10.2, 0.12.0.1",
        "ValueError: One of device_put args is incompatible with its sharding annotation NamedSharding(mesh=Mesh('batch': 4, 'model': 2, axis_types=(Auto, Auto)), spec=P('batch', 'model'), memory_kind=device): Sharding NamedSharding(mesh=Mesh('batch': 4, 'model': 2, axis_types=(Auto, Auto)), spec=P('batch', 'model'), memory_kind=device) is only valid for values of rank at least 2, but was applied to a value of rank 1.",
    ),
    (
        "named_scalar",
        "96",
        "0.7.2",
        "ValueError: One of device_put args is incompatible with its sharding annotation NamedSharding(mesh=Mesh('batch': 8, axis_types=(Auto,)), spec=PartitionSpec('batch',), memory_kind=device): Sharding NamedSharding(mesh=Mesh('batch': 8, axis_types=(Auto,)), spec=PartitionSpec('batch',), memory_kind=device) is only valid for values of rank at least 1, but was applied to a value of rank 0. For scalars the PartitionSpec should be P()",
    ),
    (
        "named_scalar",
        "96",
        "0.10.2, 0.12.0.1",
        "ValueError: One of device_put args is incompatible with its sharding annotation NamedSharding(mesh=Mesh('batch': 8, axis_types=(Auto,)), spec=P('batch',), memory_kind=device): Sharding NamedSharding(mesh=Mesh('batch': 8, axis_types=(Auto,)), spec=P('batch',), memory_kind=device) is only valid for values of rank at least 1, but was applied to a value of rank 0. For scalars the PartitionSpec should be P()",
    ),
    (
        "named_args_swapped",
        "96",
        "0.7.2",
        "TypeError: __init__(): incompatible function arguments. The following argument types are supported:\n    1. __init__(self, mesh: object, spec: jax.sharding.PartitionSpec, memory_kind: object | None = None, _logical_device_ids: object | None = None) -> None\n\nInvoked with types: jax.sharding.NamedSharding, jax.sharding.PartitionSpec, jax._src.mesh.Mesh",
    ),
    (
        "named_args_swapped",
        "96",
        "0.10.2, 0.12.0.1",
        "AttributeError: 'P' object has no attribute 'size'",
    ),
    (
        "named_string",
        "96",
        "0.7.2",
        "TypeError: __init__(): incompatible function arguments. The following argument types are supported:\n    1. __init__(self, mesh: object, spec: jax.sharding.PartitionSpec, memory_kind: object | None = None, _logical_device_ids: object | None = None) -> None\n\nInvoked with types: jax.sharding.NamedSharding, jax._src.mesh.Mesh, str",
    ),
    (
        "put_string",
        "96",
        "0.7.2, 0.10.2, 0.12.0.1",
        "ValueError: `jax.device_put` only accepts `None`, `jax.sharding.Sharding`, `jax.Device`, `Format`, `jax.memory.Space` or a pytree of these values. Received invalid value: batch",
    ),
    (
        "spec_tuple_in",
        "93",
        "0.7.2, 0.10.2, 0.12.0.1",
        "TypeError: shard_map in_specs argument must be a pytree of `jax.sharding.PartitionSpec` instances, but:\n\n  in_specs is batch of type str, \n\nCheck the in_specs values passed to shard_map.",
    ),
    (
        "map_positional",
        "93",
        "0.7.2, 0.10.2, 0.12.0.1",
        "TypeError: shard_map() takes from 0 to 1 positional arguments but 4 were given",
    ),
    (
        "map_no_out",
        "93",
        "0.7.2, 0.10.2, 0.12.0.1",
        "TypeError: shard_map() missing 1 required keyword-only argument: 'out_specs'",
    ),
    (
        "Mesh_dims",
        "96",
        "0.7.2, 0.10.2, 0.12.0.1",
        "ValueError: Mesh requires the ndim of its first argument (`devices`) to equal the length of its second argument (`axis_names`), but got devices.ndim == 1 and len(axis_names) == 2.",
    ),
    (
        "carry_vma",
        "94",
        "0.7.2",
        "TypeError: scan body function carry input and carry output must have equal types, but they differ:\n\nThe input carry component loop_carry[1] has type float32[] but the corresponding output carry component has type float32[]{batch}, so the varying manual axes do not match.\n\nThis might be fixed by applying `jax.lax.pvary(..., ('batch',))` to the initial carry value corresponding to the input carry component loop_carry[1].\nSee https://docs.jax.dev/en/latest/notebooks/shard_map.html#scan-vma for more information.\n\nRevise the function so that all output types match the corresponding input types.",
    ),
    (
        "carry_vma",
        "94",
        "0.10.2",
        "TypeError: scan body function carry input and carry output must have equal types, but they differ:\n\nThe input carry component loop_carry[1] has type float32[] but the corresponding output carry component has type float32[]{V:batch}, so the manual axis types do not match.\n\nThis might be fixed by applying `jax.lax.pcast(..., ('batch',), to='varying')`, to the initial carry value corresponding to the input carry component loop_carry[1].\nSee https://docs.jax.dev/en/latest/notebooks/shard_map.html#scan-vma for more information.\n\nRevise the function so that all output types match the corresponding input types.",
    ),
    (
        "carry_vma",
        "94",
        "0.12.0.1",
        "TypeError: scan body function carry input and carry output must have equal types, but they differ:\n\nThe input carry component loop_carry[1] has type float32[] but the corresponding output carry component has type float32[]{V:batch}, so the manual axis types do not match.\n\nThis might be fixed by applying `jax.lax.pcast(..., ('batch',), to='varying')`, to the initial carry value corresponding to the input carry component loop_carry[1].\nSee https://docs.jax.dev/en/latest/201/shard-map.html#scan-vma for more information.\n\nRevise the function so that all output types match the corresponding input types.",
    ),
    (
        "cond_vma",
        "94",
        "0.7.2",
        "TypeError: cond branches must have equal output types but they differ.\n\ntrue_fun is <lambda> at <ipython-input-673da425ea6a>:1\nfalse_fun is <lambda> at <ipython-input-673da425ea6a>:1\n\nThe output of true_fun has type float32[]{batch} but the corresponding output of false_fun has type float32[], so the varying manual axes do not match.\n\nThis might be fixed by applying `jax.lax.pvary(..., ())` to the output of true_fun.\nSee https://docs.jax.dev/en/latest/notebooks/shard_map.html#scan-vma for more information.\n\nRevise true_fun and/or false_fun so that all output types match.",
    ),
    (
        "cond_vma",
        "94",
        "0.10.2",
        "TypeError: cond branches must have equal output types but they differ.\n\ntrue_fun is <lambda> at <ipython-input-673da425ea6a>:1\nfalse_fun is <lambda> at <ipython-input-673da425ea6a>:1\n\nThe output of true_fun has type float32[]{V:batch} but the corresponding output of false_fun has type float32[], so the manual axis types do not match.\n\nThis might be fixed by applying `jax.lax.pcast(..., (), to='varying')` to the output of true_fun.\nSee https://docs.jax.dev/en/latest/notebooks/shard_map.html#scan-vma for more information.\n\nRevise true_fun and/or false_fun so that all output types match.",
    ),
    (
        "cond_vma",
        "94",
        "0.12.0.1",
        "TypeError: cond branches must have equal output types but they differ.\n\ntrue_fun is <lambda> at <ipython-input-673da425ea6a>:1\nfalse_fun is <lambda> at <ipython-input-673da425ea6a>:1\n\nThe output of true_fun has type float32[]{V:batch} but the corresponding output of false_fun has type float32[], so the manual axis types do not match.\n\nThis might be fixed by applying `jax.lax.pcast(..., (), to='varying')` to the output of true_fun.\nSee https://docs.jax.dev/en/latest/201/shard-map.html#scan-vma for more information.\n\nRevise true_fun and/or false_fun so that all output types match.",
    ),
    (
        "psum_no_name",
        "101",
        "0.7.2, 0.10.2, 0.12.0.1",
        "TypeError: psum() missing 1 required positional argument: 'axis_name'",
    ),
    (
        "set_mesh_in_jit",
        "98",
        "0.7.2, 0.10.2, 0.12.0.1",
        "ValueError: `set_mesh` can only be used outside of `jax.jit`.",
    ),
    (
        "nested_mesh",
        "98",
        "0.7.2",
        "ValueError: The context mesh AbstractMesh('batch': 4, 'model': 2, axis_types=(Auto, Auto), device_kind=cpu, num_cores=None) should match the mesh passed to shard_map Mesh('batch': 8, axis_types=(Auto,))",
    ),
    (
        "nested_mesh",
        "98",
        "0.10.2, 0.12.0.1",
        "ValueError: The context mesh AbstractMesh('batch': 4, 'model': 2, axis_types=(Auto, Auto), device_kind=cpu, num_cores=None, platform=cpu) should match the mesh passed to shard_map Mesh('batch': 8, axis_types=(Auto,))",
    ),
]
"""A name, the entry, the releases of JAX, and the message."""

WORDS = {
    "in_specs_three_for_two": "in_specs has 3 specs, and the function has 2 arguments",
    "in_specs_too_long": "in_specs is P('batch', 'model'), with 2 entries, and the argument float32[4] "
    "has 1 axis.",
    "in_specs_unknown_axis": 'names "data", and the mesh has the axis "batch"',
    "out_specs_unknown_axis": 'names "data", and the mesh has the axis "batch"',
    "out_specs_P_no_psum": 'jax.lax.psum(x, "batch") for the sum',
    "out_specs_scalar": "x.reshape(1)",
    "out_specs_two_for_one": "one is a tuple, and the other is not",
    "psum_wrong_axis_two": 'jax.lax.psum(x, "model") for the sum',
    "psum_outside": 'names the axis "batch"',
    "indivisible_put": "Axis 0 has 10 elements, and it is to be cut into 8 equal parts",
    "indivisible_map": "Make the size 8 or 16",
    "indivisible_model": "Axis 1 has 3 elements, and it is to be cut into 2 equal parts",
    "indivisible_a2a": "`all_to_all` cuts an axis of the device's part into 8 equal parts",
    "indivisible_scatter": "`psum_scatter` cuts an axis of the device's part into 8 equal parts",
    "reshard_nomesh": "NamedSharding(mesh, P('batch')) instead of P('batch')",
    "constraint_nomesh": "jax.set_mesh(mesh)",
    "put_nomesh": 'NamedSharding(mesh, P("batch"))',
    "map_nomesh": "jax.shard_map(f, mesh=mesh, in_specs=..., out_specs=...)",
    "zeros_nomesh": "no mesh is set",
    "named_unknown": "Use a name of the mesh: P('batch')",
    "named_dup": "P('model', 'model') has \"model\" more than once",
    "named_rank": "P('batch', 'model') has 2 entries, and the array has 1 axis",
    "named_scalar": "P('batch') has 1 entry, and the array has 0 axes. Write P().",
    "named_args_swapped": "The mesh comes first",
    "named_string": 'NamedSharding(mesh, P("batch"))',
    "put_string": '"batch" is text, and a spec is needed',
    "spec_tuple_in": 'Write P("batch")',
    "map_positional": "takes only the function by position",
    "map_no_out": "was called without out_specs",
    "Mesh_dims": "The mesh gets 2 names, and its devices are an array of 1 axis",
    "carry_vma": 'jax.lax.pcast(x, ("batch",), to="varying")',
    "cond_vma": 'jax.lax.pvary(x, ("batch",))',
    "psum_no_name": 'jax.lax.psum(x, "batch")',
    "set_mesh_in_jit": "Call it outside",
    "nested_mesh": "Leave out `mesh=`",
}


@pytest.mark.parametrize(("name", "code", "releases", "message"), RECORDED)
def test_the_advice_has_the_names_of_the_message(
    name: str, code: str, releases: str, message: str
) -> None:
    entry = explain(message)
    assert entry is not None, releases
    assert entry.code == code
    assert WORDS[name] in f"{entry.cause} {entry.fix}"
    assert (entry.title, entry.rank) == (ENTRIES[code].title, ENTRIES[code].rank)


def test_every_release_is_recorded() -> None:
    for name in WORDS:
        releases = {
            release for case, _, of, _ in RECORDED if case == name for release in of.split(", ")
        }
        if (
            name == "named_string"
        ):  # the message of later releases says nothing without its traceback
            assert releases == {"0.7.2"}
        else:
            assert releases == {"0.7.2", "0.10.2", "0.12.0.1"}, name


def test_no_advice_switches_the_check_off() -> None:
    """A kernel of Pallas may need it; the check of `out_specs` finds a missing psum."""
    texts = [f"{entry.cause} {entry.fix}" for entry in JAX_SHARDINGS]
    texts += [f"{entry.cause} {entry.fix}" for *_, text in RECORDED if (entry := explain(text))]
    assert not [text for text in texts if "check_vma=False" in text]


def test_several_axes_and_results_are_named() -> None:
    message = (
        "ValueError: shard_map applied to the function 'f' was given out_specs which require "
        "replication which can't be statically inferred given the mesh:\n\nThe mesh given has shape "
        "(4, 2) with corresponding axis names ('batch', 'model').\n\nout_specs[1] is P() which "
        "implies that the corresponding output value is only varying across mesh axes {} and not "
        "{batch,model}, but it was inferred to be possibly varying over {batch,model}"
    )
    entry = explain(message)
    assert entry is not None
    assert entry.cause.startswith("out_specs[1] is P(), which promises")
    assert '("batch", "model")' in entry.fix


def test_a_name_like_an_axis_is_proposed() -> None:
    message = (
        "ValueError: Resource axis: bacth of P('bacth',) is not found in mesh: ('batch', 'model')."
    )
    entry = explain(message)
    assert entry is not None
    assert entry.fix == "Did you mean `batch`?"


def test_a_long_message_takes_no_time() -> None:
    message = "shard_map applied: out_specs is P(" + "(" * 20_000 + "'a', " * 20_000
    assert explain(f"ValueError: {message}") is None
    assert re.search("P", message)
