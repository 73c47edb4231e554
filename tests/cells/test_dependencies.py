"""A cell's dependencies beyond its own names, without TensorFlow."""

from __future__ import annotations

import dis
import importlib
import os
import sys
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tpunb._util import user_code
from tpunb._util.code_names import mentions
from tpunb._util.user_code import is_users_class, is_users_code, is_users_module
from tpunb.cells.reading.dependencies import Dependencies

CFG = """
    import dataclasses, enum, functools
    from types import SimpleNamespace
    from . import helpers
    from .helpers import scaled, twice

    LR = 0.1
    RATES = [0.1, 0.2]
    TABLE = {"lr": 0.1, "inner": {"deep": [1.0, 2.0]}}
    space = SimpleNamespace(lr=0.1)
    unused = 0

    def rate(): return LR
    def offset(by=1.0): return by
    def keyword(*, by=1.0): return by
    def make(by):
        def inner(): return by
        def change(new):
            nonlocal by
            by = new
        return inner, change
    closed, change_closed = make(1.0)
    def later():
        from .helpers import FACTOR
        return FACTOR
    def imported():
        import deps.helpers as h
        return h.FACTOR
    def computed(name):
        import sys
        return getattr(sys.modules[__name__], name)
    def absent(): return globals().get("EXTRA", 0.0)
    def recursive(n): return LR if n == 0 else recursive(n - 1)

    @dataclasses.dataclass
    class Config:
        lr: float = 0.1
        parts: list = dataclasses.field(default_factory=lambda: [1.0])

    class Base:
        SCALE = 2.0
        def __init__(self): self._rate, self.inner = 0.5, SimpleNamespace(x=1.0)
        @property
        def rate(self): return self._rate * self.SCALE
        @staticmethod
        def fixed(): return LR
        @classmethod
        def of_class(cls): return cls.SCALE
        def __call__(self): return self.inner.x
        def __add__(self, other): return other + LR
    class Derived(Base):
        def __init__(self): super().__init__(); self.alias = self.inner
        def through_super(self): return super().rate
    class Slotted:
        __slots__ = ("lr",)
        def __init__(self): self.lr = 0.1
    class Lazy:
        def __init__(self): self._data = {"lr": 0.1}
        def __getattr__(self, name): return self.__dict__["_data"][name]
    class Mode(enum.Enum):
        FAST = 1.0
        SLOW = 2.0

    config, thing, slotted, lazy = Config(), Derived(), Slotted(), Lazy()
    mode = Mode.FAST
    partial = functools.partial(offset, by=2.0)
    bound = thing.through_super
    table_of = {"f": lambda: LR}
"""

HELPERS = """
    import contextlib, functools
    FACTOR = 3.0
    def scaled(): return FACTOR
    def doubled(function):
        @functools.wraps(function)
        def wrapper(*args): return 2 * function(*args)
        return wrapper
    def plus(function):
        return lambda *args: function(*args) + FACTOR
    @doubled
    def twice(): return FACTOR
    @plus
    def with_plus(): return 1.0
    @functools.lru_cache(None)
    def cached(): return FACTOR
    @contextlib.contextmanager
    def context(): yield FACTOR
    @functools.singledispatch
    def dispatched(x): return FACTOR
"""


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """A notebook's namespace that has imported the user's package."""
    # Exclude the hundreds of modules of the test suite, which users do not have.
    monkeypatch.setattr(user_code, "_OWN", str(Path(__file__).parents[2]) + os.sep)
    user_code.is_users_file.cache_clear()
    package = tmp_path / "deps"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "cfg.py").write_text(textwrap.dedent(CFG))
    (package / "helpers.py").write_text(textwrap.dedent(HELPERS))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec("import deps.cfg\nfrom deps import cfg, helpers", names)
    yield names
    user_code.is_users_file.cache_clear()
    for name in [n for n in sys.modules if n.partition(".")[0] == "deps"]:
        del sys.modules[name]


