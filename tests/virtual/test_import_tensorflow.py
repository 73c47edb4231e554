"""TensorFlow is imported in one way, whoever imports it."""

from __future__ import annotations

import sys

import pytest

from tpunb.errors import ConnectError
from tpunb.virtual.import_tensorflow import import_tensorflow


def test_tensorflow_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(ConnectError, match="not installed") as caught:
        import_tensorflow()
    assert "tpunb[cpu]" in caught.value.fix
