"""`trtb cache`: what it says, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fakes.cached import keep_all
from typer.testing import CliRunner

from trtb.tools.cli import app


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    """A home of the test's own."""
    monkeypatch.setenv("TRTB_HOME", str(tmp_path))
    return tmp_path


def cache(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["cache", *map(str, arguments)])


def test_one_answer_is_counted_as_one(home):
    keep_all(home / "cache", 1)
    assert ": 1 answer, " in cache("stats").stdout


@pytest.mark.parametrize("number", ["inf", "nan", "1e300"])
@pytest.mark.parametrize(
    "command",
    [
        ("cache", "clear", "--older-than"),
        ("cache", "import", "copy.gz", "--capacity-gb"),
        ("run", "in.jsonl", "--cache", "--cache-capacity-gb"),
        ("run", "in.jsonl", "--cache", "--cache-ttl-hours"),
        ("run", "in.jsonl", "--cache", "--cache-sync-interval"),
    ],
    ids=" ".join,
)
def test_a_number_beyond_all_is_refused(command, number):
    done = CliRunner().invoke(app, [*command, number])
    assert done.exit_code == 2
    assert f"Invalid value for '{command[-1]}'" in done.stderr


def test_a_file_in_the_place_of_its_folder_is_told(home):
    (home / "cache").write_text("a file")
    done = cache("clear")
    assert done.exit_code == 5
    assert "expected a folder that can be written" in done.stderr


def test_a_folder_is_no_copy_to_import(home):
    done = cache("import", home)
    assert done.exit_code == 3
    assert f"{home}: Is a directory; expected a whole copy" in done.stderr