def dependencies(text: str, names: dict[str, Any], trace: str = "") -> Dependencies:
    """Return a cell's dependencies after a trace, which may run code."""
    code = compile(textwrap.dedent(text), "<cell>", "exec")
    roots = {name: names[name] for name in mentions(code).globals if name in names}
    result = Dependencies(roots, code, names)
    with result.tracing():
        exec(trace, names)
    return result


def value(text: str, names: dict[str, Any]) -> Any:
    """Return the result of an ordinary cell."""
    namespace = dict(names)
    exec(textwrap.dedent(text), namespace)
    return namespace["y"]


CHANGED = [
    # Modules and packages
    ("y = cfg.LR", "cfg.LR = 0.5"),
    ("c = cfg\ny = c.LR", "cfg.LR = 0.5"),
    ("y = deps.cfg.LR", "deps.cfg.LR = 0.5"),
    ("y = getattr(cfg, 'LR')", "cfg.LR = 0.5"),
    ("y = getattr(cfg, 'NEW', 1.0)", "cfg.NEW = 0.5"),
    ("y = hasattr(cfg, 'NEW')", "cfg.NEW = 0.5"),
    ("y = vars(cfg)['LR']", "cfg.LR = 0.5"),
    ("y = cfg.__dict__['LR']", "cfg.LR = 0.5"),
    ("import operator\ny = operator.attrgetter('space.lr')(cfg)", "cfg.space.lr = 0.5"),
    ("y = hasattr(cfg, 'LR')", "del cfg.LR"),
    ("import deps.cfg as d\ny = d.LR", "cfg.LR = 0.5"),
    ("from deps.cfg import LR\ny = LR", "cfg.LR = 0.5"),
    ("from deps import helpers as h\ny = h.FACTOR", "helpers.FACTOR = 0.5"),
    ("def f():\n  from deps.cfg import LR\n  return LR\ny = f()", "cfg.LR = 0.5"),
    # Computed names
    ("import sys\ny = sys.modules['deps.cfg'].LR", "cfg.LR = 0.5"),
    ("from sys import modules\ny = modules['deps.' + 'cfg'].LR", "cfg.LR = 0.5"),
    ("import importlib\ny = importlib.import_module('deps.cfg').LR", "cfg.LR = 0.5"),
    ("from importlib import import_module as find\ny = find('deps.cfg').LR", "cfg.LR = 0.5"),
    ("y = __import__('deps.cfg').cfg.LR", "cfg.LR = 0.5"),
    ("name = 'L' + 'rR'.upper()[1]\ny = getattr(cfg, name)", "cfg.LR = 0.5"),
    ("y = getattr(deps.cfg, ''.join(['L', 'R']))", "cfg.LR = 0.5"),
    ("y = getattr(cfg, 'A' if 0 else 'L' + str('R'))", "cfg.LR = 0.5"),
    ("y = getattr(cfg.helpers, 'FACTOR'.upper())", "helpers.FACTOR = 0.5"),
    ("y = getattr(cfg, 'N' + str('EW'), 1.0)", "cfg.NEW = 0.5"),
    ("y = hasattr(cfg, 'N' + str('EW'))", "cfg.NEW = 0.5"),
    ("y = vars(cfg)['L' + str('R')]", "cfg.LR = 0.5"),
    ("y = cfg.__dict__['L' + str('R')]", "cfg.LR = 0.5"),
    ("y = cfg.computed('LR')", "cfg.LR = 0.5"),
    ("y = cfg.computed('slotted').lr", "cfg.slotted.lr = 0.5"),
    ("y = getattr(cfg.Derived, 'sca' + str('le'), 0) or getattr(cfg.Derived, 'scale'.upper())",
     "cfg.Base.SCALE = 0.5"),
    ("y = getattr(cfg.config, 'l' + str('r'))", "cfg.config.lr = 0.5"),
    ("y = getattr(cfg.space, 'l' + str('r'))", "cfg.space.lr = 0.5"),
    ("y = getattr(cfg.slotted, 'l' + str('r'))", "cfg.slotted.lr = 0.5"),
    ("y = list(vars(cfg.config).values())[0]", "cfg.config.lr = 0.5"),
    ("y = cfg.dataclasses.asdict(cfg.config)['lr']", "cfg.config.lr = 0.5"),
    # Functions of other modules, and what these read
    ("y = cfg.rate()", "cfg.LR = 0.5"),
    ("y = cfg.scaled()", "helpers.FACTOR = 0.5"),
    ("y = cfg.twice()", "helpers.FACTOR = 0.5"),
    ("y = helpers.with_plus()", "helpers.FACTOR = 0.5"),
    ("y = helpers.cached.__wrapped__()", "helpers.FACTOR = 0.5"),
    ("with helpers.context() as y: pass", "helpers.FACTOR = 0.5"),
    ("y = helpers.dispatched(1)", "helpers.FACTOR = 0.5"),
    ("y = cfg.helpers.scaled()", "cfg.helpers.scaled = lambda: 0.5"),
    ("y = cfg.later()", "helpers.FACTOR = 0.5"),
    ("y = cfg.imported()", "helpers.FACTOR = 0.5"),
    ("y = cfg.absent()", "cfg.EXTRA = 0.5"),
    ("y = cfg.recursive(3)", "cfg.LR = 0.5"),
    ("y = cfg.rate()", "def new(): return 7.0\ncfg.rate.__code__ = new.__code__"),
    ("y = cfg.offset()", "cfg.offset.__defaults__ = (0.5,)"),
    ("y = cfg.keyword()", "cfg.keyword.__kwdefaults__ = {'by': 0.5}"),
    ("y = cfg.keyword()", "cfg.keyword.__kwdefaults__['by'] = 0.5"),
    ("y = cfg.closed()", "cfg.change_closed(0.5)"),
    ("y = cfg.partial()", "cfg.partial = __import__('functools').partial(cfg.offset, by=0.5)"),
    ("y = cfg.bound()", "cfg.thing._rate = 0.1"),
    ("y = cfg.table_of['f']()", "cfg.LR = 0.5"),
    ("y = (lambda: cfg.LR)()", "cfg.LR = 0.5"),
    ("y = [cfg.LR for _ in range(2)]", "cfg.LR = 0.5"),
    ("y = f'{cfg.LR}'", "cfg.LR = 0.5"),
    # Classes
    ("y = cfg.Base.SCALE", "cfg.Base.SCALE = 0.5"),
    ("y = cfg.thing.SCALE", "cfg.Base.SCALE = 0.5"),
    ("y = cfg.Derived.SCALE", "cfg.Derived.SCALE = 0.5"),
    ("y = cfg.thing.rate", "cfg.thing._rate = 0.1"),
    ("y = cfg.thing.rate", "cfg.Base.SCALE = 0.5"),
    ("y = cfg.thing.rate", "cfg.Base.rate = property(lambda self: 7.0)"),
    ("y = cfg.thing.through_super()", "cfg.Base.SCALE = 0.5"),
    ("y = cfg.thing.fixed()", "cfg.LR = 0.5"),
    ("y = cfg.Derived.of_class()", "cfg.Base.SCALE = 0.5"),
    ("y = cfg.thing()", "cfg.thing.inner.x = 0.5"),
    ("y = cfg.thing.alias.x", "cfg.thing.inner.x = 0.5"),
    ("y = cfg.thing + 1", "cfg.LR = 0.5"),
    ("y = cfg.thing.rate", "cfg.thing.__class__ = type('Other', (cfg.Derived,), {'SCALE': 9.0})"),
    ("y = cfg.thing.fixed()", "cfg.thing.fixed = lambda: 7.0"),
    ("y = cfg.Derived().rate", "cfg.Base.SCALE = 0.5"),
    # Objects
    ("y = cfg.space.lr", "cfg.space.lr = 0.5"),
    ("y = cfg.config.lr", "cfg.config.lr = 0.5"),
    ("y = cfg.config.parts[0]", "cfg.config.parts[0] = 0.5"),
    ("y = len(cfg.config.parts)", "cfg.config.parts.append(0.5)"),
    ("y = cfg.slotted.lr", "cfg.slotted.lr = 0.5"),
    ("y = cfg.lazy.lr", "cfg.lazy._data['lr'] = 0.5"),
    ("y = cfg.mode.value", "cfg.mode = cfg.Mode.SLOW"),
    ("y = cfg.mode is cfg.Mode.FAST", "cfg.mode = cfg.Mode.SLOW"),
    ("match cfg.config:\n  case cfg.Config(lr=y): pass", "cfg.config.lr = 0.5"),
    # Containers
    ("y = cfg.RATES[0]", "cfg.RATES[0] = 0.5"),
    ("y = sum(cfg.RATES)", "cfg.RATES.append(0.5)"),
    ("y = cfg.TABLE['lr']", "cfg.TABLE['lr'] = 0.5"),
    ("y = cfg.TABLE['lr']", "cfg.TABLE.update(lr=0.5)"),
    ("y = len(cfg.TABLE)", "cfg.TABLE['new'] = 0.5"),
    ("y = cfg.TABLE['inner']['deep'][1]", "cfg.TABLE['inner']['deep'][1] = 0.5"),
    # The environment
    ("import os\ny = os.environ.get('DEPS_RATE')", "import os; os.environ['DEPS_RATE'] = '1'"),
    ("import os\ny = os.getenv('DEPS_RATE')", "import os; os.environ['DEPS_RATE'] = '1'"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "change"), CHANGED)
