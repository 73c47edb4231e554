"""XLA in a process of its own, which compiles functions as far as HLO.

XLA's front end checks less than it assumes: some functions make it write outside its memory or fail
a `CHECK`. Only this process ends then, and not the notebook's. Starting the process
takes half a second.
"""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Sequence
from typing import Any

from tpunb._util.child_process import ChildProcess, start_child
from tpunb._util.child_side import serve
from tpunb.tensorflow.virtual.runtime.tensorflow_runtime import leave_out_python_api

Spec = tuple[tuple[int, ...], int]
"""A shape and a type, as a number of TensorFlow's enumeration."""


@dataclasses.dataclass(frozen=True)
class Request:
    """A function to compile.

    Attributes:
        name: The function's name.
        functions: The function and the functions that it calls, serialized.
        tensors: Its first arguments.
        variables: The variables whose handles are its further arguments.
        serialized: Whether the answer is HLO for another compiler and not for a reader.
    """

    name: str
    functions: Sequence[bytes]
    tensors: Sequence[Spec]
    variables: Sequence[Spec]
    serialized: bool = False


@dataclasses.dataclass(frozen=True)
class Answer:
    """The answer to a request.

    Attributes:
        text: HLO, or an error's message.
        compiled: Whether `text` is HLO.
        module: HLO as a serialized `HloModuleProto`, if it was requested.
    """

    text: str
    compiled: bool
    module: bytes = b""


SECONDS = 60.0
"""The time limit for a function that is about to run; whole models take a few seconds."""

_CODE = "from tpunb.tensorflow.virtual.strict.xla import run; run()"
_ENVIRONMENT = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    # Accelerators belong to the notebook's process.
    "CUDA_VISIBLE_DEVICES": "-1",
    "TPU_LOAD_LIBRARY": "0",
    "XLA_FLAGS": "",  # flags that only a TPU's compiler knows end this process
}


def _start() -> subprocess.Popen[bytes]:
    return start_child(_CODE, environment=_ENVIRONMENT)


_compiler = ChildProcess(_start, SECONDS)
ask, start = _compiler.ask, _compiler.start
"""Ask with a `Request`; the result is an `Answer`."""


def run() -> None:
    """Answer requests on the standard streams until there are no more."""
    serve(lambda: _Runtime().compile)


class _Runtime:
    """The parts of TensorFlow's runtime that compiling needs."""

    def __init__(self) -> None:
        leave_out_python_api()
        from tensorflow.core.framework.function_pb2 import FunctionDef
        from tensorflow.python.eager import context
        from tensorflow.python.framework import dtypes, errors_impl, tensor
        from tensorflow.python.ops import gen_array_ops, gen_resource_variable_ops

        self._definition = FunctionDef
        self._context = context
        self._type = dtypes.as_dtype
        self._errors = (ValueError, errors_impl.OpError)
        self._spec = tensor.TensorSpec
        self._arrays = gen_array_ops
        self._variables = gen_resource_variable_ops

    def compile(self, request: Request) -> Answer:
        """Compile a function to HLO."""
        runtime = self._context.context()
        names = []
        with self._context.eager_mode():
            try:
                for serialized in request.functions:
                    definition = self._definition.FromString(serialized)
                    runtime.add_function_def(definition)
                    names.append(definition.signature.name)
                hlo = self._hlo(runtime, request)
                if request.serialized:
                    return Answer("", compiled=True, module=hlo)
                text = hlo.decode() if isinstance(hlo, bytes) else str(hlo)
                return Answer(text, compiled=True)
            except self._errors as error:
                return Answer(str(error), compiled=False)
            finally:
                for name in names:
                    runtime.remove_function(name)

    def _hlo(self, runtime: Any, request: Request) -> Any:
        handles = [self._variable(number, *spec) for number, spec in enumerate(request.variables)]
        try:
            return runtime.get_compiler_ir(
                device_name=runtime.list_logical_devices("CPU")[0].name,
                platform_name=None,
                function_name=request.name,
                flat_args=[
                    self._spec(shape, self._type(type_number))
                    for shape, type_number in request.tensors
                ],
                captured_inputs=handles,
                stage="hlo_serialized" if request.serialized else "hlo",
            )
        finally:
            for handle in handles:
                self._variables.destroy_resource_op(handle)

    def _variable(self, number: int, shape: tuple[int, ...], type_number: int) -> Any:
        """Return a variable whose memory is never touched: only its shape and type are read."""
        dtype = self._type(type_number)
        handle = self._variables.var_handle_op(
            dtype=dtype, shape=shape, shared_name=f"variable_{number}"
        )
        self._variables.assign_variable_op(handle, self._arrays.empty(shape, dtype))
        return handle
