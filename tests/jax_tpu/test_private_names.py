"""JAX has the private names that the virtual TPU uses."""

from __future__ import annotations

import jax
import pytest

from tpunb.errors import ConnectError
from tpunb.jax.virtual import private_names
from tpunb.jax.virtual.private_names import PRIVATE_NAMES, owner_of, private


@pytest.mark.parametrize("name", PRIVATE_NAMES)
def test_jax_has_the_name(name: str) -> None:
    owner, attribute = owner_of(name)
    assert hasattr(owner, attribute)
    assert PRIVATE_NAMES[name]


def test_a_missing_name_is_an_error_with_the_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "jax._src.compiler.compile_as_never_before"
    monkeypatch.setitem(private_names.PRIVATE_NAMES, name, "a test")
    with pytest.raises(ConnectError, match=rf"{name}, which JAX {jax.__version__} does not have"):
        private(name)
