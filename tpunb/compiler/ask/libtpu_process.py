"""The process in which libtpu compiles. `libtpu` starts this file as a program.

It imports nothing of tpunb, so that it can run in an environment with libtpu and JAX but without
TensorFlow. Requests and answers are dicts.

JAX's compile-only client of a described topology compiles ahead of time. Only the HLO comes from
elsewhere.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import re
import runpy
import tempfile
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

try:  # import before the first request, because it takes seconds
    import numpy as np
    from jax._src.interpreters import mlir
    from jax._src.lib import _jax, xla_client
    from jax._src.lib.mlir import ir
    from jax._src.lib.mlir.dialects import hlo
    from jax.experimental import topologies
except ImportError as error:
    _missing = str(error)
else:
    _missing = ""

_OF_THIS_PROGRAM = (AttributeError, ImportError, LookupError, NameError, TypeError)
"""Errors that are not a verdict: this program and the libraries do not fit each other."""

_MODULE = re.compile(r"\bmodule @(?:\"[^\"]*\"|[\w.$-]+)")

_BYTECODE = b"ML\xefR"
"""The first bytes of MLIR's bytecode."""

_TENSOR = re.compile(r"tensor<((?:\d+x)*)(?:u?i|s?i|bf|f)(\d+)(?:E\w+)?(?:, .*)?>")
"""A type with fixed sizes, its sizes and the bits of its numbers."""

_DONATED = ("jax.buffer_donor", "tf.aliasing_output")


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    """Compile the module of a request. A refusal is an answer too.

    Args:
        request: A `module` (a serialized HloModuleProto) to compile, with `topology`, `chip`,
            `replicas`, `partitions`, `effort`, `text` and `jax`. `chip` is the name of a chip's
            configuration, or empty. An empty `effort` is full effort. `text` asks for the program's
            text, and `jax` says that the module was read here. `replicated`, if it is there, says
            that the module is one replica's. `options` are the user's for XLA. `refused_text`, if
            it is there, asks for the text of a program that does not fit. Or a `module` that JAX
            `exported`, to read it. Or packages, to return their `releases`.
    """
    if _missing:
        return {"missing": _missing}
    try:
        if "releases" in request:
            return _releases(request["releases"])
        if request.get("exported"):
            return _exported(request["module"])
        devices = _devices(request["topology"], request["chip"])
        bounded, data = False, request["module"]
        if not request["jax"]:
            data = _jax.mlir.xla_computation_to_mlir_module(xla_client.XlaComputation(data))
        with mlir.make_ir_context():
            module = ir.Module.parse(data)
            if not request["jax"]:
                bounded = _rewrite(module, request["replicas"])
        if request.get("refused_text"):
            return _refused(module, devices, request)
        compiled = _scheduled if request.get("schedule") else _accepted
        return {**compiled(module, devices, request), "bounded": bounded}
    except _OF_THIS_PROGRAM as error:
        return {"broken": f"{type(error).__name__}: {error}"}
    except Exception as error:  # JAX's own exceptions differ from release to release
        return {"error": str(error)}


def _releases(packages: list[str]) -> dict[str, str]:
    """Return the releases of the installed packages."""
    releases = {}
    for name in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            releases[name] = metadata.version(name)
    return releases


@functools.cache
def _devices(topology: str, chip: str) -> list[Any]:
    config = {"chip_config_name": chip} if chip else {}
    described = topologies.get_topology_desc(platform="tpu", topology_name=topology, **config)
    return list(described.devices)


