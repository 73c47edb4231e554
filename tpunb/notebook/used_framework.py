"""The framework that a notebook is for, from its imports. Nothing is executed or imported."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Iterator

from tpunb.machine.framework import JAX, TENSORFLOW

_PACKAGES = {
    **dict.fromkeys(
        (
            *("jax", "jaxlib", "flax", "optax", "equinox", "haiku", "orbax", "chex", "diffrax"),
            *("optimistix", "lineax", "numpyro", "blackjax", "distrax", "jraph", "penzai", "qwix"),
            *("tunix", "rlax", "brax", "gemma", "maxtext", "MaxText", "oryx"),
        ),
        JAX,
    ),
    **dict.fromkeys(
        ("tensorflow", "tf_keras", "tensorflow_hub", "tensorflow_text", "tensorflow_gnn"),
        TENSORFLOW,
    ),
}
"""The framework of each package. Packages for both frameworks are not listed."""

_OF_KERAS = ("keras", "keras_hub", "keras_nlp", "keras_cv", "keras_rs", "keras_tuner")
_BACKEND = "KERAS_BACKEND"
_TPU_NAMES = frozenset({"TPUStrategy", "TPUClusterResolver", "initialize_tpu_system"})
_LISTING = frozenset({"list_logical_devices", "list_physical_devices"})
"""Names with which a TensorFlow program uses a TPU. JAX programs use TensorFlow for their input."""

_PYTHON_MAGICS = frozenset({"time", "timeit", "capture", "prun"})


def framework_of(cells: Iterable[str]) -> str | None:
    """Return the framework that a notebook is for, or None if its imports do not tell.

    The backend of Keras decides, if the notebook sets it. Otherwise the imported packages decide.
    A notebook with packages of both frameworks is for JAX, unless it names a TPU as TensorFlow
    does.

    Args:
        cells: The sources of the code cells.
    """
    nodes = [node for cell in cells for node in _nodes(cell)]
    imported = {package for node in nodes for package in _imported(node)}
    backends = [text for node in nodes for text in _backends(node)]
    if not backends and not imported.isdisjoint(_OF_KERAS):
        backends = [os.environ.get(_BACKEND, "")]
    for backend in backends[-1:]:
        if backend in (JAX, TENSORFLOW):
            return backend
    found = {_PACKAGES[package] for package in imported if package in _PACKAGES}
    if len(found) < 2:
        return next(iter(found), None)
    return TENSORFLOW if any(map(_uses_tpu_of_tensorflow, nodes)) else JAX


def _uses_tpu_of_tensorflow(node: ast.AST) -> bool:
    name = _name(node)
    return name in _TPU_NAMES or (name in _LISTING and "TPU" in _texts(node))


def _nodes(cell: str) -> Iterator[ast.AST]:
    """Yield the parts of a cell; nothing if it is not Python."""
    from IPython.core.inputtransformer2 import TransformerManager

    try:
        tree = ast.parse(TransformerManager().transform_cell(cell))
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        yield node
        if isinstance(node, ast.Call) and _name(node) == "run_cell_magic":
            magic, *_, body = _texts(node)
            yield from _nodes(body) if magic in _PYTHON_MAGICS else ()


def _imported(node: ast.AST) -> Iterator[str]:
    """Yield the packages that a statement imports."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.name.partition(".")[0]
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        yield node.module.partition(".")[0]


def _backends(node: ast.AST) -> Iterator[str]:
    """Yield the backend of Keras that a statement sets."""
    if isinstance(node, ast.Assign):
        if any(_BACKEND in _texts(target) for target in node.targets):
            yield from _texts(node.value)
    elif isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if key is not None and _texts(key) == [_BACKEND]:
                yield from _texts(value)
    elif isinstance(node, ast.Call):
        yield from _backends_of_call(node)


def _backends_of_call(node: ast.Call) -> Iterator[str]:
    """Yield the backend that a call sets: of `os.environ`, of Keras, of `%env`."""
    texts, name = _texts(node), _name(node)
    if name in {"setdefault", "putenv"} and texts[:1] == [_BACKEND]:
        yield from texts[1:]
    elif name == "set_backend":
        yield from texts
    elif name == "run_line_magic" and texts[:1] in (["env"], ["set_env"]):
        variable, _, value = texts[-1].replace("=", " ", 1).partition(" ")
        if variable == _BACKEND:
            yield value.strip()
    yield from (
        text
        for keyword in node.keywords
        if keyword.arg == _BACKEND
        for text in _texts(keyword.value)
    )


def _texts(node: ast.AST) -> list[str]:
    """Return the strings of a constant, of a call's arguments, or of an item's key."""
    if isinstance(node, ast.Call):
        return [text for argument in node.args for text in _texts(argument)]
    if isinstance(node, ast.Subscript):
        return _texts(node.slice)
    return [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) else []


def _name(node: ast.AST) -> str:
    """Return the name that a node refers to or calls; empty for other nodes."""
    if isinstance(node, ast.Call):
        return _name(node.func)
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Name):
        return node.id
    return node.name if isinstance(node, ast.alias) else ""
