"""Distributed datasets with iterators that are quick to take from: types kept, batches whole."""

from __future__ import annotations

from typing import Any

from tpunb.virtual._tensorflow import input_lib
from tpunb.virtual.iterator_types import SettledIterator
from tpunb.virtual.whole_batches import iterator_of_whole_batches

__all__ = ["with_settled_types"]


def with_settled_types(dataset: Any) -> Any:
    """A distributed dataset whose iterators have types of this module, where it is TensorFlow 2's.

    Args:
        dataset: What a strategy has distributed, which is changed.
    """
    settled = _SETTLED.get(type(dataset))
    if settled is not None:
        dataset.__class__ = settled
    return dataset


class _Dataset(input_lib.DistributedDataset):  # type: ignore[misc]
    def __iter__(self) -> Any:
        whole = iterator_of_whole_batches(self) if self._built else None
        return SettledIterator.of(super().__iter__()) if whole is None else whole


class _DatasetsFromFunction(input_lib.DistributedDatasetsFromFunction):  # type: ignore[misc]
    def __iter__(self) -> Any:
        return SettledIterator.of(super().__iter__())


_SETTLED = {
    input_lib.DistributedDataset: _Dataset,
    input_lib.DistributedDatasetsFromFunction: _DatasetsFromFunction,
}
