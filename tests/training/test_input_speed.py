"""The report of an input's speed."""

from __future__ import annotations

import dataclasses

import pytest

from tpunb.training.input_speed import Change, InputSpeed, Stage, TpuNeed

SPEED = InputSpeed(
    480.0,
    7.5,
    3.0,
    "2 processors, of a test",
    (Stage("map(decode)", 0.2, 1, 0.9), Stage("batch", 0.01, 1, 0.1)),
    (
        Change(".prefetch(tf.data.AUTOTUNE)", 1.02, "as the last stage"),
        Change(".map(decode, num_parallel_calls=tf.data.AUTOTUNE)", 1.9),
        Change(".batch(n).map(decode)", None, "one call for a batch"),
    ),
    (TpuNeed("v5e-8", 1, 205_000.0, 397_000.0),),
    ("A note.",),
)


def need(low: float, high: float, hosts: int = 1) -> InputSpeed:
    return dataclasses.replace(SPEED, needs=(TpuNeed("v3-32", hosts, low, high),))


def test_the_speed_is_compared_with_the_tpus_need() -> None:
    assert SPEED.headline == (
        "On this machine (2 processors, of a test) the input delivers 480 examples/s. A v5e-8 consumes "
        "205,000 to 397,000: this input would keep it busy less than 1% of the time."
    )
    assert SPEED.limit == "map(decode) limits the input: 90% of its time."


@pytest.mark.parametrize(
    ("low", "high", "says"),
    [
        (
            960.0,
            1920.0,
            "A v3-32 consumes 960 to 1920: this input would keep it busy 25% to 50% of the time.",
        ),
        (960.0, 961.0, "consumes 960 to 961: this input would keep it busy 50% of the time."),
        (240.0, 480.0, "consumes 240 to 480: this input keeps it busy."),
        (400.0, 600.0, "this input would keep it busy 80% to 100% of the time."),
        (
            47_000.0,
            48_500.0,
            "consumes 47,000 to 48,500: this input would keep it busy 1% of the time.",
        ),
        (48_100.0, 50_000.0, "this input would keep it busy less than 1% of the time."),
    ],
)
def test_a_range_of_times_gives_a_range_of_speeds(low: float, high: float, says: str) -> None:
    assert says in need(low, high).headline


def test_each_host_has_its_own_input() -> None:
    assert "consumes 240 to 480 on each of its 4 hosts: this" in need(240.0, 480.0, 4).headline


def test_the_text() -> None:
    assert str(SPEED).splitlines()[2:] == [
        "map(decode) limits the input: 90% of its time.",
        "  stage        share  time an element  in parallel",
        "  map(decode)  90%    200 ms",
        "  batch        10%    10 ms",
        "",
        "1 change of these makes it faster:",
        "  change                                             gain",
        "  .map(decode, num_parallel_calls=tf.data.AUTOTUNE)  1.9 times",
        "  .prefetch(tf.data.AUTOTUNE)                        none       as the last stage",
        "  .batch(n).map(decode)                              not tried  one call for a batch",
        "",
        "A note.",
    ]


def test_unknown_values_are_omitted() -> None:
    bare = InputSpeed(0.25, 0.25, 3.0, "1 processor")
    text = "On this machine (1 processor) the input delivers 0.25 examples/s."
    assert str(bare) == text
    assert bare.limit == ""
    none = dataclasses.replace(bare, changes=(Change("a", 1.0), Change("b", 0.9)))
    assert "None of these changes make it faster:" in str(none)


def test_names_are_escaped_and_values_are_plain() -> None:
    page = dataclasses.replace(SPEED, stages=(Stage("<b>", 1.0),))._repr_html_()
    assert "<b>" not in page
    assert "&lt;b&gt;" in page
    assert "205,000 to 397,000" in page
    values = SPEED.as_dict()
    assert values["stages"][0]["name"] == "map(decode)"
    assert values["busy"]["v5e-8"] == SPEED.needs[0].busy(480.0)
    assert values["changes"][2]["gain"] is None
