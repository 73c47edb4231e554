"""The reader of libtpu's schedules, on schedules of three Pallas kernels for v6e.

The files are libtpu 0.0.52's, without comments and without the operands of vector instructions.
`product` multiplies 1024² in blocks of 128³, `conditional` copies four blocks and has a
`pl.when` on its data, and `data_loop` has a loop whose length is data.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tpunb.compiler.read.bundles import kernels

BUNDLES, USE = "final_bundles", "final_hlo-static-per-bundle-utilization"
ANALYSIS = "schedule-analysis_final_bundles"
SCHEDULES = Path(__file__).with_name("schedules")
BLOCK = 128 * 128 * 2
"""The bytes of a block of the product in bfloat16."""


@pytest.fixture
def conditional(tmp_path: Path) -> Path:
    """A copy of a schedule's folder."""
    return Path(shutil.copytree(SCHEDULES / "conditional", tmp_path / "conditional"))


def file_in(folder: Path, label: str) -> Path:
    (file,) = (path for path in folder.glob("*.txt") if path.stem.split("-", 3)[3] == label)
    return file


def test_a_products_steps_and_bytes_are_counted() -> None:
    (product,) = kernels(SCHEDULES / "product").values()
    steps = 8**3
    assert product["bytes"] == [2 * steps * BLOCK + 8 * 8 * BLOCK] * 2
    assert product["steps"] == steps + 2, "the pipeline's first and last turns have no step"
    passes = 1024**3 / (918e12 / 2 / 1.75e9)  # the multiplications of a cycle
    assert passes <= product["matmul"] < 1.3 * passes
    assert product["cycles"][0] == product["cycles"][1] > product["busy"]


def test_a_branch_on_data_is_a_range() -> None:
    (kernel,) = kernels(SCHEDULES / "conditional").values()
    least, most = kernel["cycles"]
    assert least < most < 2 * least
    assert kernel["bytes"] == [2 * 4 * 8 * 128 * 4 + 512] * 2, (
        "its blocks, and the numbers that decide"
    )


def test_a_loop_on_data_is_not_known() -> None:
    assert not kernels(SCHEDULES / "data_loop")


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("label", [BUNDLES, USE])
def test_a_cut_file_is_not_known(conditional: Path, label: str, share: float) -> None:
    file = file_in(conditional, label)
    text = file.read_text()
    file.write_text(text[: int(share * len(text))])
    assert not kernels(conditional)


@pytest.mark.parametrize("label", [BUNDLES, USE, ANALYSIS])
def test_a_missing_file_is_not_known(conditional: Path, label: str) -> None:
    file_in(conditional, label).unlink()
    assert not kernels(conditional)


def changed(folder: Path, label: str, old: str, new: str) -> dict[str, Any]:
    """Return the kernels after a change of a file."""
    file = file_in(folder, label)
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    return kernels(folder)


def test_the_files_of_another_kernel_are_not_known(conditional: Path) -> None:
    shutil.copy(file_in(SCHEDULES / "data_loop", USE), file_in(conditional, USE))
    assert not kernels(conditional)


def test_two_programs_in_a_folder_are_not_known(conditional: Path) -> None:
    for file in list(conditional.glob("*.txt")):
        shutil.copy(file, file.with_name(f"1{file.name}"))
    assert not kernels(conditional)


@pytest.mark.parametrize(
    ("label", "old", "new"),
    [
        (USE, "VALU, ", "VALU, TENSOR, "),
        (BUNDLES, "sbr.rel", "sbr.ind"),
        (BUNDLES, "target = $region", "target = $other"),
        (BUNDLES, "entry bundle: %_lambda_", "entry bundle: %other"),
    ],
)
def test_the_form_of_another_release_is_not_known(
    conditional: Path, label: str, old: str, new: str
) -> None:
    assert not changed(conditional, label, old, new)


@pytest.mark.parametrize(
    "opcode", ["sand.u32", "sshll.u32", "smov.u32", "sld", "scmp.ge.s32.totalorder"]
)
def test_an_unknown_operation_gives_an_unknown_value(conditional: Path, opcode: str) -> None:
    (before,) = kernels(conditional).values()
    for after in changed(conditional, BUNDLES, f"{opcode} ", "snew.u64 ").values():
        for figure in ("cycles", "bytes"):
            assert after[figure][0] <= before[figure][0] <= before[figure][1] <= after[figure][1]


def test_kernels_that_share_code_have_the_same_schedule(conditional: Path) -> None:
    shared = "key:_lambda_.1\nordinal:1\nequivalent_hlos[size=2]:\n  _lambda_.1\n  _lambda_.2\n"
    (conditional / "17-TLP-00-deduplication-map.txt").write_text(shared)
    found = kernels(conditional)
    assert found["_lambda_.1"] == found["_lambda_.2"]
