"""Calibration sets: what a file gives, what of it is chosen, and what is said of one that gives nothing."""

from __future__ import annotations

import io
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import request_lines

from trtb.build import files
from trtb.build.calibration import built_in_texts, choose
from trtb.build.calibration_source import (
    MAX_PASSAGE_BYTES,
    Chat,
    Fault,
    Ids,
    Passage,
    Text,
    find_passages,
    open_source,
    read_passage,
    read_request,
)
from trtb.build.config import CalibrationConfig
from trtb.build.errors import ConfigError


class ByteEncoder:
    """A token is a byte; a chat's are its contents, each after the first letter of its role."""

    def encode_text(self, text: str, max_tokens: int) -> list[int]:
        return list(text.encode())[:max_tokens]

    def encode_chat(self, messages: list[dict[str, Any]], max_tokens: int) -> list[int]:
        if messages[0]["role"] == "robot":
            raise ValueError("the chat template refuses the messages: unknown role")
        return self.encode_text(
            "".join(f"{message['role'][0]}{message['content']}" for message in messages), max_tokens
        )


def choose_from(source: Path | None, **options: Any) -> Any:
    config = CalibrationConfig(source=str(source) if source else None, **options)
    return choose(config, ByteEncoder(), 256, lambda _step, _detail: None)


def texts_of(chosen: Any) -> list[str]:
    return [bytes(ids).decode() for ids in chosen.token_ids]


def test_the_built_in_set_is_varied_and_ships_with_the_package() -> None:
    texts = built_in_texts()
    assert len(texts) == len(set(texts)) == 128
    assert all(len(text) > 10 and "%%" not in text for text in texts)
    assert sum("\n" in text for text in texts) > 20  # code, dialogues, lists
    assert sum(any(ord(letter) > 0x370 for letter in text) for text in texts) >= 6  # other scripts
    chosen = choose_from(None)
    assert sorted(texts_of(chosen)) == sorted(text.encode()[:512].decode() for text in texts)
    assert (chosen.source, chosen.num_skipped) == ("built-in", 0)
    assert len(choose_from(None, num_samples=5).token_ids) == 5


def test_requests_are_chats_and_prompts_and_the_rest_of_them_is_ignored(tmp_path: Path) -> None:
    lines = [
        request_lines.chat("a", "Hello", tools=[{"type": "function"}], response_format={"type": "json"}),
        request_lines.completion("b", prompt="Once"),
        request_lines.completion("c", prompt=[7, 8, 9]),
        request_lines.completion("d", prompt=["first", "second"]),
    ]
    chosen = choose_from(request_lines.write(tmp_path / "in.jsonl", lines))
    assert sorted(chosen.token_ids) == sorted(
        [tuple(b"uHello"), tuple(b"Once"), (7, 8, 9), tuple(b"first")],
    )
    assert chosen.source == "in.jsonl"
    assert chosen.source_sha256 == files.sha256_file(tmp_path / "in.jsonl")
    assert chosen.num_tokens == 18


