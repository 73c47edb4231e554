"""`docs/maintainers/claims.md` lists every claim about TensorFlow, with its state on hardware."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from unproven import PAGE, reports, section, state_of, with_section

from tpunb.verification.report import schema

pytestmark = pytest.mark.tensorflow


def test_the_page_lists_the_claims_about_tensorflow(tf: Any) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_section(page, "tensorflow", section("tensorflow", reports())) == page, (
        "cd tests && python -m unproven"
    )


def test_reports_from_hardware_follow_the_schema() -> None:
    for report in reports():
        jsonschema.validate(report, schema())
        assert {"type", "date"} <= report["facts"].keys()
        assert not report["facts"]["TPU"].startswith("virtual")


def test_the_state_of_a_claim() -> None:
    def report(kind: str, status: str) -> dict[str, Any]:
        claim = {"group": "topology", "name": "mesh", "status": status}
        return {"facts": {"type": kind, "date": "2026-12-01"}, "claims": [claim]}

    assert state_of("topology", "mesh", []) == "not tried"
    assert state_of("topology", "mesh", [report("v5e-1", "not run")]) == "not tried"
    sent = [report("v5e-1", "holds"), report("v5e-8", "holds"), report("v3-8", "differs")]
    assert state_of("topology", "mesh", sent) == (
        "differed on v3-8 (2026-12-01); held on v5e-1 (2026-12-01), v5e-8 (2026-12-01)"
    )
    assert state_of("topology", "hosts", sent) == "not tried"
