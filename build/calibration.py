"""Choose what calibrates a quantisation and tokenise it: the same file and seed give the same set anywhere.

The workers that quantise get token ids, so their environments need neither tokenizer nor chat template.
Which passages are chosen is decided by a hash of seed and place: no library's random numbers are in it.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import IO, Any, Final, Protocol, TypeVar

from trtb.build import files
from trtb.build.calibration_source import (
    Chat,
    Content,
    Fault,
    Ids,
    Kind,
    Passage,
    Text,
    find_passages,
    open_source,
    read_passage,
)
from trtb.build.config import CalibrationConfig
from trtb.build.errors import ConfigError
from trtb.build.manifest import CalibrationRecord
from trtb.build.prompt_encoder import PromptEncoder

BUILT_IN: Final = "built-in"
MAX_TOTAL_TOKENS: Final = (
    1 << 20
)  # all activations of a set pass through the model, for some schemes 20 times

_BUILT_IN_SEPARATOR = "\n%%\n"
_NUM_FAULTS_TOLD = 3
_TELL_EVERY_BYTES = 256 << 20

Progress = Callable[[str, str], None]  # (step, detail)
ItemT = TypeVar("ItemT")


class Encoder(Protocol):
    """What turns prompts into ids; see PromptEncoder."""

    def encode_text(self, text: str, max_tokens: int) -> list[int]:
        """Return at most `max_tokens` ids of a text."""
        ...

    def encode_chat(self, messages: list[dict[str, Any]], max_tokens: int) -> list[int]:
        """Return at most `max_tokens` ids of a chat; ValueError says why there are none."""
        ...


@dataclass(frozen=True, slots=True)
class CalibrationSet:
    """The samples of one calibration, as token ids."""

    token_ids: tuple[tuple[int, ...], ...]
    source: str  # a file's name, or "built-in"
    source_sha256: str
    sha256: str  # over the token ids
    seed: int
    num_skipped: int = 0  # lines of the source that were of no use
    warnings: tuple[str, ...] = ()  # what a person should know of what was skipped or is missing

    @property
    def num_tokens(self) -> int:
        """Return how many tokens all samples have together."""
        return sum(map(len, self.token_ids))

    def record(self) -> CalibrationRecord:
        """Return what an engine's manifest keeps of it."""
        return CalibrationRecord(
            source=self.source,
            source_sha256=self.source_sha256,
            num_samples=len(self.token_ids),
            num_tokens=self.num_tokens,
            seed=self.seed,
            sha256=self.sha256,
        )


@dataclass(slots=True)
class _Faults:
    """How many lines were of no use, and the first of them."""

    count: int = 0
    num_lines: int = 0  # of passages and of what is none, whole
    first: list[Fault] = field(default_factory=list)

    def add(self, fault: Fault) -> None:
        self.count += 1
        self.first = sorted([*self.first, fault], key=lambda known: known.line)[:_NUM_FAULTS_TOLD]

    @property
    def told(self) -> str:
        """Return the first of them on one line."""
        return "; ".join(f"line {fault.line}: {fault.why}" for fault in self.first)


def select_calibration(
    config: CalibrationConfig, tokenizer_folder: Path, vocab_size: int, progress: Progress
) -> CalibrationSet:
    """Return the calibration set that a config describes, tokenised by a checkpoint's tokenizer.

    Lines that are no requests, or that the chat template refuses, are skipped and counted.

    Args:
        config: What to choose from and how much.
        tokenizer_folder: As an engine has it: `tokenizer.json` and, for chats, a chat template.
        vocab_size: Ids at or above it do not exist.
        progress: Hears of a long file as it is read, and of the result.

    Raises:
        ConfigError: The source is missing, is no text, or has nothing to calibrate with.
        CheckpointError: The tokenizer does not load, or its chat template does not end.
    """
    with closing(PromptEncoder(tokenizer_folder)) as encoder:
        chosen = choose(config, encoder, vocab_size, progress)
    skipped = f"; {chosen.num_skipped} lines skipped" if chosen.num_skipped else ""
    progress(
        "calibration",
        f"{len(chosen.token_ids)} samples of {chosen.source}, {chosen.num_tokens} tokens{skipped}",
    )
    return chosen


def calibrate_with(
    write_tokenizer: Callable[[Path], None], config: CalibrationConfig, vocab_size: int
) -> CalibrationSet:
    """Return the calibration set of a checkpoint that writes its tokenizer; see `select_calibration`.

    Its progress is not told: `warnings` has what matters of it.
    """
    with tempfile.TemporaryDirectory(prefix="trtb-tokenizer-") as name:
        write_tokenizer(Path(name))
        return select_calibration(config, Path(name), vocab_size, lambda _step, _detail: None)


def built_in_texts() -> list[str]:
    """Return the passages that calibrate where a person names none; a change is one of the build schema."""
    text = resources.files("trtb.build").joinpath("data/calibration.txt").read_text("utf-8")
    return text.rstrip("\n").split(_BUILT_IN_SEPARATOR)


