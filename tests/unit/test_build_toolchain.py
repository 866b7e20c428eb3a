"""Toolchains without an install: their pins, what is found, listed and removed, and what is refused."""

from __future__ import annotations

import shutil
import sys
import threading
from collections import namedtuple
from pathlib import Path

import pytest

from trtb.build import compatibility, files, toolchain, toolchain_pins
from trtb.build.errors import ConfigError, ToolchainError, ToolchainMissingError
from trtb.build.manifest import write_record
from trtb.build.toolchain_install import unexplained

ROOT = Path(__file__).parents[2]
PINS = """
# a comment
tiny-torch==1.0  # the reason
Tiny_Lib==2.0.1
only-new==1.0 ; python_version >= "3.10"  # a marker and a reason
never==1.0 ; python_version < "3"
"""


def quiet(step: str, detail: str) -> None:
    pass


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> compatibility.ToolchainSpec:
    """A toolchain of its own, not installed."""
    pins = tmp_path / "tiny.txt"
    pins.write_text(PINS)
    spec = compatibility.ToolchainSpec(
        name="tiny",
        purpose="a test",
        pins=pins,
        resolved=("tiny-torch",),
        decisive=("tiny-lib",),
        imports=("tiny_lib",),
        free_bytes=1,
    )
    monkeypatch.setattr(toolchain, "TOOLCHAINS", {"tiny": spec})
    return spec


def pretend(path: Path) -> Path:
    """Leave what a finished install leaves, as far as finding it goes."""
    (path / "bin").mkdir(parents=True)
    (path / "bin" / "python").symlink_to(sys.executable)
    marker = toolchain._Marker(
        name="tiny",
        python="3.11.1",
        versions={"tiny-lib": "2.0.1", "other": "1"},
        cuda=None,
        size_bytes=1000,
        duration_s=1.0,
        installed_at="2026-01-01T00:00:00+00:00",
    )
    write_record(path / toolchain.MARKER_FILE, marker)
    return path


def test_pins_are_read_with_their_markers_and_without_their_reasons(
    tiny: compatibility.ToolchainSpec,
) -> None:
    assert toolchain_pins.read_pins(tiny.pins) == {
        "tiny-torch": "1.0",
        "tiny-lib": "2.0.1",
        "only-new": "1.0",
    }


def test_a_digest_is_of_the_pins_not_of_their_order_or_reasons() -> None:
    one = toolchain_pins.pins_digest({"a": "1", "b": "2"})
    assert one == toolchain_pins.pins_digest({"b": "2", "a": "1"})
    assert one != toolchain_pins.pins_digest({"a": "1", "b": "2.1"})
    assert one != toolchain_pins.pins_digest({"a": "1"})


def test_what_differs_from_the_pins_is_named() -> None:
    pins = {"torch": "2.13.0", "numpy": "2.4.6", "typing-extensions": "4.16.0", "scipy": "1.17.1"}
    versions = {"torch": "2.13.0+cu130", "numpy": "2.4.60", "Typing_Extensions": "4.16.0", "extra": "1"}
    assert toolchain_pins.differences(pins, versions) == [
        "numpy 2.4.60; expected 2.4.6",
        "scipy is missing; expected 1.17.1",
    ]


def test_what_is_left_out_on_purpose_is_no_broken_requirement() -> None:
    optimum = compatibility.TOOLCHAINS["optimum"]
    known = "optimum-intel 2.2.0 requires torchvision, which is not installed."
    other = "optimum-intel 2.2.0 has requirement huggingface-hub<1.22, but you have huggingface-hub 1.33.0."
    missing = "nncf 3.4.0 requires scipy, which is not installed."
    assert unexplained(["No broken requirements found."], optimum) == []
    assert unexplained([known, other, missing], optimum) == [other, missing]
    assert unexplained([known], compatibility.TOOLCHAINS["modelopt"]) == [known]


def test_a_missing_toolchain_says_how_to_get_it(tiny: compatibility.ToolchainSpec, tmp_path: Path) -> None:
    with pytest.raises(ToolchainMissingError) as caught:
        toolchain.get_toolchain("tiny", tmp_path)
    assert caught.value.message == "toolchain tiny: is not installed"
    assert caught.value.hint == "trtb toolchain install tiny"
    assert (caught.value.code, caught.value.exit_code) == ("toolchain_missing", 5)
    with pytest.raises(ConfigError, match="expected one of tiny"):
        toolchain.get_toolchain("large", tmp_path)