def test_changes_that_an_ordinary_cell_sees_are_found(
    book: dict[str, Any], monkeypatch: pytest.MonkeyPatch, text: str, change: str
) -> None:
    monkeypatch.delenv("DEPS_RATE", raising=False)
    before = value(text, book)
    dependencies_found = dependencies(text, book)
    assert dependencies_found.change() is None
    try:
        exec(change, book)
        assert value(text, book) != before
        assert dependencies_found.change() is not None
    finally:
        os.environ.pop("DEPS_RATE", None)


UNCHANGED = [
    ("y = cfg.LR", "cfg.unused = 1"),
    ("y = cfg.LR", "cfg.LR = 1.0 / 10"),
    ("y = cfg.rate()", "helpers.FACTOR = 0.5"),
    ("y = cfg.thing.rate", "cfg.thing.other = 1"),
    ("y = cfg.TABLE['lr']", "cfg.TABLE['lr'] = 0.1"),
    ("y = cfg.LR", "import importlib; importlib.reload(cfg)"),
    ("y = cfg.rate() + cfg.scaled()", "import importlib; importlib.reload(cfg)"),
    ("cfg.result = 1.0", "cfg.result = 2.0"),
    ("y = cfg.LR", "another = 1"),
    ("y = getattr(cfg, 'LR')", "cfg.unused = 1"),
    ("y = getattr(cfg, 'NEW', cfg.LR if cfg else 2.0)", "cfg.unused = 1"),
    ("y = getattr(cfg, 'L' + str('R'))", "another = 1"),
    ("import math\ny = math.pi", "math.pi = 3"),
]


