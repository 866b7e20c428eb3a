"""The programs of a toolchain: their libraries, and what is refused before one is needed."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from trtb.build import compatibility, toolchain_programs
from trtb.build.errors import ToolchainError
from trtb.build.toolchain_programs import check_programs, copy_libraries, program_environment

SPEC = compatibility.TOOLCHAINS["perf_analyzer"]


@pytest.fixture
def libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The libraries of a wheel that is installed, under the wheel's own names."""
    folder = tmp_path / "site-packages" / "nvidia_pytriton.libs"
    folder.mkdir(parents=True)
    (folder / "libb64-98cb6333.so.0d").write_text("b64")
    (folder / "libcudart-09529672.so.12.6.77").write_text("cudart")
    found = SimpleNamespace(submodule_search_locations=[str(folder.parent / "pytriton")])
    monkeypatch.setattr(toolchain_programs.importlib.util, "find_spec", lambda _: found)
    return folder


def test_a_library_is_put_where_the_program_looks_under_the_name_it_asks_for(libraries: Path, tmp_path: Path):
    copy_libraries(SPEC, tmp_path)
    folder = tmp_path / toolchain_programs.LIBRARY_FOLDER
    assert {path.name: path.read_text() for path in folder.iterdir()} == {
        "libb64.so.0d": "b64",
        "libcudart.so.12": "cudart",
    }


def test_a_library_that_is_not_there_is_named(libraries: Path, tmp_path: Path):
    (libraries / "libb64-98cb6333.so.0d").unlink()
    with pytest.raises(ToolchainError, match=r"has no libb64-\*\.so\.0d; expected the program's libb64"):
        copy_libraries(SPEC, tmp_path)


def test_without_the_distribution_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(toolchain_programs.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ToolchainError, match="nvidia-pytriton is not installed"):
        copy_libraries(SPEC, tmp_path)
    copy_libraries(replace(SPEC, libraries=()), tmp_path)  # needs none


def test_the_programs_libraries_come_before_those_of_the_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", "/mine")
    assert program_environment(Path("/e"))["LD_LIBRARY_PATH"] == "/e/program-libraries:/mine"
    monkeypatch.delenv("LD_LIBRARY_PATH")
    assert program_environment(Path("/e"))["LD_LIBRARY_PATH"] == "/e/program-libraries"


def test_a_program_that_is_missing_is_told_before_it_is_needed(tmp_path: Path):
    with pytest.raises(ToolchainError, match="perf_analyzer: not found") as caught:
        check_programs(SPEC, tmp_path, tmp_path, io.StringIO())
    assert "trtb toolchain install perf_analyzer" in caught.value.hint


def test_a_program_that_does_not_start_is_told_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "perf_analyzer").touch()
    words = "error while loading shared libraries: libb64.so.0d"
    monkeypatch.setattr(toolchain_programs, "_version", lambda *_: (127, [words]))
    with pytest.raises(ToolchainError, match=words):
        check_programs(SPEC, tmp_path, tmp_path, io.StringIO())
