"""Errors that a user can fix, and explanations of errors that TensorFlow raises."""

from tpunb.errors.base import (
    AcceleratorTypeError,
    CellError,
    ComputationShapeError,
    ConnectError,
    HistoryError,
    KernelError,
    MemoryLimitError,
    NotConnectedError,
    TensorFlowMissingError,
    TpunbError,
    TpuWarning,
    VirtualDevicesError,
    WorkerError,
    did_you_mean,
    nearest,
)

__all__ = [
    "AcceleratorTypeError",
    "CellError",
    "ComputationShapeError",
    "ConnectError",
    "HistoryError",
    "KernelError",
    "MemoryLimitError",
    "NotConnectedError",
    "TensorFlowMissingError",
    "TpuWarning",
    "TpunbError",
    "VirtualDevicesError",
    "WorkerError",
    "did_you_mean",
    "nearest",
]