@pytest.mark.parametrize(("text", "change"), UNCHANGED)
def test_irrelevant_changes_are_ignored(book: dict[str, Any], text: str, change: str) -> None:
    import math

    pi = math.pi
    dependencies_found = dependencies(text, book)
    try:
        exec(change, {**book, "math": math})
        assert dependencies_found.change() is None
    finally:
        math.pi = pi


@pytest.mark.parametrize(
    ("setup", "text", "change"),
    [
        ("seen = {1.0}", "y = sum(seen)", "seen.add(2.0)"),
        ("import collections; seen = collections.deque([1.0])", "y = seen[-1]", "seen.append(2.0)"),
        (
            "import contextvars; rate = contextvars.ContextVar('rate', default=1.0)",
            "y = rate.get()",
            "rate.set(2.0)",
        ),
        (
            "class Meta(type):\n    rate = 1.0\nclass Made(metaclass=Meta): pass",
            "y = Made.rate",
            "Meta.rate = 2.0",
        ),
    ],
)
def test_changes_of_names_in_the_cell_are_found(
    book: dict[str, Any], setup: str, text: str, change: str
) -> None:
    exec(setup, book)
    before = value(text, book)
    dependencies_found = dependencies(text, book)
    assert dependencies_found.change() is None
    exec(change, book)
    assert value(text, book) != before
    assert dependencies_found.change() is not None


