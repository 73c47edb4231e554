"""Random programs, as source text."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator

from differential.operations import BATCHES, COLLECTIVES, SCALARS, VECTORS

AGGREGATIONS = ("NONE", "SUM", "MEAN", "ONLY_FIRST_REPLICA")
HEADER = "def {name}(x, y, s, i):"
"""All replicas close over the same `shared`, like over a tensor in a notebook."""


@dataclasses.dataclass(frozen=True)
class Program:
    """Functions of one replica, and the settings of their run.

    Attributes:
        source: The source text of `first` and `second`, which are called in turn.
        replicas: The number of replicas.
        variables: The synchronization and the aggregation of each variable.
        rows: The number of examples of each replica.
        calls: The names of the functions, in the order of their calls.
        autograph: Whether branches and loops are Python's, which AutoGraph converts. Conversion
            takes two thirds of the program's time. Otherwise they are TensorFlow's own.
    """

    source: str
    replicas: int
    variables: tuple[tuple[str, str], ...]
    rows: tuple[int, ...]
    calls: tuple[str, ...]
    autograph: bool = True


@dataclasses.dataclass
class Scope:
    """The names that a block of the program can read.

    Attributes:
        names: The names of each type.
        together: Whether all replicas reach this block, so that collectives are allowed.
        depth: The number of enclosing blocks.
        converted: Whether AutoGraph converts the block. It then cannot contain functions that
            use names of the block.
    """

    names: dict[str, list[str]]
    together: bool
    depth: int = 0
    converted: bool = False

    def inner(self, together: bool, *, converted: bool = False) -> Scope:
        """An inner block; `together` says whether all replicas enter it."""
        names = {kind: list(names_of_kind) for kind, names_of_kind in self.names.items()}
        converted = converted or self.converted
        return Scope(names, self.together and together, self.depth + 1, converted)


def generate(seed: int, statements: int = 7, *, autograph: bool = True) -> Program:
    """The random program of this seed."""
    return _Generator(random.Random(seed), statements, autograph).program()


class _Generator:
    def __init__(self, rng: random.Random, statements: int, autograph: bool) -> None:
        self.rng = rng
        self.autograph = autograph
        self.statements = statements
        self.numbers = 0
        self.variables = tuple(self._variable() for _ in range(rng.choice((2, 3))))

    def program(self) -> Program:
        replicas = self.rng.choice((2, 2, 2, 3, 8))
        even = self.rng.random() < 0.4
        rows = tuple(3 if even else self.rng.randrange(4) for _ in range(replicas))
        source = "\n\n".join("\n".join(self._function(name)) for name in ("first", "second"))
        calls = self.rng.choice((("first", "second") * 2, ("first", "first", "second", "first")))
        return Program(source + "\n", replicas, self.variables, rows, calls, self.autograph)

    def _variable(self) -> tuple[str, str]:
        on_read = self.rng.random() < 0.2
        return "ON_READ" if on_read else "ON_WRITE", self.rng.choice(AGGREGATIONS)

    def _function(self, name: str) -> Iterator[str]:
        yield HEADER.format(name=name)
        scope = Scope({"v": ["shared", "y"], "s": ["s"], "b": ["x"]}, together=True)
        for _ in range(self.statements):
            yield from self._indented(self._statement(scope))
        kept = scope.names["v"][-3:] + scope.names["s"][-2:]
        yield f"    return [{', '.join(kept)}]"

    # Statements.

    def _statement(self, scope: Scope) -> Iterator[str]:
        simple: list[Callable[[Scope], Iterator[str]]] = [
            self._vector, self._vector, self._scalar, self._batch, self._read, self._update,
        ]  # fmt: skip
        if scope.together:
            simple += [self._collective, self._collective]
        blocks = [self._tape, self._loop, self._loop, self._cond]
        if self.autograph:
            blocks = [self._if, self._for, self._while, self._tape]
        if not scope.converted:
            blocks += [self._cond, self._switch, self._switch, self._nested]
        deep = scope.depth >= 2 or self.rng.random() < 0.65
        yield from self.rng.choice(simple if deep else blocks)(scope)

    def _block(self, scope: Scope, result: str, least: int = 1) -> Iterator[str]:
        """Statements that set a vector that also exists outside the block."""
        for _ in range(self.rng.randrange(least, 4)):
            yield from self._indented(self._statement(scope))
        yield f"    {result} = {self._bounded(self._pick(scope, VECTORS))}"

    def _vector(self, scope: Scope) -> Iterator[str]:
        yield self._set(scope, "v", self._bounded(self._pick(scope, VECTORS)))

    def _scalar(self, scope: Scope) -> Iterator[str]:
        yield self._set(scope, "s", self._bounded(self._pick(scope, SCALARS)))

    def _batch(self, scope: Scope) -> Iterator[str]:
        yield self._set(scope, "b", self._bounded(self._pick(scope, BATCHES)))

    def _collective(self, scope: Scope) -> Iterator[str]:
        yield self._set(scope, "v", self._bounded(self._pick(scope, COLLECTIVES)))

    def _read(self, scope: Scope) -> Iterator[str]:
        number = self.rng.randrange(len(self.variables))
        yield self._set(scope, "v", f"v{number}.read_value()")

    def _update(self, scope: Scope) -> Iterator[str]:
        allowed = [
            number
            for number, (synchronization, aggregation) in enumerate(self.variables)
            if scope.together or synchronization == "ON_READ" or aggregation == "NONE"
        ]
        if not allowed:
            yield from self._vector(scope)
            return
        how = self.rng.choice(("assign", "assign_add", "assign_sub"))
        value = self._bounded(self._pick(scope, VECTORS))
        if scope.together and self.rng.random() < 0.5:
            value = self._pick(scope, COLLECTIVES)
        number = self.rng.choice(allowed)
        yield f"v{number}.{how}({self._bounded(value)})"
        if how != "assign":
            # Sums over many calls stay small.
            yield self._set(scope, "v", self._bounded(f"v{number}.read_value()"))

    # Blocks.

    def _if(self, scope: Scope) -> Iterator[str]:
        predicate, together = self._predicate(scope)
        result = f"v_{self._number()}"
        yield f"if {predicate}:"
        yield from self._block(scope.inner(together, converted=True), result)
        yield "else:"
        yield from self._block(scope.inner(together, converted=True), result, least=0)
        scope.names["v"].append(result)

    def _cond(self, scope: Scope) -> Iterator[str]:
        predicate, together = self._predicate(scope)
        names = []
        for _ in range(2):
            name = f"branch{self._number()}"
            names.append(name)
            yield from self._thunk(name, scope.inner(together))
        yield self._set(scope, "v", f"tf.cond({predicate}, {names[0]}, {names[1]})")

    def _switch(self, scope: Scope) -> Iterator[str]:
        index, together = self.rng.choice((("i % 3", True), ("replica_id() % 3", False)))
        names = []
        for _ in range(3):
            name = f"branch{self._number()}"
            names.append(name)
            yield from self._thunk(name, scope.inner(together))
        yield self._set(scope, "v", f"tf.switch_case({index}, [{', '.join(names)}])")

    def _thunk(self, name: str, scope: Scope, parameter: str = "") -> Iterator[str]:
        yield f"def {name}({parameter}):"
        yield from self._block(scope, "result", least=1 if parameter else 0)
        yield "    return result"

    def _for(self, scope: Scope) -> Iterator[str]:
        result = f"v_{self._number()}"
        yield f"{result} = {self._copied(scope)}"
        scope.names["v"].append(result)
        count, together = self.rng.choice((("2", True), ("i % 3", True), ("replica_id()", False)))
        yield f"for _ in tf.range({count}):"
        yield from self._block(scope.inner(together, converted=True), result)

    def _while(self, scope: Scope) -> Iterator[str]:
        result, counter = f"v_{self._number()}", f"n{self._number()}"
        yield f"{result} = {self._copied(scope)}"
        yield f"{counter} = tf.constant(0)"
        scope.names["v"].append(result)
        count, together = self.rng.choice((("2", True), ("replica_id() % 3", False)))
        yield f"while {counter} < {count}:"
        yield from self._block(scope.inner(together, converted=True), result)
        yield f"    {counter} = {counter} + 1"

    def _loop(self, scope: Scope) -> Iterator[str]:
        name, parameter = f"body{self._number()}", f"r{self._number()}"
        start = self._copied(scope)
        count, together = self.rng.choice((("2", True), ("i % 3", True), ("replica_id()", False)))
        inner = scope.inner(together)
        inner.names["v"].append(parameter)
        yield from self._thunk(name, inner, parameter)
        yield self._set(scope, "v", f"repeated({count}, {name}, {start})")

    def _nested(self, scope: Scope) -> Iterator[str]:
        name, inner = f"nested{self._number()}", scope.inner(together=True)
        inner.names["v"] = ["p", "q", *inner.names["v"]]
        yield "@nested"
        yield f"def {name}(p, q):"
        yield from self._block(inner, "result")
        yield "    return result"
        arguments = self._pick(scope, ("{v}, {w}",))
        yield self._set(scope, "v", f"{name}({arguments})")

    def _tape(self, scope: Scope) -> Iterator[str]:
        watched, number = self._pick(scope, ("{v}",)), self._number()
        yield f"with tf.GradientTape(persistent=True) as tape{number}:"
        yield f"    tape{number}.watch({watched})"
        inner = scope.inner(together=True)
        inner.names["v"] = [watched, watched, *inner.names["v"]]
        yield from self._block(inner, f"y{number}")
        target = watched
        if self.rng.random() < 0.5:
            target = f"v{self.rng.randrange(len(self.variables))}"
        gradient = f"gradient(tape{number}, y{number}, {target})"
        yield self._set(scope, "v", self._bounded(gradient))

    # Parts.

    def _predicate(self, scope: Scope) -> tuple[str, bool]:
        """A condition, and whether it is equal on every replica."""
        bound = self.rng.choice(("-0.3", "0.1", "0.7"))
        if scope.together and self.rng.random() < 0.5:
            return self._pick(scope, (f"all_reduce('sum', {{s}}) > {bound}", "i % 2 == 0")), True
        return self._pick(scope, (f"{{s}} > {bound}", "replica_id() % 2 == 0")), False

    def _copied(self, scope: Scope) -> str:
        """An expression for a copy of a vector.

        If eager code runs a loop zero times, the loop's variable stays the tensor that it started
        as. A tape that watches this tensor watches both names; in a graph they are two tensors.
        """
        return f"tf.identity({self._pick(scope, ('{v}',))})"

    def _pick(self, scope: Scope, choices: tuple[str, ...]) -> str:
        chosen = self.rng.choice(choices)
        if "{b}" in chosen and not scope.names["b"]:
            chosen = "{v}"
        return chosen.format(
            v=self._name(scope, "v"),
            w=self._name(scope, "v"),
            s=self._name(scope, "s"),
            b=self._name(scope, "b"),
        )

    def _name(self, scope: Scope, kind: str) -> str:
        # Prefer the latest names.
        names = scope.names[kind]
        return self.rng.choice(names[-4:] if self.rng.random() < 0.7 else names)

    def _set(self, scope: Scope, kind: str, value: str) -> str:
        """Give a value a name that later statements can read."""
        name = f"{kind}_{self._number()}"
        scope.names[kind].append(name)
        return f"{name} = {value}"

    def _number(self) -> int:
        self.numbers += 1
        return self.numbers

    @staticmethod
    def _bounded(text: str) -> str:
        return f"bounded({text})"

    @staticmethod
    def _indented(lines: Iterator[str]) -> Iterator[str]:
        return ("    " + line for line in lines)
