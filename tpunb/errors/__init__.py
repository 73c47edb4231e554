"""Errors that a user can fix, and explanations of errors that TensorFlow raises."""

from tpunb.errors.base import (
    AcceleratorTypeError,
    CellError,
    CompileError,
    CompilerUnavailableError,
    ComputationShapeError,
    ConnectError,
    DoesNotFitError,
    HistoryError,
    KernelError,
    MemoryLimitError,
    NotConnectedError,
    NotKnownError,
    NotRecordedError,
    TensorFlowMissingError,
    TpunbError,
    TpuWarning,
    VirtualDevicesError,
    WorkerError,
)
from tpunb.errors.base import did_you_mean as did_you_mean
from tpunb.errors.base import nearest as nearest

__all__ = [
    "AcceleratorTypeError",
    "CellError",
    "CompileError",
    "CompilerUnavailableError",
    "ComputationShapeError",
    "ConnectError",
    "DoesNotFitError",
    "HistoryError",
    "KernelError",
    "MemoryLimitError",
    "NotConnectedError",
    "NotKnownError",
    "NotRecordedError",
    "TensorFlowMissingError",
    "TpuWarning",
    "TpunbError",
    "VirtualDevicesError",
    "WorkerError",
]
