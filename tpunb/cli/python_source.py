"""A function in a user's Python file, and the arguments to compile it with."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from tpunb._util.search_path import add_users_folder, is_taken
from tpunb.cells.reading.cell_errors import essence
from tpunb.errors import TpunbError, did_you_mean
from tpunb.errors.code_problems import is_library, refusal_in_short

SEPARATOR = "::"
_EXAMPLE = "Name a Python file: train.py::train_step."
_KNOWN = {
    "tf": "tensorflow",
    "np": "numpy",
    "jax": "jax",
    "jnp": "jax.numpy",
    "keras": "keras",
}
"""Names that `--args` may use although the file does not import them."""


_FRAME = re.compile(r'File "([^"\n]+)", line (\d+), in (\w+)')


class SourceError(TpunbError):
    """A file, a function or arguments that do not exist, or that do not go together."""


class UserCodeError(Exception):
    """An error in the user's code. The message has its lines, and no line of tpunb or a library.

    Attributes:
        summary: The error on one line.
        file: The file of the innermost line; empty if there is none.
        line: The number of that line, or None.
    """

    def __init__(self, error: BaseException) -> None:
        places = user_frames(error)
        named = type(error).__name__
        self.file, self.line = (places[-1].filename, places[-1].lineno) if places else ("", None)
        if isinstance(error, SyntaxError) and error.filename:
            self.file, self.line = error.filename, error.lineno
            text = "".join(traceback.format_exception_only(error)).rstrip()
        else:
            lines = "".join(traceback.format_list(places))
            text = lines + f"{named}: {_message(error)}".rstrip(": ")
        first = next(iter(_message(error).splitlines()), "")
        self.summary = f"{named}: {first}".rstrip(": ")
        super().__init__(text)


def user_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the lines of the user's files that led to an error, outermost first."""
    # AutoGraph's frames belong to generated files, and its metadata or its message has the
    # original lines.
    stack = getattr(getattr(error, "ag_error_metadata", None), "translated_stack", ())
    translated = [(each.filename, each.lineno, each.function_name) for each in reversed(stack)]
    written = [(file, int(line), name) for file, line, name in _FRAME.findall(str(error))]
    frames = [
        *traceback.extract_tb(error.__traceback__),
        *(traceback.FrameSummary(*place) for place in written or translated),
    ]
    return [frame for frame in frames if not is_library(frame.filename)]


def _message(error: BaseException) -> str:
    """Return an error's message without the traces that frameworks put into it."""
    message = essence(error)
    return refusal_in_short(message) or message


def member_of(module: ModuleType, path: Path, name: str) -> tuple[Any, Any]:
    """Return the owner of a name in an imported file, and the object of this name.

    Args:
        module: The imported file.
        path: The file.
        name: A function, a model, or a dotted name such as `Trainer.step`.

    Raises:
        SourceError: The name does not exist, or it is not a function's.
    """
    owner: Any = module
    value: Any = module
    for part in name.split("."):
        owner = value
        if not hasattr(owner, part):
            choices = [each for each in vars(owner) if not each.startswith("_")]
            raise SourceError(
                f"{path} has no {name}.", fix=did_you_mean(part, choices, "Name a function in it.")
            )
        value = getattr(owner, part)
    if not callable(value):
        raise SourceError(f"{name} is {_with_article(value)}, not a function.", fix=_EXAMPLE)
    return owner, value


def refuse_other_than_file(path: Path, fix: str) -> None:
    """Check that a path is a file's.

    Args:
        path: The path.
        fix: What to do if it is not.

    Raises:
        SourceError: It is a folder or a pipe, or it does not exist.
    """
    if path.is_file():
        return
    if str(path) == "-":
        raise SourceError("A program cannot be read from standard input.", fix=fix)
    kind = "is a folder" if path.is_dir() else "is not a file but a pipe or a device"
    raise SourceError(f"{path} {kind if path.exists() else 'does not exist'}.", fix=fix)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def import_file(path: Path) -> ModuleType:
    """Import a file as `python FILE` or `import` would find it, but not as `__main__`.

    Raises:
        SourceError: The path is not a file's, or its name is not UTF-8.
        UserCodeError: Importing the file raises an error.
    """
    refuse_other_than_file(path, _EXAMPLE)
    path = path.resolve()
    if not _is_unicode(str(path)):  # neither AutoGraph nor JAX reads such a file
        raise SourceError(f"The name {path} is not UTF-8.", fix="Rename the file or its folder.")
    root, parts = path.parent, [path.stem]
    while (root / "__init__.py").exists():  # a module of a package may import its siblings
        root, parts = root.parent, [root.name, *parts]
    name = ".".join(parts)
    for folder in (str(Path.cwd()), str(root)):  # the file's own folder comes first
        add_users_folder(folder)
    sys.argv = [str(path)]  # a file that reads arguments gets none of this command's
    try:
        if len(parts) > 1:
            return importlib.import_module(name)
        if is_taken(name):  # a file such as types.py must not replace Python's module
            name = f"{name}_of_the_user"
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise SourceError(f"{path} is not a Python file.", fix=_EXAMPLE)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    except (SourceError, KeyboardInterrupt):
        raise
    except BaseException as error:  # also of sys.exit, or of pytest.skip
        raise UserCodeError(error) from error
    return module


