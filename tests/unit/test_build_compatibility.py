"""The table of versions: whole, in order, and the only one."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from trtb.build import compatibility
from trtb.build.compatibility import TRTLLM_RELEASES, choose_release, get_release, get_release_of_image
from trtb.build.toolchain_pins import read_pins

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
of_a_checkout = pytest.mark.skipif(not (ROOT / "pyproject.toml").is_file(), reason="this is no checkout")


def test_each_release_is_whole_and_no_container_has_two() -> None:
    containers = [container for row in TRTLLM_RELEASES for container in row.containers]
    assert containers == sorted(set(containers), reverse=True)
    for row in TRTLLM_RELEASES:
        assert re.fullmatch(r"\d+\.\d+\.\d+\.\d+", row.tensorrt)
        assert int(row.bundled_driver.split(".")[0]) >= row.min_driver
        assert get_release(row.version) is row
        assert get_release_of_image(row.image) is row


@pytest.mark.parametrize(
    ("driver", "version"),
    [
        ("590.44.01", "1.2.1"),
        ("580", "1.2.1"),
        ("579.99", "1.0.0"),
        ("525.60.13", "1.0.0"),
        ("524.9", None),
    ],
)
def test_the_driver_decides_the_release(driver: str, version: str | None) -> None:
    chosen = choose_release(driver)
    assert (chosen.version if chosen else None) == version


@pytest.mark.parametrize(
    "image",
    [
        "nvcr.io/nvidia/tritonserver:26.07-py3",
        "nvcr.io/nvidia/tritonserver",
        "tritonserver:24.01-trtllm-python-py3",
        "nvcr.io/nvidia/tritonserver@sha256:" + "0" * 64,
        "localhost:5000/other:26.07-trtllm-python-py3",
        "",
    ],
)
def test_an_image_that_is_not_in_the_table_is_none(image: str) -> None:
    assert get_release_of_image(image) is None


def test_an_image_is_known_by_its_tag_wherever_it_is_mirrored() -> None:
    image = "registry:5000/mirror/tritonserver:26.05-trtllm-python-py3@sha256:" + "0" * 64
    assert get_release_of_image(image) is compatibility.PRIMARY_TRTLLM


def test_an_unknown_version_has_no_row() -> None:
    assert get_release("1.3.0rc20") is None


@of_a_checkout
def test_pyproject_and_readme_name_the_same_versions() -> None:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["dependency-groups"]
    assert groups["gpu"] == [f"tensorrt-llm=={compatibility.PRIMARY_TRTLLM.version}"]
    text = (ROOT / "README.md").read_text("utf-8")
    section = text.partition("\n## Toolchains\n")[2].partition("\n## ")[0]
    rows = {
        cells[0].strip(" `"): row for row in section.splitlines() if (cells := re.split(r"[|,]", row)[1:])
    }
    for spec in compatibility.TOOLCHAINS.values():
        pins = read_pins(spec.pins)
        for name in spec.decisive:
            assert f"{name} {pins[name]}" in rows[spec.name]
    for row in (compatibility.PRIMARY_TRTLLM, compatibility.CUDA12_TRTLLM):
        line = rows[row.version]
        for value in (
            row.image.rpartition(":")[2],
            row.tensorrt,
            row.cuda,
            row.bundled_driver,
            str(row.min_driver),
        ):
            assert value in line
    named = set(re.findall(r"\d\d\.\d\d-trtllm-python-py3", text))
    assert named <= {row.image.rpartition(":")[2] for row in TRTLLM_RELEASES}


@of_a_checkout
def test_the_runtime_s_exact_pins_are_those_of_pyproject() -> None:
    lines = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    exact = dict(line.split("==") for line in lines if "==" in line)
    pins = {
        pin.distribution: pin.version for pin in (*compatibility.OPENVINO_TOOLCHAIN, compatibility.PYTRITON)
    }
    assert exact
    assert exact.items() <= pins.items()
