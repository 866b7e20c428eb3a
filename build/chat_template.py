"""A checkpoint's chat template, rendered in a process of its own: it is a program of a stranger.

Its sandbox keeps it from the machine, not from looping for days or from taking all of the memory. The
process here is ended when an answer takes too long; it is this module, run with a tokenizer's folder.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any, Final

from trtb.build.errors import CheckpointError

START_LIMIT_S: Final = 300.0  # on a busy machine with a cold disk
RENDER_LIMIT_S: Final = 30.0  # an honest template takes a millisecond
MAX_TEXT_CHARS: Final = 64 << 20
MAX_EXTRA_BYTES: Final = 4 << 30  # address space past what the libraries have

_HINT = "its chat template loops or grows without end: read it, or calibrate with a text file"


class ChatTemplate:
    """Renders chats as the tokenizer of a folder does; close it to end its process.

    Raises:
        CheckpointError: The tokenizer does not load.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(self._folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=self._folder,  # `python -m` searches the current folder first; this one holds data alone
        )
        self._unread = b""
        self._read(START_LIMIT_S)

    def render(self, messages: list[dict[str, Any]]) -> str:
        """Return the text of a chat, up to where the assistant is to speak.

        Raises:
            ValueError: The template refuses the messages; it says why.
            CheckpointError: It takes too long, or too much memory.
        """
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the answer that is missing says so
            self._process.stdin.write(json.dumps(messages).encode() + b"\n")
            self._process.stdin.flush()
        answer = self._read(RENDER_LIMIT_S)
        if "error" in answer:
            raise ValueError(f"the chat template refuses the messages: {answer['error']}")
        text: str = answer["text"]
        return text

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()

    def _read(self, limit_s: float) -> dict[str, str]:
        """Return the next line of the process."""
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        deadline_ns = time.monotonic_ns() + int(limit_s * 1e9)
        parts = [self._unread]
        while b"\n" not in parts[-1]:
            left_s = (deadline_ns - time.monotonic_ns()) / 1e9
            if left_s <= 0 or not select.select([fd], [], [], left_s)[0]:
                self.close()
                raise CheckpointError(
                    f"{self._folder}: chat template: no answer within {limit_s:g} s; expected a text", _HINT
                )
            part = os.read(fd, 1 << 20)
            if not part:
                self.close()
                raise CheckpointError(
                    f"{self._folder}: chat template: its process ended with status "
                    f"{self._process.returncode}; expected a text",
                    _HINT,
                )
            parts.append(part)
        line, _, self._unread = b"".join(parts).partition(b"\n")
        answer: dict[str, str] = json.loads(line)
        return answer


def _serve(folder: str, source: IO[bytes], sink: IO[bytes]) -> None:
    """Answer each line of messages with a line."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    from transformers import PreTrainedTokenizerFast

    tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(folder)
    _limit_memory()
    answer: dict[str, str] = {}
    while True:
        sink.write(json.dumps(answer).encode() + b"\n")
        sink.flush()
        if not (line := source.readline()):
            return
        answer = _render(tokenizer, json.loads(line))


def _render(tokenizer: Any, messages: list[dict[str, Any]]) -> dict[str, str]:
    import jinja2

    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    # a template is the checkpoint's own program: what it raises is its verdict on the messages
    except (
        *(jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError),
        *(ArithmeticError, RecursionError, MemoryError),
    ) as exc:
        return {"error": f"{exc}"[:1000] or type(exc).__name__}
    if len(text) > MAX_TEXT_CHARS:
        return {"error": f"it makes {len(text)} characters of them; expected at most {MAX_TEXT_CHARS}"}
    return {"text": text}


def _limit_memory() -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MAX_EXTRA_BYTES, used + MAX_EXTRA_BYTES))


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: a loop does not outlive its asker
    with contextlib.suppress(KeyboardInterrupt):
        _serve(sys.argv[1], sys.stdin.buffer, sys.stdout.buffer)
