"""A claim about TPUs, and how modules list theirs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpunb.verification.bench import Bench
    from tpunb.verification.observation import Observation

__all__ = ["Claim", "Claims"]


@dataclasses.dataclass(frozen=True, slots=True)
class Claim:
    """Something that this package says of every TPU.

    Attributes:
        group: What it is about: `"collectives"`.
        name: By which reports call it.
        says: The claim, in a sentence without its full stop.
        observe: Tries it. Raises `NotRunError` where that is not possible; anything else
            that it raises counts as a difference.
        on_main_thread: Whether it has to be tried on the main thread, where no time limit
            holds.
    """

    group: str
    name: str
    says: str
    observe: Callable[[Bench], Observation]
    on_main_thread: bool = False


class Claims:
    """The claims of one group, in the order in which they are tried.

    Args:
        group: Its name.
    """

    def __init__(self, group: str) -> None:
        self.group = group
        self._claims: list[Claim] = []

    def __iter__(self) -> Iterator[Claim]:
        return iter(self._claims)

    def claim(
        self, name: str, says: str, *, on_main_thread: bool = False
    ) -> Callable[[Callable[[Bench], Observation]], Callable[[Bench], Observation]]:
        """Adds the function that it decorates; see `Claim` for the arguments."""

        def add(observe: Callable[[Bench], Observation]) -> Callable[[Bench], Observation]:
            self._claims.append(Claim(self.group, name, says, observe, on_main_thread))
            return observe

        return add
