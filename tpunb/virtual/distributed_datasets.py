"""Distributed datasets with iterators that are quick to take from: types kept, batches whole."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

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
        if not _can_be_read(self):
            return super().__iter__()  # which says why
        whole = iterator_of_whole_batches(self)
        return SettledIterator.over(self, self._cloned_datasets) if whole is None else whole

    @property
    def _type_spec(self) -> Any:
        spec = super()._type_spec
        spec.__class__ = _DatasetSpec
        return spec


class _DatasetSpec(input_lib.DistributedDatasetSpec):  # type: ignore[misc]
    @property
    def value_type(self) -> type:
        return _Dataset

    def _from_components(self, components: Any) -> Any:
        return with_settled_types(super()._from_components(components))


class _DatasetsFromFunction(input_lib.DistributedDatasetsFromFunction):  # type: ignore[misc]
    def __iter__(self) -> Any:
        if not _can_be_read(self):
            return super().__iter__()  # which says why
        return SettledIterator.over(self, self._datasets)

    @property
    def _type_spec(self) -> Any:
        spec = super()._type_spec
        spec.__class__ = _DatasetsFromFunctionSpec
        return spec


class _DatasetsFromFunctionSpec(
    input_lib.DistributedDatasetsFromFunctionSpec  # type: ignore[misc]
):
    @property
    def value_type(self) -> type:
        return _DatasetsFromFunction

    def _from_components(self, components: Any) -> Any:
        return with_settled_types(super()._from_components(components))


def _can_be_read(dataset: Any) -> bool:
    return bool(dataset._built and (tf.executing_eagerly() or tf.inside_function()))


_SETTLED = {
    input_lib.DistributedDataset: _Dataset,
    input_lib.DistributedDatasetsFromFunction: _DatasetsFromFunction,
}
