"""Toolchains as pip really makes them: a small one of wheels made here, and the shipped ones."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import commands
import psutil
import pytest
from fakes.tiny_toolchain import PINS, make_wheel, use_tiny

from trtb.build import toolchain
from trtb.build.errors import ToolchainError, ToolchainMissingError

pytestmark = pytest.mark.slow

INSTALL = """
import sys
from pathlib import Path
from trtb.build import toolchain
from fakes.tiny_toolchain import use_tiny
use_tiny(Path(sys.argv[1]))
toolchain.install("tiny", Path(sys.argv[2]), lambda step, detail: print(step, flush=True))
"""


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "TOOLCHAINS", dict(toolchain.TOOLCHAINS))


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder that is all of pip's index, through the user's own configuration of pip."""
    folder = tmp_path_factory.mktemp("index")
    make_wheel(folder, "tiny-helper", "0.5")
    make_wheel(folder, "tiny-helper", "0.6")
    make_wheel(folder, "tiny-torch", "1.0", "tiny-helper")
    make_wheel(folder, "tiny-torch", "1.1", "tiny-helper")
    make_wheel(folder, "tiny-lib", "2.0.1", "tiny-torch>=1.1", "tiny-vision")
    make_wheel(folder, "tiny-lib", "2.0.2", "tiny-torch", "tiny-vision")
    (folder / "tiny.txt").write_text(PINS.replace("tiny-lib==2.0.1", "tiny-lib==2.0.2"))
    environment = {
        "PIP_NO_INDEX": "1",
        "PIP_EXTRA_INDEX_URL": "",
        "PIP_FIND_LINKS": str(folder),
        "PIP_TARGET": str(folder / "elsewhere"),
        "PYTHONPATH": str(folder / "elsewhere"),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        yield folder


@pytest.fixture(scope="module")
def home(index: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home where one install was killed and the next one finished."""
    home = tmp_path_factory.mktemp("home")
    kill_an_install(index, home)
    known = dict(toolchain.TOOLCHAINS)
    use_tiny(index)
    with pytest.raises(ToolchainMissingError):
        toolchain.get_toolchain("tiny", home)
    left = home / "toolchains" / "tiny" / ("0" * 12)
    left.mkdir()
    told: list[tuple[str, str]] = []
    toolchain.install("tiny", home, lambda step, detail: told.append((step, detail)))
    assert [step for step, _ in told if step != "pip"] == [
        *("environment", "resolve", "packages"),
        *("check", "check", "check", "done"),
    ]
    assert not left.exists()
    toolchain.TOOLCHAINS.clear()
    toolchain.TOOLCHAINS.update(known)
    return home


def kill_an_install(index: Path, home: Path) -> None:
    """Kill trtb while its install runs; nothing of it may go on, and what it left is no toolchain."""
    child = subprocess.Popen(
        [sys.executable, "-c", INSTALL, str(index), str(home)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        cwd=home,
        text=True,
    )
    assert child.stdout
    assert child.stdout.readline() == "environment\n"
    commands.wait_until(lambda: list(home.glob("toolchains/tiny/*/bin/python")), 60, "the environment begins")
    family = psutil.Process(child.pid).children(recursive=True)
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert family
    _, alive = psutil.wait_procs(family, timeout=20)
    assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


def test_an_installed_toolchain_is_its_pins_and_nothing_else(index: Path, home: Path) -> None:
    spec = use_tiny(index)
    found = toolchain.get_toolchain("tiny", home)
    versions = {name: version for name, version in found.versions.items() if name.startswith("tiny")}
    assert versions == {"tiny-torch": "1.0", "tiny-helper": "0.5", "tiny-lib": "2.0.2"}
    assert not (index / "elsewhere").exists()
    (row,) = toolchain.list_toolchains(home)
    assert (row.state, row.path, row.purpose) == ("installed", found.path, spec.purpose)
    assert row.size_bytes > 1e6
    assert (found.path / toolchain.LOG_FILE).read_text().count("$ ") >= 4
    assert sorted(path.name for path in found.path.parent.iterdir()) == [".lock", found.path.name]
    marker = json.loads((found.path / toolchain.MARKER_FILE).read_text())
    assert marker["schema_version"] == 1


def test_an_installed_toolchain_is_not_installed_again(index: Path, home: Path) -> None:
    use_tiny(index)
    told: list[str] = []
    again = toolchain.install("tiny", home, lambda step, detail: told.append(detail))
    assert again == toolchain.get_toolchain("tiny", home)
    assert told == ["tiny is installed already"]


def test_an_environment_works_through_a_link_to_its_folder(index: Path, home: Path, tmp_path: Path) -> None:
    use_tiny(index)
    (tmp_path / "toolchains").symlink_to(home / "toolchains")
    assert toolchain.verify("tiny", tmp_path, lambda *_: None).versions["tiny-lib"] == "2.0.2"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"imports": ("tiny_torch", "tiny_vision")}, "ModuleNotFoundError: No module named 'tiny_vision'"),
        ({"left_out": frozenset()}, "tiny-lib 2.0.2 requires tiny-vision, which is not installed"),
    ],
)
def test_what_does_not_load_or_is_not_whole_is_refused(
    index: Path, home: Path, change: dict[str, object], message: str
) -> None:
    use_tiny(index, **change)
    with pytest.raises(ToolchainError, match=message) as caught:
        toolchain.verify("tiny", home, lambda *_: None)
    assert "trtb toolchain install tiny" in caught.value.hint


def test_a_version_that_was_changed_by_hand_is_noticed(index: Path, home: Path) -> None:
    use_tiny(index)
    path = toolchain.get_toolchain("tiny", home).path
    (metadata,) = path.glob("lib/python*/site-packages/tiny_helper-0.5.dist-info/METADATA")
    whole = metadata.read_text()
    metadata.write_text(whole.replace("Version: 0.5", "Version: 0.6"))
    try:
        with pytest.raises(ToolchainError, match=r"tiny-helper 0\.6; expected 0\.5"):
            toolchain.verify("tiny", home, lambda *_: None)
    finally:
        metadata.write_text(whole)


@pytest.mark.parametrize(
    ("pins", "message"),
    [
        (PINS.replace("2.0.1", "3.0"), "the package index has no such version"),
        (PINS, r"tiny-lib 2\.0\.1 has requirement tiny-torch>=1\.1, but you have tiny-torch 1\.0"),
    ],
    ids=["absent", "contradiction"],
)
def test_a_failed_install_leaves_its_log_and_nothing_else(
    index: Path, tmp_path: Path, pins: str, message: str
) -> None:
    path = tmp_path / "tiny.txt"
    path.write_text(pins)
    use_tiny(index, pins=path)
    with pytest.raises(ToolchainError, match=message) as caught:
        toolchain.install("tiny", tmp_path, lambda *_: None)
    log = tmp_path / "toolchains" / "tiny" / toolchain.LOG_FILE
    assert str(log) in caught.value.hint
    assert log.read_text()
    assert [found.name for found in log.parent.iterdir() if found.is_dir()] == []
    assert [row.state for row in toolchain.list_toolchains(tmp_path)] == ["missing"]


def test_the_shipped_toolchains_are_whole(toolchain_home: Path) -> None:
    done = commands.trtb(toolchain_home, "toolchain", "verify", "--json")
    assert done.code == 0, done.stderr
    assert [item["name"] for item in done.json["toolchains"]] == [*("modelopt", "optimum", "perf_analyzer")]
    listed = commands.trtb(toolchain_home, "toolchain", "list", "--json").json["toolchains"]
    assert [(row["name"], row["state"]) for row in listed] == [
        ("modelopt", "installed"),
        ("optimum", "installed"),
        ("perf_analyzer", "installed"),
    ]
    refused = commands.trtb(toolchain_home, "toolchain", "install", "modelopt", "large", "--json")
    assert (refused.code, refused.json["error"]["code"]) == (2, "config_invalid")
