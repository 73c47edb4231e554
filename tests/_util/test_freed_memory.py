"""Memory that a function has freed returns to the system."""

from __future__ import annotations

import gc
import sys
import weakref

import pytest

from tpunb._util import freed_memory
from tpunb._util.freed_memory import giving_back, resident, uncollected


class Link:
    """An object in a reference cycle."""

    def __init__(self) -> None:
        self.itself = self


def test_cycles_are_collected_if_the_process_has_grown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grown = iter([0, 2**30, 0, 2**20])
    monkeypatch.setattr(freed_memory, "resident", lambda: next(grown))

    @giving_back()
    def work() -> weakref.ref[Link]:
        return weakref.ref(Link())

    assert work()() is None
    assert work()() is not None, "a small function does not run the collector"


def test_the_collector_is_paused_in_a_block() -> None:
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


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports it")
def test_a_process_knows_its_memory() -> None:
    before = resident()
    block = b"x" * 2**26
    assert resident() >= before + 2**25
    del block
