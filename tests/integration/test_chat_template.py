"""A chat template is a program of a stranger: its process renders, refuses, and is ended when it hangs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import psutil
import pytest
import request_lines
from fakes.hf_folder import write_folder

from trtb.build import chat_template
from trtb.build.calibration import calibrate_with
from trtb.build.chat_template import ChatTemplate
from trtb.build.checkpoints.hf_checkpoint import read_hf, write_tokenizer
from trtb.build.config import CalibrationConfig
from trtb.build.errors import CheckpointError

HELLO = [{"role": "user", "content": "hello 🙂\n"}]
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}"
ENDLESS += "{% endfor %}{% endfor %}"

Open = Callable[[str], ChatTemplate]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    write_tokenizer(read_hf(write_folder(tmp_path / "model")), tmp_path / "tokenizer")
    return tmp_path / "tokenizer"


@pytest.fixture
def open_template(tokenizer: Path) -> Iterator[Open]:
    with ExitStack() as stack:

        def open_it(text: str) -> ChatTemplate:
            (tokenizer / "chat_template.jinja").write_text(text)
            return stack.enter_context(closing(ChatTemplate(tokenizer)))

        yield open_it


def test_chats_are_rendered_and_refused_one_after_the_other(open_template: Open) -> None:
    text = "{% if messages[0]['role'] == 'robot' %}{{ raise_exception('no robots') }}{% endif %}"
    template = open_template(text + "{% for message in messages %}<{{ message['content'] }}>{% endfor %}")
    assert template.render(HELLO * 2) == "<hello 🙂\n><hello 🙂\n>"
    with pytest.raises(ValueError, match=r"the chat template refuses the messages: no robots"):
        template.render([{"role": "robot", "content": ""}])
    long = "x" * 3_000_000
    assert template.render([{"role": "user", "content": long}]) == f"<{long}>"


@pytest.mark.parametrize(
    "text", ["{{ 1 // 0 }}", "{{ 'x' * 99999999999999 }}", "{% for", "{{ range(999999) }}", "{{ a.b.c }}"]
)
def test_what_a_template_raises_is_its_verdict(open_template: Open, text: str) -> None:
    template = open_template(text)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"the chat template refuses the messages: ."):
            template.render(HELLO)


def children() -> set[int]:
    """Return our child processes; other tests' servers may be among them."""
    return {each.pid for each in psutil.Process().children()}


def test_an_endless_template_is_ended(open_template: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    before = children()
    monkeypatch.setattr(chat_template, "RENDER_LIMIT_S", 0.2)
    template = open_template(ENDLESS)
    with pytest.raises(CheckpointError, match=r"chat template: no answer within 0\.2 s") as caught:
        template.render(HELLO)
    assert "calibrate with a text file" in caught.value.hint
    assert children() == before


def test_an_endless_template_ends_a_calibration(
    tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = children()
    monkeypatch.setattr(chat_template, "RENDER_LIMIT_S", 0.2)
    source = request_lines.write(tmp_path / "in.jsonl", [request_lines.chat("a")])

    def write(folder: Path) -> None:
        for path in tokenizer.iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
        (folder / "chat_template.jinja").write_text(ENDLESS)

    with pytest.raises(CheckpointError, match="no answer within"):
        calibrate_with(write, CalibrationConfig(source=str(source)), 264)
    assert children() == before


def test_a_folder_without_a_tokenizer_says_so(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"its process ended with status 1"):
        ChatTemplate(tmp_path)
