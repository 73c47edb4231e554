"""The process in which libtpu compiles: `libtpu` starts this file as a program of its own.

It imports nothing of this package, so that it can run in an environment that has libtpu
and JAX and not TensorFlow. Requests and answers are pickled dicts on the standard streams.

Compiling ahead of time takes JAX's compile-only client of a described topology; only the
HLO comes from elsewhere.
"""

from __future__ import annotations

import base64
import contextlib
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
from pathlib import Path
from typing import Any

_OF_THIS_PROGRAM = (AttributeError, ImportError, LookupError, NameError, TypeError)
"""Errors that are no verdict: this program and the libraries do not fit each other."""

_MARK = re.compile(r"/(CrossReplicaSum|CollectivePermute|AllToAll|Resize\w+)/(all|[\d_-]+)\"")
"""How `virtual/strict/stand_ins.py` names a barrier that stands for another operation."""

_DONATED = ("jax.buffer_donor", "tf.aliasing_output")

_NAMED = "tpunb_generator"
"""Its attribute of operations that name the generator of their random numbers."""


def serve() -> None:
    """Answers requests until there are no more; ends with the process that started this one."""
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libtpu prints is no answer
    _yield_to_others()
    parent = os.getppid()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    compiler = _compiler()
    while (request := _read(requests)) is not None:
        answer = {"missing": compiler} if isinstance(compiler, str) else compiler.answer(request)
        pickle.dump(answer, answers, protocol=4)
        answers.flush()


def _compiler() -> Compiler | str:
    """The compiler, or what is missing for it; before it is asked, as importing takes seconds."""
    try:
        return Compiler()
    except ImportError as error:
        return str(error)


def _read(stream: Any) -> Any:
    try:
        return pickle.load(stream)
    except EOFError:
        return None


def _end_with(parent: int) -> None:
    """Ends this process, in the midst of compiling too, once its parent is gone."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(0)


def _yield_to_others() -> None:
    """Leaves no core files; where memory runs out, this process ends and not the notebook's."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


