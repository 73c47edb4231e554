"""The walk through users' values: order, names, limit, and what it looks into."""

from __future__ import annotations

import collections
import functools
from types import ModuleType
from typing import Any

import pytest

from tpunb._util.reachable import collect_globals, look_into, reaches, walk

WANTED = object()


class Slotted:
    __slots__ = ("inside",)

    def __init__(self, inside: Any) -> None:
        self.inside = inside


class Plain:
    def __init__(self, inside: Any) -> None:
        self.inside = inside

    def method(self) -> Any:
        return self.inside


def names_of(**values: Any) -> dict[int, str]:
    """Return the name under which the walk finds each object, by its id."""
    waiting = collections.deque(values.items())
    found = {}
    for name, value in walk(waiting):
        found[id(value)] = name
        waiting.extend(look_into(name, value))
    return found


def closing(value: Any) -> Any:
    return lambda: value


def with_default(value: Any = WANTED) -> Any:
    return value


HOLDERS = [
    [WANTED],
    {"a": (WANTED,)},
    collections.deque([WANTED]),
    Plain({"b": [WANTED]}),
    Slotted(WANTED),
    Plain(WANTED).method,
    functools.partial(print, WANTED),
    functools.partial(print, end=WANTED),
    closing(WANTED),
    with_default,
    functools.cache(closing(WANTED)),
]


@pytest.mark.parametrize("holder", HOLDERS, ids=lambda each: type(each).__name__)
def test_everything_that_holds_a_value_reaches_it(holder: Any) -> None:
    assert reaches(holder, lambda each: each is WANTED)
    assert id(WANTED) in names_of(x=holder)


def test_an_opaque_object_is_not_searched() -> None:
    assert not reaches([Plain(WANTED)], lambda each: each is WANTED, (Plain,))
    assert not reaches(Plain, lambda each: each is WANTED)


def test_names_are_expressions() -> None:
    leaf, deep = object(), object()
    found = names_of(config=Plain({"layers": [leaf]}), f=closing(deep))
    assert found[id(leaf)] == "config.inside['layers'][0]"
    assert found[id(deep)] == "value"  # the name in the function


def test_the_nearest_name_wins() -> None:
    leaf = object()
    assert names_of(far={"x": [leaf]}, near=leaf)[id(leaf)] == "near"


def test_each_object_comes_once_also_from_a_circle() -> None:
    circle: list[Any] = []
    circle.append(circle)
    waiting = collections.deque([("a", circle), ("b", circle)])
    seen = []
    for name, value in walk(waiting):
        seen.append(name)
        waiting.extend(look_into(name, value))
    assert seen == ["a"]


def test_the_walk_ends_at_its_limit() -> None:
    waiting = collections.deque(("", object()) for _ in range(5))
    assert len(list(walk(waiting, 3))) == 3


def test_a_list_of_numbers_does_not_use_up_the_limit() -> None:
    assert id(WANTED) in names_of(numbers=list(range(10_000)), also=[0.5] * 10_000, x=[[WANTED]])


def test_a_notebooks_functions_lead_to_the_globals_they_read() -> None:
    book = ModuleType("book")
    exec("rate = [0.1]\ndef inner(): return rate\ndef outer(): return inner()", vars(book))
    found = names_of(outer=book.outer)
    assert found[id(book.rate)] == "rate"
    read = collect_globals(functools.partial(book.outer), vars(book))
    assert read == {"inner": book.inner, "rate": [0.1]}


class WithoutAttributes:
    __dict__ = None  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)


def test_objects_whose_attributes_cannot_be_read_hold_nothing() -> None:
    assert not reaches([WithoutAttributes()], lambda each: each is WANTED)
