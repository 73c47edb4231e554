"""Spans of time, and the display of a profile."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tpunb.training.profile import Operation, Profile, StepTimes
from tpunb.training.profile_reader import Spans

TICKS = st.integers(0, 40)
INTERVALS = st.lists(st.tuples(TICKS, TICKS).map(lambda pair: (min(pair), max(pair))), max_size=8)


@settings(max_examples=40)
@given(INTERVALS, INTERVALS, TICKS, TICKS)
def test_spans_count_each_tick_once(
    one: list[tuple[int, int]], other: list[tuple[int, int]], start: int, end: int
) -> None:
    start, end = min(start, end), max(start, end)
    ticks = {tick for first, last in [*one, *other] for tick in range(first, last)}
    spans = Spans(one) | Spans(other)
    assert spans.within(start, end) == len(ticks & set(range(start, end)))
    assert sum(last - first for first, last in spans) == len(ticks)


def waiting(count: int = 2, name: str = "step") -> Profile:
    steps = tuple(StepTimes(f"{name} {place}", 1.0, 0.5, 0.2, 0.1) for place in range(count))
    operations = tuple(Operation(f"{name}{place}", "MatMul", 2, 0.1, 0.01) for place in range(30))
    return Profile(StepTimes("whole", 2.0 * count, 0.5 * count), steps, operations, "TPU")


def test_the_text_of_a_profile() -> None:
    profile = waiting()
    assert profile.input_wait == 0.25
    assert profile.headline == "25% of the run (4 s) and 50% of 2 steps waited for data."
    text = str(profile)
    assert "step 0     1 s   500 ms (50%)  200 ms (20%)  200 ms (20%)  100 ms (10%)" in text
    assert "and 10 more" in text
    assert text.count("MatMul") == 20
    assert profile.as_dict()["steps"][0]["host"] == profile.steps[0].host
    assert str(Profile()) == "Nothing has been recorded yet."
    without_steps = Profile(StepTimes("whole", 1.0, 0.05))
    assert without_steps.headline == "On this machine, 5% of the run (1 s) waited for data."
    assert Profile(StepTimes("whole", 1.0)).headline.endswith(
        " 0% of the run (1 s) waited for data."
    )


def test_a_much_longer_first_step_is_reported_separately() -> None:
    first = StepTimes("step 0", 9.0, 0.0, 1.0)
    steps = waiting().steps
    with_long_first_step = Profile(StepTimes("whole", 12.0, 1.0), (first, *steps))
    assert with_long_first_step.headline.endswith(
        "and 50% of 2 steps after the first waited for data."
    )
    assert "all after the first  2 s" in str(with_long_first_step)
    alike = Profile(StepTimes("whole", 12.0, 1.0), (steps[0], *steps))
    assert alike.steady_steps == alike.steps
    assert "after the first" not in str(alike)
    assert "after the first" not in str(Profile(StepTimes("whole", 9.0), (first,)))


def test_names_are_escaped_and_rows_are_limited() -> None:
    page = waiting(100, "<script>\x1b")._repr_html_()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert page.count("<tr>") < 40
    assert "\x1b" not in str(waiting(1, "\x1b"))