def test_the_record_has_the_figures_of_the_set(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "t.txt"
    path.parent.mkdir()
    path.write_text("one\ntwo\n")
    chosen = choose_from(path, seed=5)
    record = chosen.record()
    assert (record.source, record.num_samples, record.num_tokens, record.seed) == ("t.txt", 2, 6, 5)
    ids = json.dumps([list(sample) for sample in chosen.token_ids], separators=(",", ":"))
    assert record.sha256 == files.sha256_bytes(ids.encode())


def test_the_same_file_and_seed_give_the_same_set_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("".join(f"line {number}\n" for number in range(1000)))
    chosen = choose_from(path, num_samples=4)
    assert texts_of(chosen) == ["line 349", "line 59", "line 666", "line 45"]
    assert chosen == choose_from(path, num_samples=4)
    assert chosen != choose_from(path, num_samples=4, seed=1)
    # a larger set begins with the smaller one
    assert choose_from(path, num_samples=9).token_ids[:4] == chosen.token_ids


def test_bad_lines_are_skipped_and_counted(tmp_path: Path) -> None:
    good = json.dumps(request_lines.chat("a", "fine")).encode()
    robot = {"messages": [{"role": "robot", "content": "beep"}]}
    refused = json.dumps(request_lines.chat("b") | {"body": robot}).encode()
    big = json.dumps(request_lines.completion("c", prompt=[5, 256])).encode()
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\n".join([b"{", good, refused, b"[1]", big, b"", b'{"body":{}}']))
    chosen = choose_from(path)
    assert texts_of(chosen) == ["ufine"]
    assert chosen.num_skipped == 5
    (warning,) = chosen.warnings
    assert warning.startswith("calibration: 5 of 6 lines of no use: line 1: not JSON")
    assert warning.endswith("; 1 sample of 128 wanted")
    assert choose_from(None).warnings == ()


def test_a_short_file_is_told_and_one_that_is_cut_at_the_total_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("a line of text\n" * 3)
    assert choose_from(path, num_samples=4).warnings == ("calibration: 3 samples of 4 wanted",)
    assert choose_from(path, num_samples=3).warnings == ()
    monkeypatch.setattr("trtb.build.calibration.MAX_TOTAL_TOKENS", 20)
    assert choose_from(path, num_samples=4).warnings == ()


def test_a_refused_line_is_replaced_by_another(tmp_path: Path) -> None:
    robot = {"body": {"messages": [{"role": "robot", "content": "beep"}]}}
    lines = [request_lines.completion(str(number), prompt="x") for number in range(20)] + [robot] * 5
    chosen = choose_from(request_lines.write(tmp_path / "in.jsonl", lines), num_samples=20)
    assert len(chosen.token_ids) == 20


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "nothing but blank lines"),
        (b" \n\n\r\n", "nothing but blank lines"),
        (
            b"{\n[]\n{}\n{}\n",
            (
                r"none of 4 lines can be used \(line 1: not JSON: .*; line 2: not a request: no body; "
                r"line 3: neither body.messages nor body.prompt\)"
            ),
        ),
    ],
)
def test_a_file_with_nothing_to_calibrate_with_says_its_first_faults(
    tmp_path: Path, content: bytes, found: str
) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"calibration source: .*in.jsonl: {found}"):
        choose_from(path)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("missing", "not found"),
        ("folder", "a folder; expected a JSONL file"),
        ("binary", "binary data; expected UTF-8 text"),
        ("utf16", "UTF-16; expected UTF-8 text"),
        ("zipped", "gzip; expected UTF-8 text"),
        ("latin", "none of 1 lines can be used (line 1: not UTF-8 at byte 4)"),
    ],
)
def test_what_is_no_text_is_refused(tmp_path: Path, name: str, found: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "binary").write_bytes(b"GGUF\x03\0\0\0")
    (tmp_path / "utf16").write_bytes("Hi".encode("utf-16"))
    (tmp_path / "zipped").write_bytes(b"\x1f\x8b\x08")
    (tmp_path / "latin").write_bytes("Caf\u00e9".encode("latin-1"))
    with pytest.raises(ConfigError) as caught:
        choose_from(tmp_path / name)
    assert f"calibration source: {tmp_path / name}: {found}" in caught.value.message


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_byte_order_mark_and_line_ends_make_no_difference(tmp_path: Path, mark: bytes, end: str) -> None:
    request = json.dumps(request_lines.completion("a", prompt="p"))
    (tmp_path / "in.jsonl").write_bytes(mark + end.join([request, request]).encode())
    assert texts_of(choose_from(tmp_path / "in.jsonl")) == ["p", "p"]
    (tmp_path / "t.txt").write_bytes(mark + end.join(["a", "b", "", "", "c", ""]).encode())
    assert sorted(texts_of(choose_from(tmp_path / "t.txt"))) == ["a\nb", "c"]
    (tmp_path / "lines").write_bytes(mark + end.join(["a", "b"]).encode())
    assert sorted(texts_of(choose_from(tmp_path / "lines"))) == ["a", "b"]


