"""What a function has freed goes back to the system."""

from __future__ import annotations

import gc
import sys
import weakref

import pytest

from tpunb._util import freed_memory
from tpunb._util.freed_memory import giving_back, resident, uncollected


class Link:
    """Something in a cycle of references."""

    def __init__(self) -> None:
        self.itself = self


def test_what_is_in_cycles_is_freed_where_the_process_has_grown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grown = iter([0, 2**30, 0, 2**20])
    monkeypatch.setattr(freed_memory, "resident", lambda: next(grown))

    @giving_back()
    def work() -> weakref.ref[Link]:
        return weakref.ref(Link())

    assert work()() is None
    assert work()() is not None, "the collector is not run for what is small"


def test_a_block_is_left_alone_by_the_collector_unless_it_was_off_before() -> None:
    with uncollected():
        with uncollected():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.skipif(sys.platform != "linux", reason="the system tells on Linux only")
def test_a_process_knows_what_it_has_in_memory() -> None:
    before = resident()
    held = b"x" * 2**26
    assert resident() >= before + 2**25
    del held
