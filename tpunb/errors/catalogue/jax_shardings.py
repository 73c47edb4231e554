"""Errors of JAX's devices, meshes, shardings and donated arrays."""

from __future__ import annotations

from tpunb.errors.catalogue.entry import Clue, Explanation

_SHARDED = "https://docs.jax.dev/en/latest/parallel.html"
_SHARD_MAP = "https://docs.jax.dev/en/latest/notebooks/shard_map.html"
_DONATION = "https://docs.jax.dev/en/latest/buffer_donation.html"

JAX_SHARDINGS = (
    Explanation(
        "88",
        "A size that the mesh does not divide",
        (
            r"implies that the global size of its dimension \d+ should be divisible by \d+",
            r"implies that array axis \d+ is partitioned \d+ times, but ",
            r"incompatible with mesh_shape=[^\n]{1,200} is not divisible by axis_size",
            r"axis sizes that are not evenly divisible by the corresponding mesh axis sizes",
            r"pmap got inconsistent sizes for array axes to be mapped",
            Clue(r"cannot select an axis to squeeze out which has size not equal", where=r"pmap"),
            r"size of all_to_all split_axis \(\d+\) has to be divisible by",
            r"reduce_scatter operand scatter dimension size \d+ must be divisible by",
        ),
        "An array's axis is cut into equal parts, one for each device on the mesh's axis, and its "
        "size is not a multiple of their number. The message has both numbers.",
        "For a batch, use a multiple (`drop_remainder=True`), or pad it. For weights, leave this "
        "axis whole (`None` in the PartitionSpec): key and value heads of grouped attention are "
        "often fewer than the devices. Or use a mesh with fewer devices on this axis.",
        ("Physical-Intelligence/openpi#607", _SHARDED),
    ),
    Explanation(
        "89",
        "Arrays on different devices",
        (
            r"Received incompatible devices for (?:p?jitted|jitted) computation",
            r"AbstractMesh should be of the same size across all shardings",
            r"Mesh shape of the input [^\n]{1,200} does not match the mesh shape of the target",
            r"The size of abstract mesh \d+ in [^\n]{1,300} must match the length of device assign",
        ),
        "All arguments and meshes of one call must have the same devices. The message names two "
        "that differ: most often one array is on a single device (jax.device_put, a checkpoint, "
        "jax.random.key), and the others on the whole mesh.",
        "Move it: `x = jax.device_put(x, NamedSharding(mesh, PartitionSpec()))` copies it to all "
        'devices, `PartitionSpec("data")` cuts it. Use the mesh of the arguments in '
        "`with_sharding_constraint`, too.",
        ("keras-team/keras#18681", "marin-community/levanter#609", "jax-ml/jax#25541"),
    ),
    Explanation(
        "90",
        "An array that was donated is used again",
        (
            r"RuntimeError: Array has been deleted",
            r"[Bb]uffer has been deleted or donated",
            r"Donation requested for invalid buffer",
        ),
        "A call with `donate_argnums` may overwrite its arguments, so their arrays are gone "
        "afterwards. Keras with JAX donates the model's state in `fit`.",
        "Use the call's result from then on: `params = step(params, batch)`. If the old array is "
        "needed, copy it first (`jnp.copy(x)`), or do not donate it.",
        ("jax-ml/jax#9675", _DONATION),
    ),
    Explanation(
        "91",
        "A donated array that no result can take over",
        (r"Some donated buffers were not usable", r"Some donation buffers unavailable"),
        "An array is overwritten only by a result of the same shape, type and sharding. The arrays "
        "in the warning have no such result, so they save no memory. They are deleted anyway.",
        "Donate only the state that the function returns: `jax.jit(step, donate_argnums=0)` for "
        "`params = step(params, batch)`, not the batch. Give the result the argument's sharding "
        "(`out_shardings=`) and type.",
        ("jax-ml/jax#9237", "jax-ml/jax#1273", _DONATION),
        rank=2,
    ),
    Explanation(
        "92",
        "One array is donated twice",
        (r"Attempt to donate the same buffer twice",),
        "Two donated arguments, or two leaves of one, are the same array. Weights that are tied, "
        "and optimizer slots that were made from one array, are like that.",
        "Copy it: `jax.tree.map(jnp.copy, state)` once, before the first call; or leave tied "
        "weights out of the state.",
        (_DONATION,),
    ),
    Explanation(
        "93",
        "The specs of jax.shard_map do not fit the function",
        (
            r"was given an? (?:in|out)_specs entry which is too long",
            r"pytree structure error: [^\n]{1,200}\n[^\n]{0,40}shard_map (?:in|out)_specs",
            r"shard_map (?:in|out)_specs argument must (?:be a pytree|refer to an axis marked)",
            r"in_specs passed to shard_map: [^\n]{1,300} does not match the specs of the input",
            r"shard_map\(\) takes from 0 to 1 positional arguments but \d+ were given",
            r"shard_map\(\) missing 1 required keyword-only argument: ",
        ),
        "`in_specs` has one PartitionSpec for each argument, `out_specs` one for each result, and "
        "a spec has at most as many entries as the array has axes. On a mesh with explicit axes, "
        "`in_specs` must also be the shardings that the arguments have.",
        "All but the function have names: `jax.shard_map(f, mesh=mesh, in_specs=..., "
        "out_specs=...)`. Write a tuple for several arguments: `in_specs=(P('data'), P())`. A "
        "scalar result needs `out_specs=P()`. On explicit axes, leave `in_specs` out, or reshard "
        "first: `jax.reshard(x, P('data'))`.",
        (_SHARD_MAP, "jax-ml/jax#18951"),
    ),
    Explanation(
        "143",
        "jax.shard_map uses a sharded array that is no argument",
        (r"Check failed: !IsManual\(\)",),
        "The function in `jax.shard_map` reads an array from outside that is cut along an axis of "
        "the mesh. The compiler cannot cut it again there, and ends the process.",
        "Pass it as an argument with a spec of its own: `jax.shard_map(f, mesh=mesh, "
        "in_specs=(P('data'), P('model')), out_specs=P('data'))(x, w)`.",
        ("jax-ml/jax#29162", "openxla/xla#4340"),
    ),
    Explanation(
        "149",
        "A device's own number where XLA cuts the arrays",
        (r"PartitionId instruction is not supported for SPMD partitioning",),
        "`jax.lax.axis_index` in `jax.shard_map` became part of a program that XLA cuts by "
        "itself: in a branch or loop that does not use it, or on a mesh of which only some axes "
        "are mapped.",
        "Pass the number as an argument: `jax.shard_map(f, mesh=mesh, in_specs=(P('data'), "
        "P('data')), out_specs=P('data'))(x, jnp.arange(mesh.shape['data']))`; in `f`, it is "
        "`number[0]`. Or use it outside of the branch.",
        ("jax-ml/jax#15780", "EnzymeAD/Enzyme-JAX#789"),
    ),
    Explanation(
        "150",
        "custom_partitioning on a TPU",
        (r"Custom emitter for CustomSPMDPartitioning not found",),
        "`custom_partitioning` cuts a function by code in Python, which the TPU's compiler does "
        "not call. On other processors it works.",
        "Use `jax.shard_map` around the function: each device then runs it on its part.",
        ("jax-ml/jax#38196",),
    ),
    Explanation(
        "94",
        "jax.shard_map: the same on all devices, or not",
        (
            r"out_specs which require replication which can't be statically inferred",
            r"must have equal (?:output )?types[\s\S]{0,600}?manual ax(?:is types|es) do not match",
            r"requires varying manual axes to match",
            r"`(?:manual_axis_type|vma)` on `jax\.ShapeDtypeStruct` must not be `None`",
        ),
        "Inside `jax.shard_map`, JAX keeps track of which values differ between devices. A value "
        "that differs cannot be a result with `out_specs=P()`, and a loop's carry must not change "
        "from equal to different.",
        'Combine it first (`jax.lax.psum(x, "data")`), or cut the result (`out_specs='
        "P('data')`). For a carry that begins with zeros: "
        '`jax.lax.pcast(zeros, ("data",), to="varying")`. A Pallas kernel says where its result '
        "differs: `vma={'data'}` in its `jax.ShapeDtypeStruct`, or since JAX 0.10 "
        "`manual_axis_type=`. Keep `check_vma` on: without it, a missing psum stays unseen.",
        (_SHARD_MAP,),
    ),
    Explanation(
        "95",
        "Explicit axes: JAX asks for the sharding of a result",
        (r"ShardingTypeError: ",),
        "The mesh has explicit axes, which `jax.make_mesh` and, since JAX 0.12, also "
        "`jax.sharding.AbstractMesh` make unless told otherwise. Then every operation must have "
        "one possible sharding, and here there are several or none.",
        'Let the compiler choose: `jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.'
        "AxisType.Auto,))`, and the same `axis_types` for an AbstractMesh. Or say it: "
        "`jnp.einsum(..., out_sharding=P('data'))`, `x.at[i].get(out_sharding=...)`, "
        "`jax.reshard(x, P())`.",
        ("jax-ml/jax#31800", _SHARDED),
    ),
    Explanation(
        "96",
        "A sharding that does not fit the mesh or the array",
        (
            r"Resource axis: [^\n]{1,80} of [^\n]{1,200} is (?:not found in mesh|undefined)",
            r"DuplicateSpecError: ",
            r"is only valid for values of rank (?:at least )?\d+, but was applied to a value of",
            r"Mesh requires the ndim of its first argument \(`devices`\)",
            r"(?m)`jax\.device_put` only accepts [^\n]{1,200}Received invalid value: \w{1,60}$",
            Clue(r"'str' object has no attribute 'partitions'", where="named_sharding"),
            r"'P' object has no attribute 'size'",
            r"incompatible function arguments\.[^\n]{0,80}\s+1\. __init__\(self, mesh: object, sp",
        ),
        "A PartitionSpec has an entry for each axis of the array: the name of a mesh's axis, or "
        "None. A name must exist in the mesh and may occur once, and there are at most as many "
        "entries as axes.",
        "Print `mesh.axis_names` and `x.shape`, and write the spec for them: "
        "`NamedSharding(mesh, PartitionSpec('data'))`, the mesh first. A scalar or a bias needs "
        "`PartitionSpec()`. Two mesh axes on one array axis are a tuple: "
        "`PartitionSpec(('data', 'model'))`.",
        (_SHARDED,),
    ),
    Explanation(
        "97",
        "A constraint on axes of another type",
        (
            r"`with_sharding_constraint` acts as an assert when all axes of mesh are",
            r"with_sharding_constraint can only refer to Auto axes of the mesh",
            r"cannot contain axis names that are of type Auto or Manual",
            r"context mesh [^\n]{1,300} should match the aval mesh",
            r"Going from `Manual` AxisType to `Auto` or `Explicit` AxisType is not allowed",
        ),
        "`with_sharding_constraint` and `in_shardings` are for axes whose shardings XLA chooses "
        "(Auto), `jax.reshard` and `out_sharding=` for explicit axes, and inside `jax.shard_map` "
        "neither applies.",
        "On explicit axes: `x = jax.reshard(x, PartitionSpec('data'))`. Or make the axes "
        "automatic: `jax.make_mesh(..., axis_types=(jax.sharding.AxisType.Auto,))`.",
        (_SHARDED,),
    ),
    Explanation(
        "98",
        "A PartitionSpec without a mesh",
        (
            r"pjit requires a non-empty mesh",
            r"requires a non-empty mesh in context if you are passing `PartitionSpec`s",
            r"Using PartitionSpec when you are not under a mesh context is not allowed",
            r"[Cc]ontext mesh cannot be empty\. (?:Please use|Use) `jax\.set_mesh",
            r"[Cc]ontext mesh [^\n]{1,300} (?:should|must) match the mesh ",
            r"Please set a mesh via `jax\.set_mesh`",
            r"`set_mesh` can only be used outside of `jax\.jit`",
            r"'P(?:artitionSpec)?' object has no attribute '_is_concrete'",
        ),
        "A PartitionSpec alone names axes only. The mesh comes from the context, which is empty "
        "here or has another mesh. `with mesh:` no longer sets it for all functions.",
        "Call it in `with jax.set_mesh(mesh):`, or pass `NamedSharding(mesh, PartitionSpec(...))`.",
        (_SHARDED,),
    ),
    Explanation(
        "99",
        "A mesh for another number of devices",
        (
            r"Number of devices \d+ must (?:be >=|equal) the product of mesh_shape",
            r"Failed to find assignment for logical_axis_index",
            r"compiling computation that requires \d+ logical devices, but only \d+ XLA devices",
            Clue(
                r"ValueError: cannot reshape array of size \d+ into shape",
                where=r"\bMesh\(|create_device_mesh|jax\.devices\(\)",
            ),
            r"Length of device assignment \d+ is not equal to the size of the mesh",
            r"sharded dimension must be equal to the number of devices passed to PmapSharding",
        ),
        "The product of the mesh's sizes, or the mapped axis of `jax.pmap`, is not the number of "
        "devices that JAX sees, `jax.device_count()`. A v2 to v5p chip shows one or two devices, "
        "and without a TPU the only device is the processor.",
        'Compute one size: `jax.make_mesh((jax.device_count() // 2, 2), ("data", "model"))`. '
        "For 8 devices without a TPU: `%tpu_connect --framework jax --simulate v5e-8`.",
        ("xai-org/grok-1#248", _SHARDED),
    ),
    Explanation(
        "100",
        "A compiled function gets arguments of another sharding or type",
        (
            r"Computation was compiled for input \w+ that disagree with the ",
            r"Sharding passed to p?jit does not match the sharding on the respective arg",
            r"Memory kinds passed to jax\.jit does not match memory kind",
            r"Argument types differ from the types for which this computation was compiled",
            r"Layout passed to jit does not match the layout on the respective arg",
        ),
        "The function was compiled in advance, or has `in_shardings`, and this argument has "
        "another sharding, shape, type or memory. JAX does not move arguments on its own there.",
        "`x = jax.device_put(x, compiled.input_shardings[0][i])` first, or leave `in_shardings` "
        "out: `jax.jit` then takes each argument's own sharding.",
        (_SHARDED, "https://docs.jax.dev/en/latest/aot.html"),
    ),
    Explanation(
        "101",
        "A collective outside of its axis",
        (
            r"NameError: unbound axis name: ",
            r"NameError: Found an unbound axis name: ",
            Clue(r"KeyError: '\w{1,60}'", where=r'core\.py", line \d+, in get_vma\b'),
            Clue(r"(?m)AssertionError:? *$", where=r'core\.py", line \d+, in pvary\b'),
            Clue(
                r"TypeError: (?:Cannot determine dtype of |Argument '\w{1,60}' of type <class 's)",
                where=r"lax/parallel\.py",
            ),
            r"TypeError: (?:p\w{2,10}|all_\w{4,10})\(\) missing 1 required [^\n]{0,40}'axis_name'",
        ),
        "`jax.lax.psum`, `axis_index` and their like name an axis of `jax.shard_map`, `jax.vmap` "
        "or `jax.pmap`, and the function runs outside of it. Under `jax.jit` alone, arrays are "
        "whole, and XLA adds collectives itself.",
        'Name an axis of the mesh, `jax.lax.psum(x, "data")`, in a function that is mapped: '
        "`jax.shard_map(step, mesh=mesh, in_specs=P('data'), out_specs=P())`. "
        "With `jax.jit` and shardings, write `x.mean()` without a collective.",
        (_SHARD_MAP,),
    ),
    Explanation(
        "144",
        "The compiler chose another sharding than JAX asked for",
        (r"Unexpected XLA sharding override",),
        "JAX promises a result or an argument the sharding behind `!=`, and the compiler gave it "
        "the one before. They disagree about rare shardings, such as `unreduced` of a single "
        "number, and about another memory; it is a fault of JAX.",
        "Leave this sharding out of `in_shardings`, `out_shardings` or `out_sharding`, and change "
        "it after the call: `x = jax.device_put(x, sharding)`, on explicit axes `jax.reshard(x, "
        "P('data'))`. Newer releases of JAX may do it.",
        ("jax-ml/jax#31931",),
    ),
    Explanation(
        "102",
        "Arrays in two memories",
        (r"memory_space of all inputs passed to `\w{1,60}` must be the same",),
        "One operand is in the host's memory (offloaded, `pinned_host`), the other in the "
        "device's.",
        "Bring it over first, inside the function: `x = jax.device_put(x, "
        "jax.memory.Space.Device)`.",
        ("https://docs.jax.dev/en/latest/notebooks/host-offloading.html",),
    ),
    Explanation(
        "132",
        "A checkpoint from another number of devices",
        (
            r"The available devices are different from the devices used to save the checkpoint",
            r"sharding passed to deserialization should be specified, concrete and an instance",
            Clue(r"ValueError: cannot reshape array of size \d+ into shape", where=r"orbax"),
        ),
        "Orbax keeps the mesh with the arrays, and this machine has other devices.",
        "Say where the arrays go: restore with a tree of `jax.ShapeDtypeStruct(shape, dtype, "
        "sharding=...)` on today's mesh "
        "(`orbax.checkpoint.args.StandardRestore(abstract_state)`).",
        ("google/orbax#648", "AI-Hypercomputer/maxtext#3082"),
    ),
)
"""Errors of JAX about where arrays are."""
