"""The names that a cell reads and assigns, compared with Python's behaviour."""

from __future__ import annotations

import ast
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpunb.cells.reading.names import Names, analyse


def names_of(text: str) -> Names:
    return analyse(ast.parse(text).body)


@pytest.mark.parametrize(
    ("text", "reads", "certain", "definite"),
    [
        ("y = x", "x", "x", "y"),
        ("x = 1\ny = x", "", "", "x y"),
        ("x = x + 1", "x", "x", "x"),
        ("x += 1", "x", "x", "x"),
        ("d['a'] = v", "d v", "d v", ""),
        ("d.a += v", "d v", "d v", ""),
        ("a, (b, *c) = t", "t", "t", "a b c"),
        ("if q:\n  y = 1\nz = y", "q y", "q", "z"),
        ("if q:\n  y = 1\nelse:\n  y = 2\nz = y", "q", "q", "y z"),
        ("if q:\n  raise E\nelse:\n  y = 2\nz = y", "q E", "q", "y z"),
        ("for i in r:\n  y = i\nz = y", "r y", "r", "z"),
        ("for i in r:\n  y = y + i", "r y", "r", ""),
        ("for i in r:\n  y = i\n  break\nelse:\n  y = 0\nz = y", "r", "r", "y z"),
        ("while True:\n  y = 1\n  if y:\n    break\nz = y", "", "", "y z"),
        ("while q:\n  y = 1", "q", "q", ""),
        ("with a as b:\n  y = b", "a", "a", "b y"),
        ("try:\n  y = f\nexcept E:\n  y = 0\nz = y", "f E", "", "y z"),
        ("try:\n  y = f\nexcept E as e:\n  w = e\nz = y", "f E y", "", "z"),
        ("try:\n  w = f\nfinally:\n  y = 1\nz = y", "f", "f", "w y z"),
        ("match v:\n  case [a, *b]:\n    y = a\n  case _:\n    y = 0\nz = y", "v", "v", "y z"),
        ("match v:\n  case {'k': k, **m} if g:\n    y = k", "v g", "v", ""),
        ("y = [i + k for i in r if i]", "r k", "r", "y"),
        ("y = {i: j for i in r for j in i}", "r", "r", "y"),
        ("y = [y for y in y]", "y", "y", "y"),
        ("(n := a) and (m := b)", "a b", "a", "n"),
        ("y = (n := 1) if q else (m := 2)", "q", "q", "y"),
        ("y = [(n := i) for i in r]", "r", "r", "y"),
        ("def f(a=k):\n  return q", "k", "k", "f"),
        ("f = lambda a=k: q", "k", "k", "f"),
        ("class A(B):\n  x = 1\n  y = x + z", "B z", "B", "A"),
        ("class A:\n  x = r\n  y = [x for i in x]", "r x", "", "A"),
        ("class A:\n  x = r\n  class B:\n    y = x", "r x", "", "A"),
        ("@d\ndef f(a: T) -> R: pass", "d T R", "d", "f"),
        ("x = 1\ndel x", "", "", ""),
        ("import a.b, c as d\nfrom e import f", "", "", "a d f"),
        ("x: T = 1\ny: T", "", "", "x"),
        ("a < b < c", "a b c", "a b", ""),
    ],
)
def test_analysis(text: str, reads: str, certain: str, definite: str) -> None:
    names = names_of(text)
    assert set(names.reads) == set(reads.split())
    assert names.certain == set(certain.split())
    assert names.definite == set(definite.split())


def test_first_line_of_a_read() -> None:
    assert names_of("\ny = 1\nz = x\nx").reads == {"x": 3}


def test_targets_that_pass_through() -> None:
    names = names_of("for i in range(3):\n  with a as b:\n    y = i\nb = 2")
    assert names.passing == {"i"}
    assert names.bindings == {"i": 1, "b": 2, "y": 1}


def test_deep_nesting_is_fast() -> None:
    depth = 19
    text = "\n".join(f"{' ' * level}for i{level} in r:" for level in range(depth))
    assert set(names_of(f"{text}\n{' ' * depth}y = x").reads) == {"r", "x"}


# Small programs. `maybe()` is a condition, `some()` is an iterable, and `fail()` may raise.