def test_what_a_file_holds_is_told_by_its_suffix_or_its_beginning(tmp_path: Path) -> None:
    kinds = {}
    for name in ("a.jsonl", "a.txt", "a.md", "a"):
        (tmp_path / name).write_text('  {"body": 1}\n')
        file, kinds[name] = open_source(tmp_path / name)
        file.close()
    assert kinds == {"a.jsonl": "requests", "a.txt": "lines", "a.md": "lines", "a": "requests"}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"prompt": "hi"}, Text("hi")),
        ({"prompt": [1, 2]}, Ids([1, 2])),
        ({"prompt": [[1, 2], [3]]}, Ids([1, 2])),
        ({"prompt": [1, True]}, "body.prompt: expected a text or token ids"),
        ({"prompt": None}, "body.prompt: expected a text or token ids"),
        ({"messages": []}, "body.messages: expected a list that is not empty"),
        ({"messages": ["hi"]}, "body.messages[0]: expected an object with a role"),
        (
            {"messages": [{"role": "assistant", "content": None, "tool_calls": [{}]}]},
            Chat([{"role": "assistant", "content": ""}]),
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"text": "b"}]}]},
            Chat([{"role": "user", "content": "ab"}]),
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "body.messages[0].content: expected texts alone",
        ),
        ({"messages": [{"role": "user", "content": 7}]}, "body.messages[0].content: expected a text"),
        ({"input": "hi"}, "neither body.messages nor body.prompt"),
    ],
)
def test_what_a_request_says(body: dict[str, Any], expected: object) -> None:
    assert read_request(json.dumps({"custom_id": "a", "body": body}).encode()) == expected
    assert read_request(json.dumps(body).encode()) == expected  # a body alone will do


def test_samples_and_their_sum_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtb.build.calibration.MAX_TOTAL_TOKENS", 50)
    path = tmp_path / "t.txt"
    path.write_text("\n".join(letter * 100 for letter in "abcdefghij"))
    assert [len(ids) for ids in choose_from(path, max_tokens=20).token_ids] == [20, 20, 10]


def test_a_long_passage_is_cut_between_characters() -> None:
    data = b"x" + "é".encode() * MAX_PASSAGE_BYTES
    file = io.BytesIO(data + b"\nnext")
    first, second = find_passages(file, "lines")
    assert isinstance(first, Passage)
    assert first.num_bytes == MAX_PASSAGE_BYTES
    assert read_passage(file, first, "lines") == Text("x" + "é" * ((MAX_PASSAGE_BYTES - 1) // 2))
    assert isinstance(second, Passage)
    assert read_passage(file, second, "lines") == Text("next")


def test_a_line_too_long_is_a_fault_and_the_next_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtb.build.calibration_source.MAX_LINE_BYTES", 40)
    long = json.dumps({"prompt": "x" * 100}).encode()
    found = list(find_passages(io.BytesIO(long + b'\n{"prompt": "y"}\n'), "requests"))
    assert found == [Fault(1, "more than 40 bytes"), Passage(2, len(long) + 1, 16)]


class Endless(io.RawIOBase):
    """A file of many lines that takes no memory itself."""

    def __init__(self, line: bytes, num_lines: int) -> None:
        self._line, self._left = line, num_lines

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return 0

    def readinto(self, buffer: Any) -> int:
        num_lines = min(self._left, len(buffer) // len(self._line))
        self._left -= num_lines
        data = self._line * num_lines
        buffer[: len(data)] = data
        return len(data)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file() -> None:
    from trtb.build.calibration import _Faults, _sample, _usable

    config = CalibrationConfig(num_samples=50)
    peaks = []
    for num_lines in (1_000, 10_000):
        file = io.BufferedReader(Endless(b'{"prompt": "' + b"x" * 2000 + b'"}\n', num_lines))
        tracemalloc.start()
        sampled = _sample(_usable(file, "requests", _Faults(), lambda _step, _detail: None), config)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert len(sampled) == 78
    assert peaks[1] < peaks[0] + 10_000