class Compiler:
    """libtpu behind JAX's client, with the topologies that were described so far."""

    def __init__(self) -> None:
        import jax
        import jaxlib
        import numpy as np
        from jax._src.interpreters import mlir
        from jax._src.lib import _jax, xla_client
        from jax._src.lib.mlir import ir
        from jax.experimental import topologies

        self.versions = {"jax": jax.__version__, "jaxlib": jaxlib.__version__}
        self._np, self._mlir, self._jax, self._client, self._ir = np, mlir, _jax, xla_client, ir
        self._describe = topologies.get_topology_desc
        self._topologies: dict[tuple[str, str], Any] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Compiles what a request asks for; a refusal is an answer too.

        Args:
            request: Of `module` (a serialized HloModuleProto), `topology`, `chip` (the name
                of a chip's configuration, or empty), `replicas`, `partitions`, `effort`
                (empty for all of it), `text` (whether the program is wanted) and `jax`
                (whether the module is one that was read here); or of a `module` that JAX
                `exported`, to read it.
        """
        begin = time.monotonic()
        try:
            if request.get("exported"):
                answer = self._exported(request["module"])
            else:
                devices = self._devices(request["topology"], request["chip"])
                text, bounded = self._module(request)
                made = self._compile(text, devices, request)
                answer = {**self._figures(made, request), "bounded": bounded}
        except _OF_THIS_PROGRAM as error:
            answer = {"broken": f"{type(error).__name__}: {error}"}
        except Exception as error:  # JAX's own kinds differ from release to release
            answer = {"error": str(error), "kind": type(error).__name__}
        return {**answer, "seconds": time.monotonic() - begin}

    def _devices(self, topology: str, chip: str) -> list[Any]:
        key = topology, chip
        if key not in self._topologies:
            config = {"chip_config_name": chip} if chip else {}
            self._topologies[key] = self._describe(platform="tpu", topology_name=topology, **config)
        return list(self._topologies[key].devices)

    def _exported(self, artifact: bytes) -> dict[str, Any]:
        """A module of JAX's whose operations have names of their own, and where they came from."""
        ir = self._ir
        with self._mlir.make_ir_context() as context, ir.Location.unknown():
            module = self._jax.mlir.deserialize_portable_artifact(artifact)
            places: list[list[tuple[str, int]]] = []

            def mark(operation: Any) -> Any:
                where = operation.location
                if isinstance(where, ir.NameLoc):
                    name = f"{where.name_str}~~{len(places)}"
                    operation.location = ir.Location.name(name, where.child_loc)
                    places.append(list(_frames(ir, where)))
                return ir.WalkResult.ADVANCE

            module.operation.walk(mark)
            main = ir.SymbolTable(module.operation)["main"]
            arguments = [
                (getattr(one.location, "name_str", ""), any(key in given for key in _DONATED))
                for one, given in zip(main.arguments, _attributes(main, "arg"), strict=True)
            ]
            meshes = [
                str(one.operation.attributes["mesh"])
                for one in module.body.operations
                if one.operation.name == "sdy.mesh"
            ]
            sizes = (self._np.prod([int(k) for k in re.findall(r"=(\d+)", one)]) for one in meshes)
            mesh = max((int(size) for size in sizes), default=1)
            data = self._mlir.module_to_bytecode(module)
        del context
        return {"module": data, "places": places, "arguments": arguments, "mesh": mesh}

    def _module(self, request: dict[str, Any]) -> tuple[Any, list[str]]:
        """The module in MLIR, and where its sizes are only bounded."""
        serialized, replicas = request["module"], request["replicas"]
        if request["jax"]:
            with self._mlir.make_ir_context():
                return self._ir.Module.parse(serialized), []
        computation = self._client.XlaComputation(serialized)
        text = self._jax.mlir.xla_computation_to_mlir_module(computation)
        with self._mlir.make_ir_context() as context:
            module = self._ir.Module.parse(text)
            rewriter = _Rewriter(self._ir, self._np, replicas)
            module.operation.walk(rewriter.see)
            rewriter.apply()
        del context
        return module, rewriter.bounded

    def _compile(self, module: Any, devices: list[Any], request: dict[str, Any]) -> Any:
        replicas, partitions = request["replicas"], request["partitions"]
        cores = replicas * partitions
        if request["jax"]:
            replicas, partitions = 1, cores
        options = self._client.CompileOptions()
        build = options.executable_build_options
        for target in (options, build):
            target.num_replicas, target.num_partitions = replicas, partitions
        grid = self._np.arange(cores).reshape(replicas, partitions)
        options.device_assignment = self._client.DeviceAssignment.create(grid)
        if request["jax"]:  # as JAX itself has it
            main = self._ir.SymbolTable(module.operation)["main"]
            free = {
                kind: [not any("sharding" in key for key in one) for one in _attributes(main, kind)]
                for kind in ("arg", "res")
            }
            build.use_spmd_partitioning = True
            build.use_shardy_partitioner = any(
                one.operation.name == "sdy.mesh" for one in module.body.operations
            )
            build.allow_spmd_sharding_propagation_to_parameters = free["arg"]
            build.allow_spmd_sharding_propagation_to_output = free["res"]
        elif partitions > 1:
            build.use_spmd_partitioning = True
            build.allow_spmd_sharding_propagation_to_output = [True]
            build.allow_spmd_sharding_propagation_to_parameters = [True]
        if request["effort"]:
            options.env_option_overrides = [("xla_optimization_level", request["effort"])]
        with module.context:
            listed = self._client.DeviceList(tuple(devices[:cores]))
            return devices[0].client.compile(module, listed, options)

    def _figures(self, made: Any, request: dict[str, Any]) -> dict[str, Any]:
        memory = made.get_compiled_memory_stats()
        figures: dict[str, Any] = {
            "peak": memory.peak_memory_in_bytes,
            "arguments": memory.argument_size_in_bytes,
            "outputs": memory.output_size_in_bytes,
            "aliased": memory.alias_size_in_bytes,
            "temporaries": memory.temp_size_in_bytes,
            "code": memory.generated_code_size_in_bytes,
            "text": "",
            "cost": {},
            "kernels": {},
        }
        with contextlib.suppress(Exception):
            figures["cost"] = {
                key: value for key, value in made.cost_analysis().items() if "{" not in key
            }
        if request["text"]:
            # Fails for some programs of v5p, v6e and tpu7x, which compile all the same.
            with contextlib.suppress(Exception):
                figures["text"] = made.hlo_modules()[0].to_string()
            figures["kernels"] = self._kernels(figures["text"])
        return figures

    def _kernels(self, text: str) -> dict[str, Any]:
        """The work of each Pallas kernel whose code can be read."""
        found = {}
        for match in _KERNEL.finditer(text):
            # Its code is MLIR of a dialect that libtpu reads; nothing promises that we can too.
            with contextlib.suppress(Exception):
                config, _ = json.JSONDecoder().raw_decode(text, match.end())
                found[match[1]] = self._kernel(config["custom_call_config"])
        return found

    def _kernel(self, config: dict[str, Any]) -> tuple[Any, ...]:
        from jax._src.lib import tpu
        from jax._src.lib.mlir import passmanager

        with self._mlir.make_ir_context() as context:
            tpu.register_dialect(context)
            context.allow_unregistered_dialects = True  # what it is stored in
            module = self._ir.Module.parse(base64.b64decode(config["body"]))
            passmanager.PassManager.parse(_READABLE).run(module.operation)
            work = _KernelWork(self._ir, module).work()
        declared = config.get("cost_estimate", {})
        return *work, tuple(float(declared.get(key, 0)) for key in ("flops", "bytes_accessed"))


def _attributes(function: Any, kind: str) -> list[dict[str, Any]]:
    """The attributes of each argument (`"arg"`) or result (`"res"`) of a function, by name."""
    types = function.type.inputs if kind == "arg" else function.type.results
    if f"{kind}_attrs" not in function.attributes:
        return [{} for _ in types]
    listed = function.attributes[f"{kind}_attrs"]
    return [{one.name: one.attr for one in given} for given in listed]


def _frames(ir: Any, where: Any) -> Iterator[tuple[str, int]]:
    """The files and lines of a location, innermost first."""
    if isinstance(where, ir.FileLineColLoc):
        yield where.filename, where.start_line
    elif isinstance(where, ir.NameLoc):
        yield from _frames(ir, where.child_loc)
    elif isinstance(where, ir.CallSiteLoc):
        yield from _frames(ir, where.callee)
        yield from _frames(ir, where.caller)
    elif isinstance(where, ir.FusedLoc):
        yield from next(filter(None, (list(_frames(ir, one)) for one in where.locations)), ())


_KERNEL = re.compile(
    r'%?([\w.-]+) = [^\n]*custom_call_target="tpu_custom_call".*?backend_config=', re.DOTALL
)
_READABLE = "builtin.module(mosaic-serde{serialize=false})"
"""The pass that makes of a kernel's code as it is stored what its dialect has today."""
_PASSES_OF_FLOAT32 = 6
_FREE = ("constant", "shape_cast", "bitcast", "load", "store")
"""Parts of the names of operations that take no time, or have a unit of their own."""
_SLOW = ("math.", "arith.divf", "vector.multi_reduction", "tpu.transpose", "tpu.rotate")
"""Operations of several cycles a register: functions, and what goes across lanes."""
_LANES = 1024
"""Numbers in a vector register."""
_UNITS = 4
"""Operations that the vector unit starts in a cycle, at most."""
_SLOW_CYCLES = 10.0
"""Of a register, at most."""
_ARITHMETIC: dict[str, Callable[..., int]] = {
    "arith.addi": operator.add,
    "arith.subi": operator.sub,
    "arith.muli": operator.mul,
    "arith.index_cast": int,
}
_Both = tuple[float, float]


class _KernelWork:
    """Counts the work in the code of a Pallas kernel."""

    def __init__(self, ir: Any, module: Any) -> None:
        self._ir = ir
        self._functions = {
            self._text(one, "sym_name").strip('"'): one for one in module.body.operations
        }
        self._kernel = next(
            one for one in module.body.operations if "scalar_prefetch" in one.attributes
        )
        self._flops = [0.0, 0.0]
        self._cycles = [0.0, 0.0]
        self._own_copies = [0.0, 0.0]

    def work(self) -> tuple[int, _Both, _Both, _Both]:
        """Steps of the grid; flops, cycles and bytes of all of them, at least and at most."""
        grid = []
        if "iteration_bounds" in self._kernel.attributes:
            grid = self._numbers(self._kernel, "iteration_bounds")
        if min(grid, default=1) < 1:
            raise ValueError("a grid whose size is not known")
        steps = math.prod(grid)
        for block in self._kernel.regions[0].blocks:
            self._count(block, float(steps), sure=True)
        return (
            steps,
            (self._flops[0], self._flops[1]),
            (self._cycles[0], self._cycles[1]),
            self._copied(grid),
        )

    def _count(self, block: Any, times: float, *, sure: bool) -> None:
        for operation in block.operations:
            name = operation.name
            inner = times * self._trips(operation) if name == "scf.for" else times
            for region in operation.regions:
                for one in region.blocks:
                    self._count(one, inner, sure=sure and name != "scf.if")
            if name in ("tpu.matmul", "vector.contract"):
                self._add(self._flops, 2 * times * self._multiplications(operation), sure)
            elif name == "tpu.enqueue_dma":
                ends = [one for one in operation.operands if "vmem" not in str(one.type)]
                self._add(self._own_copies, sum(map(self._bytes, ends)) * times, sure)
            elif not any(part in name for part in _FREE):
                self._count_vectors(operation, times, sure)

    def _count_vectors(self, operation: Any, times: float, sure: bool) -> None:
        values = [*operation.operands, *operation.results]
        sizes = [math.prod(shape) for one in values if (shape := self._shape(one)) is not None]
        registers = math.ceil(max(sizes, default=0) / _LANES) * times
        slow = operation.name.startswith(_SLOW)
        self._cycles[0] += registers * (1 if slow else 1 / _UNITS) * sure
        self._cycles[1] += registers * (_SLOW_CYCLES if slow else 1)

    def _add(self, counter: list[float], amount: float, sure: bool) -> None:
        counter[0] += amount * sure
        counter[1] += amount

    def _multiplications(self, operation: Any) -> float:
        shapes = [self._shape(operation.operands[index]) or () for index in range(3)]
        batch = shapes[0][0] if len(shapes[0]) == 3 else 1
        count = math.sqrt(math.prod(math.prod(shape) for shape in shapes) / batch)
        if "fp32" in self._text(operation, "precision"):
            return count * _PASSES_OF_FLOAT32
        return count / 2 if "xi8>" in str(operation.operands[0].type) else count

    def _trips(self, loop: Any) -> int:
        low, high, step = (self._constant(loop.operands[index]) for index in range(3))
        return 1 if low is None or high is None or not step else max((high - low) // step, 0)

    def _constant(self, value: Any) -> int | None:
        """The number that a value has for all steps; None where it depends on anything."""
        name = getattr(value.owner, "name", "")
        if name == "arith.constant":
            return int(self._text(value.owner, "value").split(" ")[0])
        if name not in _ARITHMETIC:
            return None
        numbers = [self._constant(one) for one in value.owner.operands]
        known = [one for one in numbers if one is not None]
        return _ARITHMETIC[name](*known) if len(known) == len(numbers) else None

    def _copied(self, grid: list[int]) -> _Both:
        """Bytes of the blocks that the grid copies: each once, and each as often as it may change.

        The last axis of the grid runs fastest. A block is copied anew when its place changes,
        and that takes an axis on which the place depends.
        """
        arguments = list(self._kernel.regions[0].blocks[0].arguments)
        first = len(grid) + int(self._text(self._kernel, "scalar_prefetch").split(" ")[0])
        last = len(arguments) - int(self._text(self._kernel, "scratch_operands").split(" ")[0])
        windows: list[Any] = [{} for _ in arguments]
        if "window_params" in self._kernel.attributes:
            listed = self._ir.ArrayAttr(self._kernel.attributes["window_params"])
            windows = [self._ir.DictAttr(one) for one in listed]
        once, often = 0.0, 0.0
        for window, argument in zip(windows, arguments[first:last], strict=False):
            size, axes = self._bytes(argument), set[int]()
            if "transform_indices" in window:
                function = self._functions[str(window["transform_indices"]).strip('@"')]
                axes = self._axes(function, len(grid))
            elif "vmem" not in str(argument.type):
                continue  # the kernel copies it itself
            once += size * math.prod(grid[axis] for axis in axes)
            often += size * math.prod(grid[: max(axes) + 1] if axes else ())
        return once + self._own_copies[0], often + self._own_copies[1]

    def _axes(self, function: Any, rank: int) -> set[int]:
        """The axes of the grid on which the place of a block depends."""
        block = function.regions[0].blocks[0]
        pending = list(list(block.operations)[-1].operands)
        found: set[int] = set()
        while pending:
            value = pending.pop()
            if isinstance(value, self._ir.BlockArgument):
                found.add(value.arg_number)
            else:
                pending += list(value.owner.operands)
        return {axis for axis in found if axis < rank}

    def _shape(self, value: Any) -> tuple[int, ...] | None:
        found = re.match(r"vector<([\dx]+)x", str(value.type))
        return tuple(int(part) for part in found[1].split("x")) if found else None

    def _bytes(self, value: Any) -> float:
        """The size of a place in memory, whose type is `memref<8x128xf32, …>`."""
        found = re.match(r"memref<([\dx]*)x[a-z]+(\d+)", str(value.type))
        return math.prod(map(int, found[1].split("x"))) * int(found[2]) / 8 if found else 0.0

    def _text(self, operation: Any, key: str) -> str:
        return str(operation.attributes[key]) if key in operation.attributes else ""

    def _numbers(self, holder: Any, key: str) -> list[int]:
        """The numbers of an attribute `array<i64: 8, 8>`."""
        listed = getattr(holder, "attributes", holder)[key]
        return [int(part) for part in re.findall(r"-?\d+", str(listed).partition(":")[2])]


class _Rewriter:
    """Makes of a module that TensorFlow lowered for a CPU one that a TPU's compiler takes."""

    def __init__(self, ir: Any, np: Any, replicas: int) -> None:
        self._ir, self._np, self._replicas = ir, np, replicas
        self._copies: list[Any] = []
        self._marked: list[tuple[Any, str, str]] = []
        self._reductions: list[Any] = []
        self._generators: list[Any] = []
        self.bounded: list[str] = []

    def see(self, operation: Any) -> Any:
        """Notes an operation that has to be changed; a walk must not change any."""
        if operation.name == "mhlo.copy":
            self._copies.append(operation)
        elif operation.name == "stablehlo.all_reduce":
            self._reductions.append(operation)
        elif _is_the_chips(operation):
            self._generators.append(operation)
        elif mark := _mark(operation):
            self._marked.append((operation, mark[1], mark[2]))
        if any("stablehlo.bounds" in str(result.type) for result in operation.results):
            self.bounded.append(_name(operation))
        return self._ir.WalkResult.ADVANCE

    def apply(self) -> None:
        """Changes what was noted."""
        for operation in self._copies:
            operation.results[0].replace_all_uses_with(operation.operands[0])
            operation.erase()
        for operation in self._reductions:
            groups = self._np.array(operation.attributes["replica_groups"])
            operation.attributes["replica_groups"] = self._dense(self._regrouped(groups))
        for operation in self._generators:
            with self._ir.InsertionPoint(operation), operation.location:
                self._generate(operation)
        for operation, kind, text in self._marked:
            with self._ir.InsertionPoint(operation), operation.location:
                if kind in _MAKERS:
                    made = getattr(self, _MAKERS[kind])(operation, _rows(text)).results[0]
                else:
                    made = self._resized(operation, kind, text)
            list(operation.results)[-1].replace_all_uses_with(made)
            operation.erase()

    def _generate(self, operation: Any) -> None:
        """Replaces a CPU's generator by the chip's, whose state is a number shorter.

        A CPU scrambles the seed, which a TPU takes as it is.
        """
        create, tensor = self._ir.Operation.create, self._ir.RankedTensorType
        old = operation.operands[0]
        number = tensor(old.type).element_type
        short, one = tensor.get([2], number), tensor.get([1], number)
        seed = _seed(old)
        if seed is None:  # a key and a counter were given
            ends = {"start_indices": 0, "limit_indices": 2, "strides": 1}
            bounds = {key: self._ir.DenseI64ArrayAttr.get([end]) for key, end in ends.items()}
            state = create("stablehlo.slice", [short], [old], bounds)
        else:
            key = create("stablehlo.bitcast_convert", [tensor.get([], number)], [seed])
            key = create("stablehlo.reshape", [one], [key.results[0]])
            zeros = self._np.zeros(1, self._np.uint64)
            zeros = self._ir.DenseElementsAttr.get(zeros, type=number, shape=[1])
            counter = create("stablehlo.constant", [one], attributes={"value": zeros})
            whole = self._ir.IntegerType.get_signless(64)
            axis = {"dimension": self._ir.IntegerAttr.get(whole, 0)}
            parts = [key.results[0], counter.results[0]]
            state = create("stablehlo.concatenate", [short], parts, axis)
        algorithm = self._ir.Attribute.parse("#stablehlo<rng_algorithm DEFAULT>")
        types = [short, operation.results[1].type]
        made = create(operation.name, types, [state.results[0]], {"rng_algorithm": algorithm})
        operation.results[1].replace_all_uses_with(made.results[1])
        operation.results[0].replace_all_uses_with(old)  # stateless: XLA drops what takes it
        operation.erase()

    def _resized(self, operation: Any, kernel: str, flags: str) -> Any:
        """Images that a TPU's kernel has resized, or their gradient."""
        image, like = operation.operands
        before, after = (list(self._ir.RankedTensorType(one.type).shape) for one in (image, like))
        if before[1:3] == after[1:3]:
            return self._ir.Operation.create("stablehlo.convert", [like.type], [image]).results[0]
        if kernel.endswith("Grad"):
            if before[1] // after[1] > 3 and before[2] // after[2] > 3:  # rows after columns
                columns = [after[0], before[1], *after[2:]]
                element = self._ir.RankedTensorType(like.type).element_type
                between = self._ir.RankedTensorType.get(columns, element)
                image = self._call(kernel, image, between, flags)
        elif before[1:3] == [1, 1]:
            return like
        return self._call(kernel, image, like.type, flags)

    def _call(self, kernel: str, value: Any, result: Any, flags: str) -> Any:
        attributes = {
            "call_target_name": self._ir.StringAttr.get(kernel),
            "backend_config": self._ir.StringAttr.get(f'"{flags}"'),
        }
        made = self._ir.Operation.create("stablehlo.custom_call", [result], [value], attributes)
        return made.results[0]

    def _made(self, name: str, like: Any, attributes: dict[str, Any], regions: int = 0) -> Any:
        return self._ir.Operation.create(
            name,
            results=[like.results[0].type],
            operands=[like.operands[0]],
            attributes=attributes,
            regions=regions,
        )

    def _sum(self, operation: Any, rows: list[list[int]]) -> Any:
        attributes = {"replica_groups": self._dense(self._groups(rows))}
        made = self._made("stablehlo.all_reduce", operation, attributes, regions=1)
        element = self._ir.RankedTensorType(operation.results[0].type).element_type
        number = self._ir.RankedTensorType.get([], element)
        where = operation.location
        block = made.regions[0].blocks.append(number, number, arg_locs=[where, where])
        with self._ir.InsertionPoint(block):
            both = list(block.arguments)
            total = self._ir.Operation.create("stablehlo.add", results=[number], operands=both)
            self._ir.Operation.create("stablehlo.return", operands=[total.results[0]])
        return made

    def _permute(self, operation: Any, rows: list[list[int]]) -> Any:
        pairs = self._permutation(rows)
        attributes = {"source_target_pairs": self._dense(pairs)}
        return self._made("stablehlo.collective_permute", operation, attributes)

    def _permutation(self, rows: list[list[int]]) -> Any:
        pairs = self._np.array(rows, self._np.int64)
        # One that sends to all is what the virtual TPU makes of a broadcast: no permutation.
        if len(pairs) and len(set(pairs[:, 0])) < len(pairs):
            pairs = self._np.array([[pair[1], (pair[1] + 1) % len(pairs)] for pair in pairs])
        inside = [pair for pair in pairs.tolist() if max(pair) < self._replicas]
        return self._np.array(inside or [[0, 0]])

    def _exchange(self, operation: Any, rows: list[list[int]]) -> Any:
        groups = self._groups(rows)
        count = groups.shape[1]
        shape = self._ir.RankedTensorType(operation.results[0].type).shape
        axis = next((axis for axis, size in enumerate(shape) if size % count == 0), 0)
        whole = self._ir.IntegerType.get_signless(64)
        number = [self._ir.IntegerAttr.get(whole, value) for value in (axis, count)]
        attributes = {
            "split_dimension": number[0],
            "concat_dimension": number[0],
            "split_count": number[1],
            "replica_groups": self._dense(groups),
        }
        return self._made("stablehlo.all_to_all", operation, attributes)

    def _groups(self, rows: list[list[int]]) -> Any:
        return self._regrouped(self._np.array(rows or [list(range(self._replicas))]))

    def _regrouped(self, groups: Any) -> Any:
        """The groups on another number of replicas than the function was traced for."""
        traced = groups.size
        if traced in (0, self._replicas):
            return groups
        if len(groups) == 1:
            return self._np.arange(self._replicas).reshape(1, -1)
        if self._replicas % traced:
            raise ValueError(
                f"Groups of the {traced} replicas that it was traced for do not divide the "
                f"{self._replicas} of this TPU."
            )
        times = range(0, self._replicas, traced)
        return self._np.concatenate([groups + begin for begin in times])

    def _dense(self, numbers: Any) -> Any:
        return self._ir.DenseElementsAttr.get(self._np.ascontiguousarray(numbers, self._np.int64))


_MAKERS = {"CrossReplicaSum": "_sum", "CollectivePermute": "_permute", "AllToAll": "_exchange"}


def _mark(operation: Any) -> re.Match[str] | None:
    barrier = operation.name == "stablehlo.optimization_barrier"
    return _MARK.search(_name(operation)) if barrier else None


def _is_the_chips(operation: Any) -> bool:
    """Return whether a TPU makes an operation's random bits by its own generator."""
    if operation.name != "stablehlo.rng_bit_generator":
        return False
    named = _NAMED in str(operation.attributes.get("mhlo.frontend_attributes", ""))
    return not named and "PHILOX" in str(operation.attributes["rng_algorithm"])


def _seed(state: Any) -> Any:
    """The two numbers that a generator's state was made of; None where they are not known."""
    pending, seen = [state], {state}
    while pending:
        value = pending.pop()
        if str(value.type) == "tensor<2xi32>":
            return value
        operands = getattr(value.owner, "operands", ())  # a block has none
        pending += [one for one in operands if one not in seen]
        seen.update(operands)
    return None


def _rows(text: str) -> list[list[int]]:
    """Groups or pairs of replicas; none for all in one group."""
    return [] if text == "all" else [[int(k) for k in row.split("-")] for row in text.split("_")]


def _name(operation: Any) -> str:
    """The node of TensorFlow that an operation was made for, in the text of its location."""
    return str(operation.location)


if __name__ == "__main__":
    serve()