def choose(
    config: CalibrationConfig, encoder: Encoder, vocab_size: int, progress: Progress
) -> CalibrationSet:
    """Return the set that `select_calibration` returns, with an encoder that is loaded."""
    faults = _Faults()
    if config.source is None:
        texts = built_in_texts()
        faults.num_lines = len(texts)
        name, source_sha256 = BUILT_IN, files.sha256_bytes(_BUILT_IN_SEPARATOR.join(texts).encode())
        numbered = ((number, Text(text)) for number, text in enumerate(texts, start=1))
        contents: Iterable[tuple[int, Content | str]] = _sample(numbered, config)
        samples = _encode(contents, config, encoder, vocab_size, faults)
    else:
        path = Path(config.source).expanduser()
        file, kind = open_source(path)
        with closing(file):
            name, source_sha256 = path.name, files.sha256_file(path)
            passages = _sample(_usable(file, kind, faults, progress), config)
            contents = ((passage.line, read_passage(file, passage, kind)) for passage in passages)
            samples = _encode(contents, config, encoder, vocab_size, faults)
    if not samples:
        raise _nothing_usable(config.source or BUILT_IN, faults)
    data = json.dumps(samples, separators=(",", ":")).encode()
    sha256 = files.sha256_bytes(data)
    return CalibrationSet(
        tuple(samples),
        name,
        source_sha256,
        sha256,
        config.seed,
        num_skipped=faults.count,
        warnings=_warnings(config, samples, faults),
    )


def _warnings(config: CalibrationConfig, samples: list[tuple[int, ...]], faults: _Faults) -> tuple[str, ...]:
    """Return a line where something was skipped, or a source has fewer samples than are wanted."""
    is_cut = sum(map(len, samples)) >= MAX_TOTAL_TOKENS
    is_short = len(samples) < config.num_samples and not is_cut
    if not faults.count and not is_short:
        return ()
    told = f"{faults.count} of {faults.num_lines} lines of no use: {faults.told}; " if faults.count else ""
    found = f"{len(samples)} sample{'s' if len(samples) != 1 else ''} of {config.num_samples} wanted"
    return (f"calibration: {told}{found}",)


def _usable(file: IO[bytes], kind: Kind, faults: _Faults, progress: Progress) -> Iterator[Passage]:
    next_told = _TELL_EVERY_BYTES
    for found in find_passages(file, kind):
        faults.num_lines += 1
        if isinstance(found, Fault):
            faults.add(found)
            continue
        if found.offset >= next_told:
            progress("calibration", f"{found.offset >> 20} MiB read, line {found.line}")
            next_told = found.offset + _TELL_EVERY_BYTES
        yield found


def _sample(items: Iterable[ItemT], config: CalibrationConfig) -> list[ItemT]:
    """Return the items that come first in a seeded order, and some to stand in for those of no use."""
    num_kept = config.num_samples + config.num_samples // 4 + 16
    kept: list[tuple[int, int, ItemT]] = []  # the last of the order on top
    for index, item in enumerate(items):
        digest = hashlib.blake2b(f"{config.seed}:{index}".encode(), digest_size=8).digest()
        entry = (-int.from_bytes(digest, "big"), -index, item)
        if len(kept) < num_kept:
            heapq.heappush(kept, entry)
        elif entry > kept[0]:
            heapq.heapreplace(kept, entry)
    return [item for _, _, item in sorted(kept, key=lambda entry: entry[:2], reverse=True)]


def _encode(
    contents: Iterable[tuple[int, Content | str]],
    config: CalibrationConfig,
    encoder: Encoder,
    vocab_size: int,
    faults: _Faults,
) -> list[tuple[int, ...]]:
    """Return the samples, in their order, up to the number and the total that are wanted."""
    samples: list[tuple[int, ...]] = []
    num_left = MAX_TOTAL_TOKENS
    for line, content in contents:
        if len(samples) == config.num_samples or not num_left:
            break
        ids = _ids_of(content, encoder, min(config.max_tokens, num_left))
        if isinstance(ids, str):
            faults.add(Fault(line, ids))
        elif (why := _id_fault(ids, vocab_size)) is not None:
            faults.add(Fault(line, why))
        else:
            samples.append(tuple(ids))
            num_left -= len(ids)
    return samples


def _ids_of(content: Content | str, encoder: Encoder, max_tokens: int) -> Sequence[int] | str:
    """Return the ids of a content, or why it has none."""
    if isinstance(content, Text):
        return encoder.encode_text(content.text, max_tokens)
    if isinstance(content, Ids):
        return content.token_ids[:max_tokens]
    if isinstance(content, Chat):
        try:
            return encoder.encode_chat(content.messages, max_tokens)
        except ValueError as exc:
            return str(exc)
    return content


def _id_fault(ids: Sequence[int], vocab_size: int) -> str | None:
    if not ids:
        return "no tokens"
    wrong = next((token for token in ids if not 0 <= token < vocab_size), None)
    return None if wrong is None else f"token id {wrong}; expected ids below {vocab_size}"


def _nothing_usable(source: str, faults: _Faults) -> ConfigError:
    found = (
        f"none of {faults.count} lines can be used ({faults.told})"
        if faults.count
        else "nothing but blank lines"
    )
    return ConfigError(
        f"calibration source: {source}: {found}",
        "give a JSONL file of chat or completion requests, or a text file",
    )
