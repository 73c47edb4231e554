"""The process in which libtpu compiles: `libtpu` starts this file as a program of its own.

It imports nothing of this package, so that it can run in an environment that has libtpu
and JAX and not TensorFlow. Requests and answers are pickled dicts on the standard streams.

Compiling ahead of time takes JAX's compile-only client of a described topology; only the
HLO comes from elsewhere.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import json
import math
import operator
import os
import pickle
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

try:  # before the first request, as it takes seconds
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
"""Errors that are no verdict: this program and the libraries do not fit each other."""

_MODULE = re.compile(r"\bmodule @(?:\"[^\"]*\"|[\w.$-]+)")

_DONATED = ("jax.buffer_donor", "tf.aliasing_output")


def serve() -> None:
    """Answers requests until there are no more; ends with the process that started this one."""
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libtpu prints is no answer
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):
        # Where memory runs out, this process ends and not the notebook's.
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    with contextlib.suppress(EOFError):
        while True:
            request = pickle.load(requests)
            answer = {"missing": _missing} if _missing else _answer(request)
            pickle.dump(answer, answers, protocol=4)
            answers.flush()


def _end_with(parent: int) -> None:
    """Ends this process, in the midst of compiling too, once its parent is gone."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(0)


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    """Compiles what a request asks for; a refusal is an answer too.

    Args:
        request: Of `module` (a serialized HloModuleProto), `topology`, `chip` (the name
            of a chip's configuration, or empty), `replicas`, `partitions`, `effort`
            (empty for all of it), `text` (whether the program is wanted) and `jax`
            (whether the module is one that was read here); or of a `module` that JAX
            `exported`, to read it; or of packages whose `releases` are wanted.
    """
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
        compiled = _compile(module, devices, request)
        return {**_figures(compiled, request["text"]), "bounded": bounded}
    except _OF_THIS_PROGRAM as error:
        return {"broken": f"{type(error).__name__}: {error}"}
    except Exception as error:  # JAX's own kinds differ from release to release
        return {"error": str(error)}


def _releases(packages: list[str]) -> dict[str, str]:
    """The releases of those packages that say theirs."""
    found = {}
    for name in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


@functools.cache
def _devices(topology: str, chip: str) -> list[Any]:
    config = {"chip_config_name": chip} if chip else {}
    described = topologies.get_topology_desc(platform="tpu", topology_name=topology, **config)
    return list(described.devices)


def _exported(artifact: bytes) -> dict[str, Any]:
    """A module of JAX's whose operations have names of their own, and where they came from."""
    with mlir.make_ir_context(), ir.Location.unknown():
        module = _jax.mlir.deserialize_portable_artifact(artifact)
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
        main = ir.SymbolTable(module.operation)["main"]
        arguments = [
            (getattr(one.location, "name_str", ""), any(key in given for key in _DONATED))
            for one, given in zip(main.arguments, _attributes(main, "arg"), strict=True)
        ]
        meshes = [str(one.operation.attributes["mesh"]) for one in _meshes(module)]
        sizes = [math.prod(map(int, re.findall(r"=(\d+)", mesh))) for mesh in meshes]
        data = mlir.module_to_bytecode(module)
    return {
        "module": data,
        "places": places,
        "arguments": arguments,
        "mesh": max(sizes, default=1),
        "digest": digest,
        "names": (*names, *(name for name, _ in arguments)),
    }


def _digest(module: Any) -> str:
    """A hash of a module without its own name, and without the names and lines in it."""
    text = str(module.operation.get_asm(enable_debug_info=False))
    return hashlib.sha256(_MODULE.sub("module", text, count=1).encode()).hexdigest()


def _frames(where: Any) -> Iterator[tuple[str, int]]:
    """The files and lines of a location, innermost first."""
    if isinstance(where, ir.FileLineColLoc):
        yield where.filename, where.start_line
    elif isinstance(where, ir.NameLoc):
        yield from _frames(where.child_loc)
    elif isinstance(where, ir.CallSiteLoc):
        yield from _frames(where.callee)
        yield from _frames(where.caller)
    elif isinstance(where, ir.FusedLoc):
        yield from next(filter(None, (list(_frames(one)) for one in where.locations)), ())