_NAME = st.sampled_from("abcd")
_EXPRESSION = st.recursive(
    st.one_of(_NAME, st.just("1")),
    lambda inner: st.one_of(
        st.builds("one({}, {})".format, inner, inner),
        st.builds("({} if maybe() else {})".format, inner, inner),
        st.builds("(maybe() and {})".format, inner),
        st.builds("({} := {})".format, _NAME, inner),
        st.builds("len([{} for {} in some()])".format, _NAME, st.sampled_from("ae")),
        st.builds("(lambda e={}: z)".format, inner).map(lambda text: f"bool({text})"),
    ),
    max_leaves=4,
)
_SIMPLE = st.one_of(
    st.builds("{} = {}".format, _NAME, _EXPRESSION),
    st.builds("{} += {}".format, _NAME, _EXPRESSION),
    st.builds("{}, {} = {}, 1".format, _NAME, _NAME, _EXPRESSION),
    st.builds("{0} = 1; del {0}".format, _NAME),
    st.builds("{} = 1".format, _NAME),
    st.builds("from math import e as {}; {} = 2".format, _NAME, _NAME),
    _EXPRESSION,
    st.sampled_from(["fail()", "pass"]),
)
_Block = list[str]


def _indented(block: _Block) -> _Block:
    return [f" {line}" for line in block]


def _compound(blocks: st.SearchStrategy[_Block]) -> st.SearchStrategy[_Block]:
    def build(kind: str, name: str, test: str, first: _Block, second: _Block) -> _Block:
        first_block, second_block = _indented(first), _indented(second)
        return {
            "if": [f"if {test}:", *first_block, "else:", *second_block],
            "for": [f"for {name} in some():", *first_block, "else:", *second_block],
            "break": [f"for {name} in some():", *first_block, " if maybe(): break", *second_block],
            "continue": [
                f"for {name} in some():",
                *first_block,
                " if maybe(): continue",
                *second_block,
            ],
            "while": ["while maybe():", *first_block],
            "endless": [
                "while True:",
                *first_block,
                " if maybe() or not maybe(): break",
                *second_block,
            ],
            "try": ["try:", *first_block, f"except ValueError as {name}:", *second_block],
            "finally": ["try:", *first_block, "finally:", *second_block],
            "with": [f"with quiet() as {name}:", *first_block, *second_block],
            "match": [
                f"match {test}:",
                " case 1:",
                *_indented(first_block),
                f" case {name}:",
                *_indented(second_block),
            ],
            "raise": ["if maybe():", *first_block, " raise ValueError", *second],
            "class": ["class K:", *first_block],
        }[kind]

    kinds = [
        *("if", "for", "break", "continue", "while", "endless"),
        *("try", "finally", "with", "match", "raise", "class"),
    ]
    return st.builds(build, st.sampled_from(kinds), _NAME, _EXPRESSION, blocks, blocks)


_BLOCK = st.recursive(
    st.lists(_SIMPLE, min_size=1, max_size=3),
    lambda inner: st.lists(st.one_of(_compound(inner), st.lists(_SIMPLE, min_size=1)), min_size=1,
                           max_size=3).map(lambda parts: [line for part in parts for line in part]),
    max_leaves=6,
)  # fmt: skip


class _Quiet:
    def __enter__(self) -> int:
        return 1

    def __exit__(self, *_: object) -> None:
        return None


def _given(names: Names, without: str = "") -> dict[str, object]:
    return dict.fromkeys(names.reads.keys() & set("abcd") - {without}, 1)


def _run(
    text: str, seed: int, given_names: dict[str, object]
) -> tuple[dict[str, object], Exception | None]:
    chance = random.Random(seed)
    remaining = [30]

    def condition() -> bool:
        remaining[0] -= 1
        return remaining[0] > 0 and chance.random() < 0.5

    def perhaps_raise() -> None:
        if condition():
            raise ValueError

    helpers = {
        "maybe": condition,
        "some": lambda: range(chance.randrange(3)),
        "fail": perhaps_raise,
        "quiet": _Quiet,
        "one": lambda *_: 1,
    }
    namespace = {**given_names, "__builtins__": {**vars(__import__("builtins")), **helpers}}
    try:
        exec(compile(text, "<program>", "exec"), namespace)
    except Exception as error:
        return namespace, error
    return namespace, None


@settings(max_examples=300, deadline=None)
@given(_BLOCK)
def test_the_analysis_agrees_with_python(block: list[str]) -> None:
    text = "\n".join(block)
    try:
        compile(text, "<program>", "exec")
    except SyntaxError:
        return
    names = names_of(text)
    for seed in range(12):
        end, error = _run(text, seed, _given(names))
        if isinstance(error, NameError):
            # Every name that may be read first has a value, so this name was deleted.
            assert error.name in names.unbound & names.reads.keys()
        if error is None:
            assert names.definite <= end.keys()
            assert end.keys() - names.reads.keys() - {"__builtins__"} <= set(names.assigned)
    for name in names.certain & set("abcd"):  # reading them fails in every run
        for seed in range(3):
            _, error = _run(text, seed, _given(names, name))
            assert isinstance(error, (NameError, ValueError))