def test_an_edited_and_reloaded_module(book: dict[str, Any]) -> None:
    dependencies_found = dependencies("y = cfg.rate()", book)
    path = Path(book["cfg"].__file__)
    path.write_text(path.read_text().replace("return LR\ndef offset", "return 2 * LR\ndef offset"))
    importlib.invalidate_caches()
    importlib.reload(book["cfg"])
    change = dependencies_found.change()
    assert change is not None
    assert change.subject == "`cfg.rate`"


def test_classes_that_autoreload_replaces(book: dict[str, Any]) -> None:
    """IPython's autoreload gives the old class the new code, and the objects the new class."""
    dependencies_found = dependencies("y = cfg.thing.rate", book)
    thing = book["cfg"].thing
    importlib.reload(book["cfg"])
    thing.__class__ = book["cfg"].Derived
    book["cfg"].thing = thing
    assert dependencies_found.change() is not None


@pytest.mark.parametrize(
    ("text", "change", "subject"),
    [
        ("y = cfg.LR", "cfg.LR = 0.5", "`cfg.LR`"),
        ("y = cfg.rate()", "cfg.LR = 0.5", "`LR`, which `rate` reads,"),
        ("y = cfg.thing.rate", "cfg.Base.SCALE = 0.5", "`Base.SCALE`"),
        ("y = cfg.TABLE['lr']", "cfg.TABLE['lr'] = 0.5", "`cfg.TABLE['lr']`"),
        ("y = cfg.closed()", "cfg.change_closed(2)", "`by`, which `inner` closes over,"),
        ("y = cfg.offset()", "cfg.offset.__defaults__ = (0.5,)", "a default of `cfg.offset`"),
        ("y = cfg.config.parts[0]", "cfg.config.parts[0] = 5", "`cfg.config.parts[0]`"),
    ],
)
def test_a_change_names_its_subject(
    book: dict[str, Any], text: str, change: str, subject: str
) -> None:
    dependencies_found = dependencies(text, book)
    exec(change, book)
    changed = dependencies_found.change()
    assert changed is not None
    assert changed.subject == subject


def test_changes_made_by_the_trace(book: dict[str, Any]) -> None:
    """A counter must not cause a trace in every run; an object from the first trace counts."""
    book["cfg"].count, book["cfg"].made = 0, None
    text = "cfg.count += 1\nif cfg.made is None:\n  cfg.made = 3.0\ny = cfg.made"
    dependencies_found = dependencies(text, book, trace=text)
    assert dependencies_found.change() is None
    book["cfg"].count += 1
    assert dependencies_found.change() is None
    book["cfg"].made = 4.0
    assert dependencies_found.change() is not None


def test_names_that_only_a_string_names(book: dict[str, Any]) -> None:
    book["rate"] = 1.0
    exec("def f(): return eval('rate * 2')\ndef g(): return globals()['rate']", book)
    for text in ("y = f()", "y = g()", "y = eval('rate * 2')", "y = globals()['rate']"):
        dependencies_found = dependencies(text, book)
        book["rate"] += 1
        assert dependencies_found.change() is not None