def _attributes(function: Any, kind: str) -> list[dict[str, Any]]:
    """The attributes of each argument (`"arg"`) or result (`"res"`) of a function, by name."""
    types = function.type.inputs if kind == "arg" else function.type.results
    if f"{kind}_attrs" not in function.attributes:
        return [{} for _ in types]
    listed = function.attributes[f"{kind}_attrs"]
    return [{one.name: one.attr for one in given} for given in listed]


def _meshes(module: Any) -> list[Any]:
    """The operations that declare a mesh of Shardy's."""
    return [one for one in module.body.operations if one.operation.name == "sdy.mesh"]


def _compile(module: Any, devices: list[Any], request: dict[str, Any]) -> Any:
    replicas, partitions = request["replicas"], request["partitions"]
    cores = replicas * partitions
    if request["jax"]:
        replicas, partitions = 1, cores
    options = xla_client.CompileOptions()
    build = options.executable_build_options
    for target in (options, build):
        target.num_replicas, target.num_partitions = replicas, partitions
    grid = np.arange(cores).reshape(replicas, partitions)
    options.device_assignment = xla_client.DeviceAssignment.create(grid)
    if request["jax"]:  # as JAX itself has it
        main = ir.SymbolTable(module.operation)["main"]
        free = {
            kind: [not any("sharding" in key for key in one) for one in _attributes(main, kind)]
            for kind in ("arg", "res")
        }
        build.use_spmd_partitioning = True
        build.use_shardy_partitioner = bool(_meshes(module))
        build.allow_spmd_sharding_propagation_to_parameters = free["arg"]
        build.allow_spmd_sharding_propagation_to_output = free["res"]
    elif partitions > 1:
        build.use_spmd_partitioning = True
        build.allow_spmd_sharding_propagation_to_output = [True]
        build.allow_spmd_sharding_propagation_to_parameters = [True]
    if request["effort"]:
        options.env_option_overrides = [("xla_optimization_level", request["effort"])]
    with module.context:
        listed = xla_client.DeviceList(tuple(devices[:cores]))
        return devices[0].client.compile(module, listed, options)


def _figures(compiled: Any, with_text: bool) -> dict[str, Any]:
    memory = compiled.get_compiled_memory_stats()
    cost, text = {}, ""
    with contextlib.suppress(Exception):
        cost = {key: value for key, value in compiled.cost_analysis().items() if "{" not in key}
    if with_text:
        # Fails for some programs of v5p, v6e and tpu7x, which compile all the same.
        with contextlib.suppress(Exception):
            text = compiled.hlo_modules()[0].to_string()
    return {
        "peak": memory.peak_memory_in_bytes,
        "arguments": memory.argument_size_in_bytes,
        "outputs": memory.output_size_in_bytes,
        "aliased": memory.alias_size_in_bytes,
        "code": memory.generated_code_size_in_bytes,
        "text": text,
        "cost": cost,
        "kernels": _kernels(text),
    }


_KERNEL = re.compile(
    r'%?([\w.-]+) = [^\n]*custom_call_target="tpu_custom_call".*?backend_config=', re.DOTALL
)
_READABLE = "builtin.module(mosaic-serde{serialize=false})"
"""The pass that makes of a kernel's code as it is stored what its dialect has today."""


def _kernels(text: str) -> dict[str, tuple[Any, ...]]:
    """The work of each Pallas kernel whose code can be read."""
    found = {}
    for match in _KERNEL.finditer(text):
        # Its code is MLIR of a dialect that libtpu reads; nothing promises that we can too.
        with contextlib.suppress(Exception):
            from jax._src.lib import tpu
            from jax._src.lib.mlir import passmanager

            config = json.JSONDecoder().raw_decode(text, match.end())[0]["custom_call_config"]
            with mlir.make_ir_context() as context:
                tpu.register_dialect(context)
                context.allow_unregistered_dialects = True  # what it is stored in
                module = ir.Module.parse(base64.b64decode(config["body"]))
                passmanager.PassManager.parse(_READABLE).run(module.operation)
                work = _KernelWork(module).work()
            declared = config.get("cost_estimate", {})
            declared = tuple(float(declared.get(key, 0)) for key in ("flops", "bytes_accessed"))
            found[match[1]] = *work, declared
    return found


