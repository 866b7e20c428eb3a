"""What the documents say of commands, options, codes, files and make targets is so."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from trtb.build.errors import TrtbError
from trtb.runner import errors as run_errors
from trtb.runner import findings, job_file
from trtb.tools.cli import app

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DOCUMENTS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
# outcomes of a run or of the command line, without an error class of their own
PLAIN_EXIT_CODES = {0, 1, 2}
SHELL_BLOCK = re.compile(r"^```(?:sh|bash|shell|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
EXIT_CODE_ROW = re.compile(r"^\|\s*`?(\d+)`?\s*\|", re.MULTILINE)
RELATIVE_LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)")

pytestmark = pytest.mark.skipif(not README.is_file(), reason="the documents are not part of the wheel")


def subclasses(base: type[TrtbError]) -> Iterator[type[TrtbError]]:
    yield base
    for child in base.__subclasses__():
        yield from subclasses(child)


def request_codes() -> set[str]:
    from_findings = {
        value
        for name, value in vars(findings).items()
        if name.isupper() and isinstance(value, str) and re.fullmatch(r"[a-z]+(_[a-z]+)+", value)
    }
    return from_findings | {error.code for error in subclasses(run_errors.RequestError)}


def shell_lines(text: str) -> list[str]:
    """Return the shell blocks' command lines, without prompts and output, continued lines joined."""
    lines = []
    for block in SHELL_BLOCK.findall(text):
        candidates = block.replace("\\\n", " ").splitlines()
        if any(line.startswith("$ ") for line in candidates):
            candidates = [line[2:] for line in candidates if line.startswith("$ ")]
        lines += candidates
    return lines


def trtb_calls(line: str) -> Iterator[list[str]]:
    """Yield the arguments of each call of trtb in a command line."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    call: list[str] | None = None
    for token in lexer:
        if set(token) <= set("|&;<>()"):
            if call is not None:
                yield call
            call = None
        elif call is not None:
            call.append(token)
        elif Path(token).name == "trtb" and "=" not in token:  # not the folder of that name
            call = []
    if call is not None:
        yield call


def documented_calls() -> list[list[str]]:
    if not README.is_file():
        return []
    lines = shell_lines(README.read_text(encoding="utf-8"))
    return [call for line in lines for call in trtb_calls(line)]


def parse(arguments: list[str]) -> None:
    """Parse a call as the command line would, without running it or touching a file; raise if it is wrong."""
    command = typer.main.get_command(app)
    rest = list(arguments)
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        assert rest[0] in command.commands, (
            f"{rest[0]}: no such command; there are {sorted(command.commands)}"
        )
        command = command.commands[rest.pop(0)]
    if "--help" not in rest:
        assert not hasattr(command, "commands") or rest, "a group of commands, and none of them is named"
    leftover = command.make_parser(typer.Context(command)).parse_args(args=rest)[1]
    assert not leftover, f"{leftover}: one argument too many"


@pytest.mark.parametrize("call", documented_calls(), ids=" ".join)
def test_a_command_in_the_readme_exists_with_its_options(call: list[str]) -> None:
    parse(call)


def test_the_readme_shows_the_road_from_checkpoint_to_report() -> None:
    verbs = [call[0] for call in documented_calls() if call]
    assert {"build", "validate", "run", "report"} <= set(verbs)


def test_every_exit_code_stands_in_the_readme() -> None:
    in_code = PLAIN_EXIT_CODES | {error.exit_code for error in subclasses(TrtbError)}
    documented = {int(code) for code in EXIT_CODE_ROW.findall(README.read_text(encoding="utf-8"))}
    assert in_code <= documented, f"{in_code - documented}: expected a table row that begins with it"


@pytest.mark.parametrize("code", sorted(request_codes()))
def test_every_request_code_stands_in_the_readme(code: str) -> None:
    assert f"`{code}`" in README.read_text(encoding="utf-8")


def test_every_key_of_a_job_file_stands_in_the_readme_and_no_other() -> None:
    text = README.read_text(encoding="utf-8")
    rows = re.findall(r"^\| `((?!out\.)[a-z]+\.[a-z_]+)` \|", text, re.MULTILINE)
    assert sorted(rows) == sorted(job_file.known_keys())


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_relative_links_lead_somewhere(document: Path) -> None:
    links = RELATIVE_LINK.findall(document.read_text(encoding="utf-8"))
    assert [link for link in links if not (document.parent / link).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_make_targets_in_the_documents_exist(document: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    text = document.read_text(encoding="utf-8")
    named = set(re.findall(r"(?:`|^\$? ?)make ([a-z]+)", text, re.MULTILINE))
    assert named <= targets


def test_a_wrong_option_would_be_noticed() -> None:
    with pytest.raises(Exception, match="--no-such-option"):
        parse(["run", "input.jsonl", "--no-such-option"])


def test_calls_are_found_behind_prompts_pipes_and_continued_lines() -> None:
    text = "```console\n$ trtb run a.jsonl \\\n  -o b.jsonl && trtb report b.jsonl.run | head\n128\n```\n"
    calls = [call for line in shell_lines(text) for call in trtb_calls(line)]
    assert calls == [["run", "a.jsonl", "-o", "b.jsonl"], ["report", "b.jsonl.run"]]
