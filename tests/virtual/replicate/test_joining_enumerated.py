"""Every rule by which an operation is joined, on a sample of what `python -m joining` tries."""

from __future__ import annotations

from joining.running import check

from tpunb.virtual.replicate.joining_rules import operations


def test_what_is_joined_gives_what_one_replica_at_a_time_gives() -> None:
    findings = check(sorted(operations()), 1, rounds=6)
    assert not findings.wrong
    assert not operations() - (+findings.joined).keys()