_PASSES_OF_FLOAT32 = 6
_FREE = ("constant", "shape_cast", "bitcast", "load", "store")
"""Parts of the names of operations that take no time, or have a unit of their own."""
_SLOW = ("math.", "arith.divf", "vector.multi_reduction", "tpu.transpose", "tpu.rotate")
"""Operations of several cycles a register: functions, and what goes across lanes."""
_LANES = 1024
"""Numbers in a vector register."""
_FAST_CYCLES, _SLOW_CYCLES = (0.25, 1.0), (1.0, 10.0)
"""Of a register, at least and at most; the vector unit starts four operations in a cycle."""
_ARITHMETIC: dict[str, Callable[..., int]] = {
    "arith.addi": operator.add,
    "arith.subi": operator.sub,
    "arith.muli": operator.mul,
    "arith.index_cast": int,
}


class _KernelWork:
    """Counts the work in the code of a Pallas kernel, at least and at most."""

    def __init__(self, module: Any) -> None:
        operations = list(module.body.operations)
        self._functions = {_text(one, "sym_name").strip('"'): one for one in operations}
        self._kernel = next(one for one in operations if "scalar_prefetch" in one.attributes)
        self._flops, self._cycles, self._own_copies = np.zeros(2), np.zeros(2), np.zeros(2)

    def work(self) -> tuple[Any, ...]:
        """Steps of the grid; flops, cycles and bytes of all of them, at least and at most."""
        grid = []
        if bounds := _text(self._kernel, "iteration_bounds"):  # `array<i64: 8, 8>`
            grid = [int(part) for part in re.findall(r"-?\d+", bounds.partition(":")[2])]
        if min(grid, default=1) < 1:
            raise ValueError("a grid whose size is not known")
        steps = math.prod(grid)
        for block in self._kernel.regions[0].blocks:
            self._count(block, np.full(2, float(steps)))
        copied = self._copied(grid) + self._own_copies
        return steps, *(tuple(one.tolist()) for one in (self._flops, self._cycles, copied))

    def _count(self, block: Any, times: Any) -> None:
        """Adds the work of a block that runs so many times, at least and at most."""
        for operation in block.operations:
            name, inner = operation.name, times
            if name == "scf.if":
                inner = times * (0, 1)
            elif name == "scf.for":
                low, high, step = map(_constant, list(operation.operands)[:3])
                if low is not None and high is not None and step:
                    inner = times * max((high - low) // step, 0)
            for region in operation.regions:
                for one in region.blocks:
                    self._count(one, inner)
            if name in ("tpu.matmul", "vector.contract"):
                self._flops += 2 * times * _multiplications(operation)
            elif name == "tpu.enqueue_dma":
                ends = [one for one in operation.operands if "vmem" not in str(one.type)]
                self._own_copies += times * sum(map(_bytes, ends))
            elif not any(part in name for part in _FREE):
                values = [*operation.operands, *operation.results]
                sizes = [math.prod(shape) for one in values if (shape := _shape(one))]
                cycles = _SLOW_CYCLES if name.startswith(_SLOW) else _FAST_CYCLES
                self._cycles += times * math.ceil(max(sizes, default=0) / _LANES) * cycles

    def _copied(self, grid: list[int]) -> Any:
        """Bytes of the blocks that the grid copies: each once, and each as often as it may change.

        The last axis of the grid runs fastest. A block is copied anew when its place changes,
        and that takes an axis on which the place depends.
        """
        arguments = list(self._kernel.regions[0].blocks[0].arguments)
        first = len(grid) + int(_text(self._kernel, "scalar_prefetch").split(" ")[0])
        last = len(arguments) - int(_text(self._kernel, "scratch_operands").split(" ")[0])
        windows: list[Any] = [{} for _ in arguments]
        if "window_params" in self._kernel.attributes:
            listed = ir.ArrayAttr(self._kernel.attributes["window_params"])
            windows = [ir.DictAttr(one) for one in listed]
        copied = np.zeros(2)
        for window, argument in zip(windows, arguments[first:last], strict=False):
            axes: list[int] = []
            if "transform_indices" in window:
                function = self._functions[str(window["transform_indices"]).strip('@"')]
                axes = [axis for axis in _arguments_of(function) if axis < len(grid)]
            elif "vmem" not in str(argument.type):
                continue  # the kernel copies it itself
            once = math.prod(grid[axis] for axis in axes)
            often = math.prod(grid[: max(axes, default=-1) + 1])
            copied += _bytes(argument) * np.array((once, often))
        return copied


def _arguments_of(function: Any) -> set[int]:
    """The arguments on which the results of a function depend, by number."""
    pending = list(list(function.regions[0].blocks[0].operations)[-1].operands)
    found: set[int] = set()
    while pending:
        value = pending.pop()
        if isinstance(value, ir.BlockArgument):
            found.add(value.arg_number)
        else:
            pending += list(value.owner.operands)
    return found


def _multiplications(product: Any) -> float:
    """Of bfloat16 that take as long as a product."""
    shapes = [_shape(product.operands[index]) for index in range(3)]
    batch = shapes[0][0] if len(shapes[0]) == 3 else 1
    count = math.sqrt(math.prod(math.prod(shape) for shape in shapes) / batch)
    if "fp32" in _text(product, "precision"):
        return count * _PASSES_OF_FLOAT32
    return count / 2 if "xi8>" in str(product.operands[0].type) else count


def _constant(value: Any) -> int | None:
    """The number that a value has for all steps; None where it depends on anything."""
    name = getattr(value.owner, "name", "")
    if name == "arith.constant":
        return int(_text(value.owner, "value").split(" ")[0])
    if name not in _ARITHMETIC:
        return None
    numbers = [_constant(one) for one in value.owner.operands]
    return None if None in numbers else _ARITHMETIC[name](*numbers)


def _shape(value: Any) -> tuple[int, ...]:
    """The sizes of a vector; empty for anything else."""
    found = re.match(r"vector<([\dx]+)x", str(value.type))
    return tuple(int(part) for part in found[1].split("x")) if found else ()


def _bytes(value: Any) -> float:
    """The size of a place in memory, whose type is `memref<8x128xf32, …>`."""
    found = re.match(r"memref<([\dx]*)x[a-z]+(\d+)", str(value.type))
    return math.prod(map(int, found[1].split("x"))) * int(found[2]) / 8 if found else 0.0


def _text(operation: Any, key: str) -> str:
    return str(operation.attributes[key]) if key in operation.attributes else ""


_MARK = re.compile(r"/(CrossReplicaSum|CollectivePermute|AllToAll|Resize\w+)/(all|[\d_-]+)\"")
"""How `virtual/strict/stand_ins.py` names a barrier that stands for another operation."""

_NAMED = "tpunb_generator"
"""Its attribute of operations that name the generator of their random numbers."""


_REWRITTEN = frozenset(
    {"mhlo.copy", "stablehlo.all_reduce"}
    | {"stablehlo.optimization_barrier", "stablehlo.rng_bit_generator"}
)


def _rewrite(module: Any, replicas: int) -> bool:
    """Makes of a module that TensorFlow lowered for a CPU one that a TPU's compiler takes.

    Returns:
        Whether some of its sizes have only a bound.
    """
    found: list[Any] = []
    bounded = False

    def see(operation: Any) -> Any:  # a walk must not change any
        nonlocal bounded
        bounded |= any("stablehlo.bounds" in str(result.type) for result in operation.results)
        if operation.name in _REWRITTEN:
            found.append(operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(see)
    for operation in found:
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
                    made = _resized(operation, kind, text)
                else:
                    made = _collective(operation, kind, text, replicas)
                list(operation.results)[-1].replace_all_uses_with(made)
                operation.erase()
    return bounded


def _collective(barrier: Any, kind: str, text: str, replicas: int) -> Any:
    """The collective that a barrier stands for.

    Its text has the groups or pairs of replicas, such as `"0-1_2-3"`, or is `"all"`.
    """
    value = barrier.operands[0]
    rows = [] if text == "all" else [row.split("-") for row in text.split("_")]
    given = np.array([[int(replica) for replica in row] for row in rows], np.int64)
    if kind == "CollectivePermute":
        pairs = given.tolist()
        # One that sends to all is what the virtual TPU makes of a broadcast: no permutation.
        if len({source for source, _ in pairs}) < len(pairs):
            pairs = [[target, (target + 1) % len(pairs)] for _, target in pairs]
        inside = [pair for pair in pairs if max(pair) < replicas]
        return hlo.collective_permute(value, _dense(inside or [[0, 0]]))
    groups = _regrouped(given if rows else np.arange(replicas).reshape(1, -1), replicas)
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
    """The groups on another number of replicas than the function was traced for."""
    traced = groups.size
    if traced in (0, replicas):
        return groups
    if len(groups) == 1:
        return np.arange(replicas).reshape(1, -1)
    if replicas % traced:
        raise ValueError(
            f"Groups of the {traced} replicas that it was traced for do not divide the "
            f"{replicas} of this TPU."
        )
    return np.concatenate([groups + begin for begin in range(0, replicas, traced)])


def _dense(numbers: Any) -> Any:
    return ir.DenseElementsAttr.get(np.ascontiguousarray(numbers, np.int64))


def _generate(operation: Any) -> None:
    """Replaces a CPU's generator by the chip's, whose state is a number shorter.

    A CPU scrambles the seed, which a TPU takes as it is.
    """
    tensor = ir.RankedTensorType
    old = operation.operands[0]
    number = tensor(old.type).element_type
    # The seed is the two numbers that the state was made of.
    seed, pending, seen = None, [old], {old}
    while pending and seed is None:
        value = pending.pop()
        if str(value.type) == "tensor<2xi32>":
            seed = value
        operands = getattr(value.owner, "operands", ())  # a block has none
        pending += [one for one in operands if one not in seen]
        seen.update(operands)
    if seed is None:  # a key and a counter were given
        state = hlo.slice(old, [0], [2], [1])
    else:
        one = tensor.get([1], number)
        key = hlo.reshape(one, hlo.bitcast_convert(tensor.get([], number), seed))
        zeros = ir.DenseElementsAttr.get(np.zeros(1, np.uint64), type=number, shape=[1])
        state = hlo.concatenate([key, hlo.constant(zeros)], 0)
    algorithm = ir.Attribute.parse("#stablehlo<rng_algorithm DEFAULT>")
    _, bits = hlo.rng_bit_generator(state.type, operation.results[1].type, algorithm, state)
    operation.results[1].replace_all_uses_with(bits)
    operation.results[0].replace_all_uses_with(old)  # stateless: XLA drops what takes it
    operation.erase()


def _resized(barrier: Any, kernel: str, flags: str) -> Any:
    """Images that a TPU's kernel has resized, or their gradient, which a barrier stands for."""

    def call(value: Any, result: Any) -> Any:
        config = ir.StringAttr.get(f'"{flags}"')
        return hlo.CustomCallOp([result], [value], kernel, backend_config=config).results[0]

    image, like = barrier.operands
    before, after = (list(ir.RankedTensorType(one.type).shape) for one in (image, like))
    if before[1:3] == after[1:3]:
        return hlo.convert(like.type, image)
    if kernel.endswith("Grad"):
        if before[1] // after[1] > 3 and before[2] // after[2] > 3:  # rows after columns
            columns = [after[0], before[1], *after[2:]]
            element = ir.RankedTensorType(like.type).element_type
            image = call(image, ir.RankedTensorType.get(columns, element))
    elif before[1:3] == [1, 1]:
        return like
    return call(image, like.type)


if __name__ == "__main__":
    serve()