def _exported(artifact: bytes) -> dict[str, Any]:
    """Return a JAX module whose operations have unique names, and the places they come from."""
    with mlir.make_ir_context(), ir.Location.unknown():
        module = _module(artifact)
        digest = _digest(module)
        names: list[str] = []
        places: list[list[tuple[str, int]]] = []

        def mark(operation: Any) -> Any:
            where = operation.location
            if isinstance(where, ir.NameLoc):
                name = f"{where.name_str}~~{len(places)}"
                operation.location = ir.Location.name(name, where.child_loc)
                names.append(name)
                places.append(list(_frames(where)))
            return ir.WalkResult.ADVANCE

        module.operation.walk(mark)
        main = _main(module)
        arguments = [
            (getattr(argument.location, "name_str", ""), any(key in attributes for key in _DONATED))
            for argument, attributes in zip(main.arguments, _attributes(main, "arg"), strict=True)
        ]
        meshes = [_axes(mesh) for mesh in _meshes(module)]
        sizes = [math.prod(size for _, size in mesh) for mesh in meshes]
        data = mlir.module_to_bytecode(module)
    return {
        "module": data,
        "places": places,
        "arguments": arguments,
        "meshes": sorted(set(sizes) - {1}),
        "axes": next((mesh for mesh in meshes if math.prod(size for _, size in mesh) > 1), []),
        "devices": [_count(module, f"mhlo.num_{kind}") for kind in ("replicas", "partitions")],
        "open": next((str(kind) for kind in main.type.inputs if "?" in str(kind)), ""),
        "bytes": max(sum(map(_size, kinds)) for kinds in (main.type.inputs, main.type.results)),
        "shapes": [_sizes(kind) for kind in (*main.type.inputs, *main.type.results)],
        "digest": digest,
        "names": (*names, *(name for name, _ in arguments)),
    }


def _module(exported: bytes) -> Any:
    """Return the module that is exported as a portable artifact, as other bytecode, or as text."""
    if exported.startswith(_BYTECODE):
        with contextlib.suppress(ValueError, RuntimeError):
            return _jax.mlir.deserialize_portable_artifact(exported)
    return ir.Module.parse(exported)


def _main(module: Any) -> Any:
    """Return a module's function `main`, which is the program."""
    functions = {
        each.attributes["sym_name"].value: each
        for each in module.body.operations
        if each.operation.name == "func.func"
    }
    if "main" not in functions:
        listed = ", ".join(functions) or "no function"
        raise ValueError(f"it has no function @main, but {listed}")
    return functions["main"]


def _count(module: Any, name: str) -> int:
    """Return an attribute of a module that is a number; 1 if the module does not have it."""
    attributes = module.operation.attributes
    return int(attributes[name].value) if name in attributes else 1


