"""Functions in users' files, and the arguments that the files or the command provide."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tpunb.cli.python_source import (
    SourceError,
    UserCodeError,
    arguments_for,
    import_file,
    member_of,
)


def function_in(path: Path, name: str) -> tuple[Any, Any, Any]:
    """Return the module of a file, the owner of a name in it, and the object of this name."""
    module = import_file(path)
    return module, *member_of(module, path, name)


FILE = """
def step(x, w, scale=1.0):
    return x

def step_args():
    return 1, 2

def given(x): ...
given_args = {"x": 3}

def single(x): ...
single_args = "text"

def several(*parts): ...
several_args = [1, 2, 3]

def needless(): ...
def without(x, y): ...

class Trainer:
    @staticmethod
    def run(x): ...
    run_args = (7,)

def bad_args():
    raise ValueError("no data")
def bad(x): ...

def inner():
    return 1 / 0

def outer():
    return inner()
"""


@pytest.fixture(autouse=True)
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Undo the changes that importing a user's file makes to the process."""
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if not name.startswith(("users_", "types_")):
            continue
        del sys.modules[name]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "users_training.py"
    path.write_text(FILE)
    return path


def arguments(path: Path, name: str, expression: str | None = None) -> Any:
    module, owner, function = function_in(path, name)
    return arguments_for(module, owner, name, function, expression)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("step", ((1, 2), {})),
        ("given", ((), {"x": 3})),
        ("single", (["text"], {})),
        ("several", ([1, 2, 3], {})),
        ("needless", ((), {})),
        ("Trainer.run", ((7,), {})),
    ],
)
def test_a_file_names_the_arguments(name: str, expected: Any, file: Path) -> None:
    assert arguments(file, name) == expected


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("", ((), {})),
        ("1", ((1,), {})),
        ("[1, 2], w=3", (([1, 2],), {"w": 3})),
        ("step_args()", (((1, 2),), {})),
        ("np.float32(2) * 2, *[1]", ((4.0, 1), {})),
        ("1  # a comment", ((1,), {})),
    ],
)
def test_the_command_names_arguments_as_in_a_call(code: str, expected: Any, file: Path) -> None:
    assert arguments(file, "step", code) == expected


@pytest.mark.parametrize("code", ["1)", "(", "1) + f(2", "x y", "def f(): pass", "1); print(2"])
def test_invalid_python_is_refused(code: str, file: Path) -> None:
    with pytest.raises(SourceError, match="--args is not"):
        arguments(file, "step", code)


def test_missing_arguments_have_a_fix(file: Path) -> None:
    with pytest.raises(SourceError, match=r"^without takes x, y, and users_training\.py") as raised:
        arguments(file, "without")
    assert "def without_args(): return " in raised.value.fix
    assert "--args '" in raised.value.fix


def test_a_wrong_name_gets_a_suggestion(file: Path) -> None:
    with pytest.raises(SourceError, match=r"has no Trainer\.runs") as raised:
        arguments(file, "Trainer.runs")
    assert raised.value.fix == "Did you mean `run` or `run_args`?"
    with pytest.raises(SourceError, match="does not exist"):
        arguments(file.with_name("other.py"), "step")
    with pytest.raises(SourceError, match="is a folder"):
        arguments(file.parent, "step")
    with pytest.raises(SourceError, match="is not a Python file"):
        arguments(file.rename(file.with_suffix(".txt")), "step")


def test_errors_show_only_the_users_lines(file: Path) -> None:
    with pytest.raises(UserCodeError) as raised:
        arguments(file, "bad")
    error = raised.value
    assert error.summary == "ValueError: no data"
    line = FILE.splitlines().index('    raise ValueError("no data")') + 1
    assert (error.file, error.line) == (str(file), line)
    assert str(error).startswith(f'  File "{file}", line {line}, in bad_args\n')
    with pytest.raises(UserCodeError) as raised:
        arguments(file, "step", "outer()")
    places = [text for text in str(raised.value).splitlines() if text.startswith("  File")]
    assert [text.rpartition(" ")[2] for text in places] == ["<module>", "outer", "inner"]
    with pytest.raises(UserCodeError, match='File "<--args>", line 1'):
        arguments(file, "step", "undefined")


@pytest.mark.parametrize(
    ("code", "summary"),
    [
        ("def f(:\n", "SyntaxError: invalid syntax"),
        ("import does_not_exist\n", "ModuleNotFoundError: No module named 'does_not_exist'"),
        ("raise SystemExit(3)\n", "SystemExit: 3"),
    ],
)
def test_a_file_that_cannot_be_imported_names_the_line(
    code: str, summary: str, tmp_path: Path
) -> None:
    path = tmp_path / "users_broken.py"
    path.write_text(code)
    with pytest.raises(UserCodeError) as raised:
        function_in(path, "f")
    assert raised.value.summary.startswith(summary)
    assert (raised.value.file, raised.value.line) == (str(path), 1)


def test_a_file_is_imported_under_its_projects_name(tmp_path: Path) -> None:
    package = tmp_path / "users_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "parts.py").write_text("value = 4\n")
    (package / "train.py").write_text(
        "import sys\nfrom . import parts\nname, argv = __name__, list(sys.argv)\n"
        "def f(): return parts.value\n"
    )
    module, _, function = function_in(package / "train.py", "f")
    assert (function(), module.name) == (4, "users_package.train")
    assert module.argv == [str(package / "train.py")], (
        "the file must not see this command's arguments"
    )
    (tmp_path / "users_helper.py").write_text("value = 5\n")
    (tmp_path / "users_script.py").write_text("from users_helper import value\nf = lambda: value\n")
    assert function_in(tmp_path / "users_script.py", "f")[2]() == 5


def test_a_file_does_not_replace_a_module_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "types.py").write_text("def f(): return 6\n")
    types = sys.modules["types"]
    assert function_in(tmp_path / "types.py", "f")[2]() == 6
    assert sys.modules["types"] is types
