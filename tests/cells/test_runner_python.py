"""Python's grammar in cells: through AutoGraph and TensorFlow, results equal an ordinary cell's."""

from __future__ import annotations

import pytest
import tensorflow as tf
from support.cells import Notebook

PROGRAMS = {
    "nonlocal": """
def accumulate():
    total = 0
    def add(v):
        nonlocal total
        if v > 0:
            total += v
        for _ in range(2):
            total += 1
        return total
    return add
add = accumulate()
add(1)
y = add(2)
""",
    "global": """
y = 0
def count():
    global y
    y += 1
    for _ in range(2):
        y += 10
count()
count()
""",
    "global of tensors": """
t = x
def add(v):
    global t
    if v > 0:
        t = t + v
    return t
add(x)
add(-x)
y = t
""",
    "classes": """
base = 5
def decorated(kind):
    kind.extra = 1
    return kind
@decorated
class A:
    __secret = base + 1
    for i in range(2):
        k = i
    if k:
        z = 3
    def get(self): return self.__secret
    @property
    def both(self): return self.get() + self.extra + self.z
class B(A):
    def get(self): return super().get() * 2
y = B().both
""",
    "match": """
match [1, {"k": 2, "m": 3}]:
    case [a, {"k": b, **rest}] if a:
        y = (a, b, rest)
    case _:
        y = 0
z = a
""",
    "walrus": """
y = [(last := i) for i in range(3)]
if (n := last) and (m := 4):
    y += [n, m]
z = m
""",
    "exceptions": """
def f(v):
    try:
        return 1 // v
    except ZeroDivisionError as error:
        return str(error)
    finally:
        seen.append(v)
seen = []
y = [f(1), f(0), seen]
""",
    "suppressed": """
import contextlib
y = 1
with contextlib.suppress(ZeroDivisionError):
    y = 2
    w = 1 // 0
    y = 3
""",
    "generators": """
def numbers(n):
    got = yield n
    yield from range(got)
made = numbers(2)
y = [next(made), made.send(3), *made]
""",
    "functions": """
def f(a, /, b=2, *c, d, e=(lambda q=3: q)(), **g) -> "float": return (a, b, c, d, e, g)
y = f(1, *[5, 6], d=4, **{"h": 7})
even = lambda n: True if n == 0 else odd(n - 1)
odd = lambda n: False if n == 0 else even(n - 1)
z = even(4)
""",
    "loops": """
y = []
for i, (a, b) in enumerate([(1, 2), (3, 4)]):
    for c in range(3):
        if c == a: continue
        if c == b: break
        y.append(c)
    else:
        y.append("end")
while len(y) < 9: y.append(0)
""",
    "the rest": """
größe = 2; a = b = [größe]; a += [1]
(c, *d), e = (1, 2, 3), 1 < 2 < 3 != 4
del a[0]
y = f"{größe!r:>{3}} {e=}", b, c, d, {**{"k": 1}, "l": 2}, {*d}, 1 if not e else ..., \\
    -c ** 2 @ 1 if False else None
assert __debug__, "text"
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_equal_an_ordinary_cells(single: Notebook, name: str) -> None:
    single.names["x"] = tf.constant(1.0)
    expected = dict(single.names)
    exec(PROGRAMS[name], expected)
    for _ in range(2):
        single.cell(PROGRAMS[name])
        for each in ("y", "z"):
            assert str(single.names.get(each)) == str(expected.get(each))


@pytest.mark.parametrize("text", ["import sys\ny = x\nsys.exit(3)", "raise SystemExit(3)"])
def test_leaving_a_cell(book: Notebook, text: str) -> None:
    book.names["x"] = tf.constant(1.0)
    for body in (text, f"def leave():\n  {text.replace(chr(10), chr(10) + '  ')}\nleave()"):
        with pytest.raises(SystemExit) as caught:
            book.cell(body)
        assert caught.value.code == 3
    assert "y" not in book.names
    book.cell("y = x + 1.0", reduce={"y": "mean"})
    assert float(book.names["y"]) == 2.0
    with pytest.raises(SystemExit):
        book.runner.steps("x = x + 1.0\nraise SystemExit", book.names, steps=3).go()
    run = book.runner.steps("x = x + 1.0", book.names, steps=3, reduce={"x": "mean"})
    run.go()
    assert float(run.assigned["x"]) == 4.0
