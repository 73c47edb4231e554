"""Objects of users with unusual behaviour, and data that must be read to the end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.cells import Notebook

from tpunb._util.attributes import attribute, has_attributes
from tpunb.training.history import History
from tpunb.training.metrics import mean_of


@pytest.fixture
def book() -> Notebook:
    return Notebook("virtual")


class AttributeDict(dict):  # type: ignore[type-arg]
    """A common pattern of configurations: a missing attribute raises a KeyError."""

    __getattr__ = dict.__getitem__


def test_a_dict_with_attributes(book: Notebook) -> None:
    book.names["config"] = AttributeDict(rate=2.0)
    text = "found = tf.constant(1.0) * config['rate'] + config.rate"
    assert book.each(book.cell(text).assigned["found"]) == [4.0, 4.0]
    book.names["config"]["rate"] = 3.0
    assert book.each(book.cell(text).assigned["found"]) == [6.0, 6.0]
    assert attribute(AttributeDict(), "missing", 7) == 7
    assert not has_attributes(AttributeDict(), "missing")
    assert has_attributes(AttributeDict(here=1), "here")


@pytest.mark.filterwarnings("ignore:The last batch has 1 example:tpunb.errors.TpuWarning")
@pytest.mark.parametrize("size", [5, 70, 129])
def test_arrays_are_read_to_their_end(book: Notebook, size: int) -> None:
    numbers = np.arange(size, dtype=np.float32)
    book.names.update(total=tf.constant(0.0))
    run = book.runner.steps("total = total + tf.reduce_sum(x)", book.names, **data(numbers))
    run.go()
    assert sum(book.each(run.assigned["total"])) == numbers.sum()


def data(numbers: Any) -> dict[str, Any]:
    return {"data": numbers, "names": ("x",)}


def test_the_mean_of_the_largest_numbers() -> None:
    history = History()
    history.append(1, loss=np.full(3, 1e308))
    assert history.values("loss").tolist() == pytest.approx([1e308])
    assert mean_of(np.array([[1e308, 1e308], [1.0, 2.0]])).tolist() == pytest.approx([1e308, 1.5])
    assert mean_of(np.array([np.inf, 1.0])) == np.inf
