"""The variables of a strategy whose copies may differ, and the functions that rely on one value.

`variable_copies.py` explains where copies are kept, and why they become separate.
"""

from __future__ import annotations

import dataclasses
import threading
import weakref
from collections.abc import Collection

import tensorflow as tf

from tpunb._util.interrupts import uninterrupted
from tpunb.errors.code_problems import SourceLine
from tpunb.tensorflow.virtual.copies.variable_copies import Copies
from tpunb.tensorflow.virtual.private_names import context
from tpunb.tensorflow.virtual.replicate.expansion import Expansion
from tpunb.tensorflow.virtual.replicate.rewritable_function import (
    RewritableFunction,
    Separate,
    as_known,
    keys_of,
)
from tpunb.tensorflow.virtual.replicate.variance import Arguments
from tpunb.tensorflow.virtual.runtime import running_functions


@dataclasses.dataclass(frozen=True)
class LocalUpdate:
    """An update by which each replica may set its copy of a variable to its own value.

    Attributes:
        name: The variable's name.
        lines: The lines of the user's code that led to the update, innermost first.
    """

    name: str
    lines: tuple[SourceLine, ...]


class Divergence:
    """A strategy's record of copies, and of the functions that must change with them.

    Attributes:
        variables: The keys of the variables whose copies may differ. Traces add keys.
        lock: Held while copies become separate, and while copies that are together get one value.
        updates: By the key of a variable, the first update that may give its copies different
            values.
    """

    def __init__(self) -> None:
        self.variables: set[str] = set()
        self.lock = threading.RLock()
        self.updates: dict[str, LocalUpdate] = {}
        self._copies = weakref.WeakValueDictionary[str, Copies]()
        # Each lives as long as the functions that were registered for it.
        self._functions = weakref.WeakSet[RewritableFunction]()
        self._has_changed = False
        self._is_renewing = False  # also after an error
        running_functions.count_for(self)

    def add(self, copies: Copies) -> None:
        """Record the copies of a variable."""
        self._copies[copies.key] = copies

    def copies(self, key: str) -> Copies | None:
        """Return the copies of a variable; None if the variable is gone."""
        return self._copies.get(key)

    def watch(self, function: RewritableFunction) -> None:
        """Record a function for all replicas, to write it again when its copies change."""
        self._functions.add(function)

    def known(self, arguments: Arguments) -> Arguments:
        """Return arguments updated with what is known about their copies."""
        return as_known(arguments, self.variables, self._separate())

    def settle(self, arguments: Arguments, expansion: Expansion) -> bool:
        """Change copies as a function for all replicas changes them.

        Returns:
            Whether the function is right. Otherwise copies had to become separate for it, and it
            has other arguments.

        Raises:
            FailedPreconditionError: The function gives copies different values, but a running
                function relies on one value.
        """
        self.diverge(keys_of(arguments, expansion.diverged))
        self.separate(keys_of(arguments, expansion.must_separate))
        return not expansion.must_separate

    def diverge(self, variables: Collection[str]) -> None:
        """Note that copies of variables may differ from now on, and separate them.

        Raises:
            FailedPreconditionError: A running function relies on one value.
        """
        self._change(variables, diverged=True)

    def separate(self, variables: Collection[str]) -> None:
        """Give each copy of variables a resource of its own.

        Raises:
            FailedPreconditionError: A running function relies on one value.
        """
        self._change(variables, diverged=False)

    def _change(self, variables: Collection[str], *, diverged: bool) -> None:
        with self.lock:
            changing = {key for key in variables if self._are_together(key)}
            if diverged:
                changing.update(set(variables) - self.variables)
            if not (changing or self._is_renewing):
                return
            with running_functions.none_begins():
                self._refuse_while_used(changing)
                # Otherwise functions that have not been called since would give stale numbers.
                with uninterrupted():
                    self._renew(changing, diverged=diverged)

    def _are_together(self, key: str) -> bool:
        copies = self._copies.get(key)
        return copies is not None and copies.are_together

    def _separate(self) -> Separate:
        """Return the copies that were together and are separate now, by their variables' keys."""
        # A list of references: other threads create variables meanwhile.
        alive = [copies for reference in self._copies.valuerefs() if (copies := reference())]
        return {copies.key: copies for copies in alive if copies.are_separate}

    def _refuse_while_used(self, variables: Collection[str]) -> None:
        """Refuse to change copies while a running function relies on their single value."""
        names = [function.name for function in self._affected(variables)]
        if not names or not running_functions.any_runs(names):
            return
        copies = next(filter(None, map(self._copies.get, sorted(variables))), None)
        name = copies.name if copies is not None else "a variable"
        raise tf.errors.FailedPreconditionError(
            None,
            None,
            f"The copies of {name} cannot get values of their own now: a function runs that was "
            "built for one value, or one table of values, of all copies. Let it end first.\nOr "
            "use one copy on its own before the function runs for the first time: "
            "v.values[0].assign(v.values[0]).",
        )

    def _affected(self, variables: Collection[str]) -> set[RewritableFunction]:
        """Return the functions that must be rewritten when copies of variables change.

        A function that updates another variable with these variables may make the other variable's
        copies differ, too.
        """
        keys = set(variables)
        while True:
            affected = {
                function
                for function in self._functions
                if not keys.isdisjoint(function.equal | function.together)
            }
            more = keys.union(*(function.keys for function in affected))
            if more == keys:
                return affected
            keys = more

    def _renew(self, variables: Collection[str], *, diverged: bool) -> None:
        """Separate copies, and redefine stale functions; a second call continues the work."""
        self._is_renewing = True
        if diverged:
            self.variables.update(variables)
        self._separate_all(variables)
        while stale := self._stale():
            self._has_changed = True
            for function in stale:
                # An update of one variable from another spreads the divergence.
                spread, to_separate = function.renew(self.variables, self._separate())
                self.variables.update(spread)
                self._separate_all(spread | to_separate)
        if self._has_changed:
            # Functions that have inlined a redefined function are prepared again at their next
            # call. Kernels that made resources are dropped: each is for one name and takes 30 KiB.
            context.context().clear_kernel_cache()
            self._has_changed = False
        self._is_renewing = False

    def _separate_all(self, variables: Collection[str]) -> None:
        for key in variables:
            copies = self._copies.get(key)
            if copies is not None and copies.are_together:
                self._has_changed = True
                copies.separate()

    def _stale(self) -> list[RewritableFunction]:
        """Return the functions that take copies for equal, or for together, that no longer are."""
        separate = self._separate().keys()
        return [
            function
            for function in self._functions
            if not function.equal.isdisjoint(self.variables)
            or not function.together.isdisjoint(separate)
        ]