def test_an_environment_counts_from_its_marker_on(tiny: compatibility.ToolchainSpec, tmp_path: Path) -> None:
    path = pretend(toolchain.toolchain_path("tiny", tmp_path))
    found = toolchain.get_toolchain("tiny", tmp_path)
    assert (found.path, found.python) == (path, path / "bin" / "python")
    assert found.decisive_versions == {"tiny-lib": "2.0.1"}
    (path / toolchain.MARKER_FILE).write_text("{")
    with pytest.raises(ToolchainMissingError):
        toolchain.get_toolchain("tiny", tmp_path)


def test_an_environment_whose_python_is_gone_is_none(
    tiny: compatibility.ToolchainSpec, tmp_path: Path
) -> None:
    path = pretend(toolchain.toolchain_path("tiny", tmp_path))
    (path / "bin" / "python").unlink()
    (path / "bin" / "python").symlink_to(tmp_path / "gone")
    with pytest.raises(ToolchainMissingError):
        toolchain.get_toolchain("tiny", tmp_path)


def test_other_pins_are_another_environment(tiny: compatibility.ToolchainSpec, tmp_path: Path) -> None:
    assert [row.state for row in toolchain.list_toolchains(tmp_path)] == ["missing"]
    old = pretend(toolchain.toolchain_path("tiny", tmp_path))
    assert [row.state for row in toolchain.list_toolchains(tmp_path)] == ["installed"]
    tiny.pins.write_text(PINS.replace("2.0.1", "2.0.2"))
    with pytest.raises(ToolchainMissingError, match="other pins"):
        toolchain.get_toolchain("tiny", tmp_path)
    assert [(row.state, row.path) for row in toolchain.list_toolchains(tmp_path)] == [
        ("missing", None),
        ("outdated", old),
    ]
    new = pretend(toolchain.toolchain_path("tiny", tmp_path))
    assert toolchain.remove("tiny", tmp_path, only_outdated=True) == [old]
    assert not old.exists()
    assert toolchain.get_toolchain("tiny", tmp_path).path == new
    with pytest.raises(ToolchainMissingError, match="no outdated environment"):
        toolchain.remove("tiny", tmp_path, only_outdated=True)


def test_removing_takes_what_an_interrupted_install_left_too(
    tiny: compatibility.ToolchainSpec, tmp_path: Path
) -> None:
    path = toolchain.toolchain_path("tiny", tmp_path)
    (path / "lib").mkdir(parents=True)
    assert toolchain.remove("tiny", tmp_path) == [path]
    assert not path.exists()


def test_removing_does_not_wait_for_an_install(tiny: compatibility.ToolchainSpec, tmp_path: Path) -> None:
    path = pretend(toolchain.toolchain_path("tiny", tmp_path))
    caught = []

    def attempt() -> None:
        try:
            toolchain.remove("tiny", tmp_path)
        except ToolchainError as exc:
            caught.append(exc)

    with files.lock(path.parent / ".lock", timeout_s=0):
        other = threading.Thread(target=attempt)
        other.start()
        other.join(10)
    assert "another process" in caught[0].message
    assert path.exists()


def test_too_little_disk_is_said_before_any_work(
    tiny: compatibility.ToolchainSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10, 10, 0))
    with pytest.raises(ToolchainError, match=r"0\.0 GB free; tiny needs"):
        toolchain.install("tiny", tmp_path, quiet)
    assert not toolchain.toolchain_path("tiny", tmp_path).exists()


@pytest.mark.parametrize("name", compatibility.TOOLCHAINS)
def test_the_shipped_pins_are_complete_in_themselves(name: str) -> None:
    spec = compatibility.TOOLCHAINS[name]
    pins = toolchain_pins.read_pins(spec.pins)
    assert set(spec.resolved) | set(spec.decisive) <= set(pins)
    assert not {required for _, required in spec.left_out} & set(pins)
    assert pins.get("torch") == ("2.13.0" if "torch" in spec.decisive else None)


def test_the_toolchains_agree_with_the_runtime_and_with_what_was_measured() -> None:
    runtime = {pin.distribution: pin.version for pin in compatibility.OPENVINO_TOOLCHAIN}
    optimum = toolchain_pins.read_pins(compatibility.TOOLCHAINS["optimum"].pins)
    modelopt = toolchain_pins.read_pins(compatibility.TOOLCHAINS["modelopt"].pins)
    for name in ("openvino", "openvino-tokenizers", "nncf", "gguf"):
        assert optimum[name] == runtime[name]
    assert optimum["torch"] == modelopt["torch"]
    # from transformers 5 on, ModelOpt exports a model without its rotary_base, and says nothing
    assert modelopt["transformers"].startswith("4.57.")