def arguments_for(
    module: ModuleType, owner: Any, name: str, function: Any, expression: str | None
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return the arguments to compile a function with.

    Args:
        module: The module of the function.
        owner: The module or the class that has the function.
        name: The function's dotted name.
        function: The function.
        expression: Python code such as `tf.zeros([8, 4]), training=True`; or None for the value of
            `NAME_args`, which may be a function, beside the function in its file.

    Raises:
        SourceError: There are no arguments.
        UserCodeError: Evaluating them raises an error.
    """
    if expression is not None:
        return _evaluated(module, expression)
    wanted = f"{name.rpartition('.')[2]}_args"
    for holder in (owner, module):
        if hasattr(holder, wanted):
            return _given(getattr(holder, wanted))
    is_model = hasattr(function, "train_on_batch")  # its batch is not among its parameters
    needed = None if is_model else _required(function)
    if needed == []:
        return (), {}
    takes = f"{name} takes {', '.join(needed)}" if needed else f"{name} takes arguments"
    first = Path(getattr(module, "__file__", None) or "the file").name
    raise SourceError(
        f"{takes}, and {first} does not say with which arguments to compile it.",
        fix=f"Add a function to {first}, such as def {wanted}(): return tf.TensorSpec([256, 224, "
        "224, 3]), tf.TensorSpec([256], tf.int64). Or add --args 'tf.zeros([256, 224, 224, 3]), "
        "...'",
    )


def _given(value: Any) -> tuple[Sequence[Any], Mapping[str, Any]]:
    if callable(value):
        try:
            value = value()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise UserCodeError(error) from error
    if isinstance(value, Mapping):
        return (), value
    # A named tuple is one argument.
    is_several = isinstance(value, list) or type(value) is tuple
    return (value if is_several else [value]), {}


def _evaluated(module: ModuleType, expression: str) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return the arguments in a call's parentheses."""
    try:
        call: Any = ast.parse(f"_({expression}\n)", "<--args>", mode="eval").body
    except SyntaxError as error:
        raise SourceError(
            f"--args is not Python: {error.msg}: {expression}",
            fix="Write the arguments as in a call: --args 'tf.zeros([8, 4]), training=True'",
        ) from None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise SourceError(f"--args is not the arguments of a call: {expression}")
    names = dict(vars(module))
    for node in ast.walk(call):
        if isinstance(node, ast.Name) and node.id not in names and node.id in _KNOWN:
            try:
                names[node.id] = importlib.import_module(_KNOWN[node.id])
            except ImportError as error:
                raise SourceError(f"--args uses {node.id}: {error}.") from None
    code = compile(ast.Expression(call), "<--args>", "eval")
    names["_"] = lambda *args, **named: (args, named)
    try:
        args, named = eval(code, names)  # noqa: S307
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise UserCodeError(error) from error
    return args, named


def refuse_wrong_arguments(
    name: str, function: Any, args: Sequence[Any], named: Mapping[str, Any]
) -> None:
    """Check that a function takes the arguments. A model's step takes a batch of any form.

    Raises:
        SourceError: It does not.
    """
    if hasattr(function, "train_on_batch"):
        return
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a function of C
        return
    try:
        signature.bind(*args, **named)
    except TypeError as error:
        takes = f"{name}{signature}"
        raise SourceError(
            f"{takes} does not take these arguments: {error}.",
            fix=f"Change {name.rpartition('.')[2]}_args, or --args.",
        ) from None


def _with_article(value: Any) -> str:
    kind = type(value).__name__
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def _required(function: Any) -> list[str] | None:
    """Return the names of the parameters that have no default; None if they are not known."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [
        each.name
        for each in parameters
        if each.default is inspect.Parameter.empty and each.kind not in kinds
    ]
