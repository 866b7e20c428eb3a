"""Every command explains itself, with an example, and `trtb --help` stays light."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from trtb.tools.cli import app

HEAVY = {
    *("torch", "tensorrt_llm", "nncf", "gguf", "numpy", "pynvml", "openvino", "openvino_genai"),
    *("openvino_tokenizers", "transformers", "tritonclient", "grpc"),
}
HELP_IN_A_CHILD = """
import json, sys
sys.argv = ["trtb", "--help"]
from trtb.tools.cli import main
try:
    code = main()
except SystemExit as exc:
    code = exc.code
print(json.dumps({"code": code, "modules": sorted({m.split(".")[0] for m in sys.modules})}), file=sys.stderr)
"""


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    children = getattr(command, "commands", None)
    if children is None:
        yield path, command
    for name, child in (children or {}).items():
        yield from leaves(child, (*path, name))


COMMANDS = dict(leaves(typer.main.get_command(app)))


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_a_commands_help_shows_an_example_of_it(path: tuple[str, ...]) -> None:
    command = COMMANDS[path]
    text = f"{command.help or ''}\n{command.epilog or ''}"
    assert f"trtb {' '.join(path)}" in text


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_a_command_answers_help(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, [*path, "--help"])
    assert result.exit_code == 0, result.output
    assert "Usage" in result.stdout


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_option_of_a_command_says_what_it_does(path: tuple[str, ...]) -> None:
    silent = [param.name for param in COMMANDS[path].params if not getattr(param, "help", None)]
    assert silent == []


def test_the_help_of_trtb_names_every_command_and_loads_no_heavy_library() -> None:
    child = subprocess.run(
        [sys.executable, "-c", HELP_IN_A_CHILD],
        check=False,
        capture_output=True,
        text=True,
        cwd=sys.prefix,  # not the checkout, whose folder build/ would shadow a package of that name
    )
    assert child.returncode == 0, child.stderr
    seen = json.loads(child.stderr.splitlines()[-1])
    assert seen["code"] in {None, 0}
    assert not HEAVY & set(seen["modules"])
    assert all(path[0] in child.stdout for path in COMMANDS)
