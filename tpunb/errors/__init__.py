"""Errors that a user can fix, and explanations of those that TensorFlow raises."""

from tpunb.errors.base import (
    AcceleratorTypeError,
    CellError,
    ComputationShapeError,
    ConnectError,
    HistoryError,
    KernelError,
    MemoryLimitError,
    NotConnectedError,
    TpunbError,
    TpuWarning,
    VirtualDevicesError,
    WorkerError,
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
    "TpuWarning",
    "TpunbError",
    "VirtualDevicesError",
    "WorkerError",
    "nearest",
]