@pytest.mark.parametrize(
    "text",
    [
        "y = globals()['ra' + text[2:]]",
        "y = globals().get(text)",
        "y = [eval(each) for each in (text,)]",
        "def f(name): return vars()[name] if name in vars() else globals()[name]\ny = f(text)",
        "scope = globals()\ny = scope[text]",
        "exec('z = ' + text)",
        "def find(): return globals\nz = find()()[text]",
        "find = lambda: eval\nz = find()(text)",
    ],
)
def test_globals_with_computed_names(book: dict[str, Any], text: str) -> None:
    book |= {"rate": 1.0, "text": "rate", "_1": 3, "y": 1.0}
    dependencies_found = dependencies(text, book)
    book |= {"_1": 4, "In": ["rate"], "new": 2}
    if "y =" in text:
        book["y"] = 2.0
    assert dependencies_found.change() is None
    book["rate"] += 1
    assert dependencies_found.change() is not None
    dependencies_found = dependencies("text = 'cfg.' + 'LR'\ny = eval(text)", book)
    book["cfg"].LR = 0.7
    assert dependencies_found.change() is not None


def test_installed_libraries_are_ignored(book: dict[str, Any]) -> None:
    import argparse
    import json

    import numpy

    exec("import json, numpy\ndef f(): return json.dumps(numpy.pi)", book)
    dependencies_found = dependencies("y = f()", book)
    owners = [guard.owner for guard in dependencies_found._guards]
    assert not any(isinstance(owner, types.ModuleType) for owner in owners)
    assert vars(json) not in owners
    assert not is_users_module(numpy)
    assert not is_users_code(json.dumps.__code__)
    assert not is_users_class(argparse.Namespace)
    assert not is_users_module(sys)
    assert not is_users_module(sys.modules["tpunb"])
    assert is_users_module(book["deps"])
    assert is_users_class(book["cfg"].Config)


def test_only_the_used_attributes_of_library_objects_count(book: dict[str, Any]) -> None:
    exec("import argparse\nargs = argparse.Namespace(lr=0.1, seed=1)", book)
    dependencies_found = dependencies("y = args.lr", book)
    book["args"].seed = 2
    assert dependencies_found.change() is None
    book["args"].lr = 0.2
    assert dependencies_found.change() is not None


def test_small_arrays_are_compared(book: dict[str, Any]) -> None:
    exec("import numpy\ncfg.mean = numpy.zeros(3)", book)
    dependencies_found = dependencies("y = cfg.mean", book)
    assert dependencies_found.change() is None
    book["cfg"].mean[0] = 1.0
    assert dependencies_found.change() is not None


def test_modules_created_by_hand() -> None:
    module = types.ModuleType("made_by_hand")
    module.LR = 0.1  # type: ignore[attr-defined]
    dependencies_found = dependencies("y = made.LR", {"made": module})
    module.LR = 0.2  # type: ignore[attr-defined]
    assert dependencies_found.change() is not None


def test_large_and_circular_structures(book: dict[str, Any]) -> None:
    ring: list[Any] = [1]
    ring.append(ring)
    book["cfg"].RATES = [ring, list(range(10**6)), {"a": ring}]
    dependencies_found = dependencies("y = cfg.RATES", book)
    assert dependencies_found.change() is None
    ring[0] = 2
    assert dependencies_found.change() is not None


def test_an_unchanged_cell_checks_each_name_once(book: dict[str, Any]) -> None:
    """Operations are counted, since times depend on the machine."""
    dependencies_found = dependencies(
        "y = cfg.thing.rate + cfg.rate() + cfg.TABLE['lr'] + cfg.twice()", book
    )
    operations = [0]

    def count(frame: types.FrameType, event: str, _: object) -> None:
        operations[0] += event in ("call", "c_call")
        del frame

    sys.setprofile(count)
    try:
        dependencies_found.change()
    finally:
        sys.setprofile(None)
    assert operations[0] < 20 * len(dependencies_found._guards)
    assert len(dependencies_found._guards) < 40


def test_the_opcodes_of_this_python_are_known() -> None:
    code = compile("def f(self): return self.a + g.b.c()\nfrom m import n", "<cell>", "exec")
    dependencies_found = mentions(code)
    assert dependencies_found.attributes >= {"a", "b", "c", "n"}
    assert dependencies_found.globals == ("g",)
    assert dependencies_found.imports == ("m",)
    assert "LOAD_GLOBAL" in dis.opname