def _size(kind: Any) -> int:
    """Return the bytes of a tensor by its type; 0 if they are not known."""
    match = _TENSOR.fullmatch(str(kind))
    if match is None:
        return 0
    return math.prod(_sizes(kind)) * max(int(match[2]) // 8, match[2] == "1")


def _sizes(kind: Any) -> list[int]:
    """Return the sizes of a tensor by its type; none if they are not known."""
    match = _TENSOR.fullmatch(str(kind))
    return [int(size) for size in match[1].split("x") if size] if match else []


def _digest(module: Any) -> str:
    """Return a hash of a module without its own name and without names and lines in it."""
    text = str(module.operation.get_asm(enable_debug_info=False))
    return hashlib.sha256(_MODULE.sub("module", text, count=1).encode()).hexdigest()


def _frames(where: Any) -> Iterator[tuple[str, int]]:
    """Yield the files and lines of a location, innermost first."""
    if isinstance(where, ir.FileLineColLoc):
        yield where.filename, where.start_line
    elif isinstance(where, ir.NameLoc):
        yield from _frames(where.child_loc)
    elif isinstance(where, ir.CallSiteLoc):
        yield from _frames(where.callee)
        yield from _frames(where.caller)
    elif isinstance(where, ir.FusedLoc):
        yield from next(filter(None, (list(_frames(part)) for part in where.locations)), ())


def _attributes(function: Any, kind: str) -> list[dict[str, Any]]:
    """Return the attributes of a function's arguments (`"arg"`) or results (`"res"`) by name."""
    types = function.type.inputs if kind == "arg" else function.type.results
    if f"{kind}_attrs" not in function.attributes:
        return [{} for _ in types]
    listed = function.attributes[f"{kind}_attrs"]
    return [{entry.name: entry.attr for entry in attributes} for attributes in listed]


def _axes(mesh: Any) -> list[tuple[str, int]]:
    """Return the names and sizes of a mesh's axes. The devices are in the order of the mesh."""
    text = str(mesh.operation.attributes["mesh"])
    return [(name, int(size)) for name, size in re.findall(r'"([^"]+)"=(\d+)', text)]


def _meshes(module: Any) -> list[Any]:
    """Return the operations that declare a Shardy mesh."""
    return [each for each in module.body.operations if each.operation.name == "sdy.mesh"]


_OUT_OF_MEMORY = "*.oom_intermediate_module.txt"
"""The file with the scheduled program that libtpu refuses for its memory (libtpu 0.0.52)."""


def _refused(module: Any, devices: list[Any], request: dict[str, Any]) -> dict[str, Any]:
    """Return the error about a program that does not fit, and the program's text if there is one.

    The whole answer is an error with an empty text if the program fits after all.
    """
    with tempfile.TemporaryDirectory() as folder:
        message = "It fits."
        try:
            _compile(module, devices, request, _dumped_to(folder))
        except _OF_THIS_PROGRAM:
            raise
        except Exception as error:
            message = str(error)
        text = _newest(folder, _OUT_OF_MEMORY)
    return {"error": message, "text": text}


_PRODUCT = """
func.func public @main(%a: tensor<8192x512xbf16>, %b: tensor<512x8192xbf16>)
    -> tensor<8192x8192xbf16> {
  %c = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
      : (tensor<8192x512xbf16>, tensor<512x8192xbf16>) -> tensor<8192x8192xbf16>
  return %c : tensor<8192x8192xbf16>
}
"""
"""A product whose cycles, steps and bytes are known: `scheduled_time` compares them."""


def _scheduled(module: Any, devices: list[Any], request: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of a program, of its kernels' schedules, and of a known product's.

    The request names the folder to which this process was told to write schedules.
    """
    folder = Path(request["schedule"])
    product = _scheduled_product(request["topology"].partition(":")[0], folder)
    try:
        figures = _accepted(module, devices, request)
        return {**figures, "schedule": _schedules(folder), "product": product}
    finally:
        _remove_schedules(folder)


@functools.cache
def _scheduled_product(family: str, folder: Path) -> dict[str, Any]:
    request = {"replicas": 1, "partitions": 1, "jax": True, "effort": ""}
    try:
        with mlir.make_ir_context():
            _compile(ir.Module.parse(_PRODUCT), _devices(f"{family}:1x1", ""), request)
        return _schedules(folder)
    finally:
        _remove_schedules(folder)


def _schedules(folder: Path) -> dict[str, Any]:
    kernels: dict[str, Any] = _reader()["kernels"](folder)
    return kernels


@functools.cache
def _reader() -> dict[str, Any]:
    return runpy.run_path(str(Path(__file__).parents[1] / "read" / "bundles.py"))


def _remove_schedules(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


_WITH_SPARSE_CORES = ("v5p", "v6e", "tpu7x")
_SCHEDULED = "*.after_codegen.txt"
"""The file with the scheduled program. The client cannot read a program that leaves gathers to the
SparseCores: "async-update instruction should have 1 operands but sees 3" (jaxlib 0.10.2)."""


def _accepted(module: Any, devices: list[Any], request: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of a program that compiles, and its text if it was asked for."""
    if not (request["text"] and request["topology"].startswith(_WITH_SPARSE_CORES)):
        return _figures(_compile(module, devices, request), request["text"])
    with tempfile.TemporaryDirectory() as folder:
        compiled = _compile(module, devices, request, _dumped_to(folder))
        figures = _figures(compiled, with_text=True)
        if not figures["text"]:
            figures["text"] = _newest(folder, _SCHEDULED)
    return figures


def _dumped_to(folder: str) -> list[tuple[str, Any]]:
    return [("xla_dump_to", folder), ("xla_dump_hlo_as_text", True)]


def _newest(folder: str, pattern: str) -> str:
    """Return the text of the last file of a pattern, or an empty string."""
    files = sorted(Path(folder).glob(pattern))
    return files[-1].read_text(encoding="utf-8", errors="replace") if files else ""


def _compile(
    module: Any,
    devices: list[Any],
    request: dict[str, Any],
    overrides: Sequence[tuple[str, Any]] = (),
) -> Any:
    replicas, partitions = request["replicas"], request["partitions"]
    cores = replicas * partitions
    partitioned = request["jax"] and not request.get("replicated")
    if partitioned:
        replicas, partitions = 1, cores
    options = xla_client.CompileOptions()
    build = options.executable_build_options
    for target in (options, build):
        target.num_replicas, target.num_partitions = replicas, partitions
    grid = np.arange(cores).reshape(replicas, partitions)
    options.device_assignment = xla_client.DeviceAssignment.create(grid)
    if request["jax"]:  # the same options as JAX's own
        main = ir.SymbolTable(module.operation)["main"]
        free = {
            kind: [
                not any("sharding" in key for key in attributes)
                for attributes in _attributes(main, kind)
            ]
            for kind in ("arg", "res")
        }
        build.use_spmd_partitioning = partitioned
        build.use_shardy_partitioner = bool(_meshes(module))
        build.allow_spmd_sharding_propagation_to_parameters = free["arg"]
        build.allow_spmd_sharding_propagation_to_output = free["res"]
    elif partitions > 1:
        build.use_spmd_partitioning = True
        build.allow_spmd_sharding_propagation_to_output = [True]
        build.allow_spmd_sharding_propagation_to_parameters = [True]
    effort = [("xla_optimization_level", request["effort"])] if request["effort"] else []
    if chosen := [*effort, *request.get("options", ()), *overrides]:
        options.env_option_overrides = chosen
    with module.context:
        listed = xla_client.DeviceList(tuple(devices[:cores]))
        return devices[0].client.compile(module, listed, options)


def _figures(compiled: Any, with_text: bool) -> dict[str, Any]:
    memory = compiled.get_compiled_memory_stats()
    text = ""
    if with_text:
        # This fails for some programs of v5p, v6e and tpu7x, although they compile.
        with contextlib.suppress(Exception):
            text = compiled.hlo_modules()[0].to_string()
    return {
        "peak": memory.peak_memory_in_bytes,
        "arguments": memory.argument_size_in_bytes,
        "outputs": memory.output_size_in_bytes,
        "aliased": memory.alias_size_in_bytes,
        "code": memory.generated_code_size_in_bytes,
        "text": text,
    }


_MARK = re.compile(r"/(CrossReplicaSum|CollectivePermute|AllToAll|Resize\w+)/(all|[\d_-]+)\"")
"""The name that `strict/stand_ins.py` gives to a barrier that replaces an operation."""

_NAMED = "tpunb_generator"
"""The frontend attribute of operations that name the generator of their random numbers."""


_REWRITTEN = frozenset(
    {"mhlo.copy", "stablehlo.all_reduce"}
    | {"stablehlo.optimization_barrier", "stablehlo.rng_bit_generator"}
)


def _rewrite(module: Any, replicas: int) -> bool:
    """Turn a module that TensorFlow lowered for a CPU into a module for a TPU's compiler.

    Returns:
        Whether some of its sizes are only bounded.
    """
    to_rewrite: list[Any] = []
    bounded = False

    def see(operation: Any) -> Any:  # collect only: a walk must not change operations
        nonlocal bounded
        bounded |= any("stablehlo.bounds" in str(result.type) for result in operation.results)
        if operation.name in _REWRITTEN:
            to_rewrite.append(operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(see)
    for operation in to_rewrite:
        name = operation.name
        with ir.InsertionPoint(operation), operation.location:
            if name == "mhlo.copy":
                operation.results[0].replace_all_uses_with(operation.operands[0])
                operation.erase()
            elif name == "stablehlo.all_reduce":
                groups = np.array(operation.attributes["replica_groups"])
                operation.attributes["replica_groups"] = _dense(_regrouped(groups, replicas))
            elif name == "stablehlo.rng_bit_generator":
                named = _NAMED in str(operation.attributes.get("mhlo.frontend_attributes", ""))
                if not named and "PHILOX" in str(operation.attributes["rng_algorithm"]):
                    _generate(operation)
            elif mark := _MARK.search(str(operation.location)):
                kind, text = mark[1], mark[2]
                if kind.startswith("Resize"):
                    replacement = _resized(operation, kind, text)
                else:
                    replacement = _collective(operation, kind, text, replicas)
                list(operation.results)[-1].replace_all_uses_with(replacement)
                operation.erase()
    return bounded


def _collective(barrier: Any, kind: str, text: str, replicas: int) -> Any:
    """Return the collective that a barrier replaces.

    The text has the groups or pairs of replicas, such as `"0-1_2-3"`, or is `"all"`.
    """
    value = barrier.operands[0]
    rows = [] if text == "all" else [row.split("-") for row in text.split("_")]
    listed = np.array([[int(replica) for replica in row] for row in rows], np.int64)
    if kind == "CollectivePermute":
        pairs = listed.tolist()
        # A replica that sends to all is the virtual TPU's form of a broadcast, not a permutation.
        if len({source for source, _ in pairs}) < len(pairs):
            pairs = [[target, (target + 1) % len(pairs)] for _, target in pairs]
        inside = [pair for pair in pairs if max(pair) < replicas]
        return hlo.collective_permute(value, _dense(inside or [[0, 0]]))
    groups = _regrouped(listed if rows else np.arange(replicas).reshape(1, -1), replicas)
    if kind == "AllToAll":
        count = groups.shape[1]
        shape = ir.RankedTensorType(value.type).shape
        axis = next((axis for axis, size in enumerate(shape) if size % count == 0), 0)
        return hlo.AllToAllOp([value], axis, axis, count, _dense(groups)).results[0]
    total = hlo.AllReduceOp([value.type], [value], _dense(groups))
    number = ir.RankedTensorType.get([], ir.RankedTensorType(value.type).element_type)
    block = total.regions[0].blocks.append(number, number, arg_locs=[barrier.location] * 2)
    with ir.InsertionPoint(block):
        hlo.return_([hlo.add(*block.arguments)])
    return total.results[0]


def _regrouped(groups: Any, replicas: int) -> Any:
    """Return the groups for another number of replicas than the function was traced for."""
    traced = groups.size
    if traced in (0, replicas):
        return groups
    if len(groups) == 1:
        return np.arange(replicas).reshape(1, -1)
    if replicas % traced:
        raise ValueError(
            f"The function was traced with groups of {traced} replicas, which do not divide the "
            f"{replicas} replicas of this TPU."
        )
    return np.concatenate([groups + begin for begin in range(0, replicas, traced)])


def _dense(numbers: Any) -> Any:
    return ir.DenseElementsAttr.get(np.ascontiguousarray(numbers, np.int64))


def _generate(operation: Any) -> None:
    """Replace a CPU's generator with the chip's, whose state is shorter by a number.

    A CPU scrambles the seed. A TPU uses it unchanged.
    """
    tensor = ir.RankedTensorType
    old = operation.operands[0]
    number = tensor(old.type).element_type
    # The seed is the pair of numbers that the state was computed from.
    seed, pending, visited = None, [old], {old}
    while pending and seed is None:
        value = pending.pop()
        if str(value.type) == "tensor<2xi32>":
            seed = value
        operands = getattr(value.owner, "operands", ())  # a block has none
        pending += [operand for operand in operands if operand not in visited]
        visited.update(operands)
    if seed is None:  # the user gave a key and a counter
        state = hlo.slice(old, [0], [2], [1])
    else:
        single = tensor.get([1], number)
        key = hlo.reshape(single, hlo.bitcast_convert(tensor.get([], number), seed))
        zeros = ir.DenseElementsAttr.get(np.zeros(1, np.uint64), type=number, shape=[1])
        state = hlo.concatenate([key, hlo.constant(zeros)], 0)
    algorithm = ir.Attribute.parse("#stablehlo<rng_algorithm DEFAULT>")
    _, bits = hlo.rng_bit_generator(state.type, operation.results[1].type, algorithm, state)
    operation.results[1].replace_all_uses_with(bits)
    operation.results[0].replace_all_uses_with(old)  # it is stateless: XLA drops the new state
    operation.erase()


def _resized(barrier: Any, kernel: str, flags: str) -> Any:
    """Return images resized by a TPU's kernel, or their gradient, instead of a barrier."""

    def call(value: Any, result: Any) -> Any:
        config = ir.StringAttr.get(f'"{flags}"')
        return hlo.CustomCallOp([result], [value], kernel, backend_config=config).results[0]

    image, like = barrier.operands
    before, after = (list(ir.RankedTensorType(value.type).shape) for value in (image, like))
    if before[1:3] == after[1:3]:
        return hlo.convert(like.type, image)
    if kernel.endswith("Grad"):
        if before[1] // after[1] > 3 and before[2] // after[2] > 3:  # first columns, then rows
            columns = [after[0], before[1], *after[2:]]
            element = ir.RankedTensorType(like.type).element_type
            image = call(image, ir.RankedTensorType.get(columns, element))
    elif before[1:3] == [1, 1]:
        return like
    return call(image, like.type)


if __name__ == "__main__":
    side = runpy.run_path(str(Path(__file__).parents[2] / "_util" / "child_side.py"))
    side["serve"](lambda: _answer)
