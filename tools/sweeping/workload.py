"""What perf_analyzer sends: prompts of random ids of given lengths, or those of the user's own file.

Both are token ids, as the server takes them. Random prompts share nothing with one another, so that an
engine's cache of earlier prompts has nothing to give; those of a file share what they share.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from trtb.build import files
from trtb.build.errors import ConfigError
from trtb.build.manifest import EngineManifest
from trtb.model_repo import contract
from trtb.runner.errors import InputFileError
from trtb.runner.line_set import LineSet
from trtb.runner.options import RunOptions
from trtb.runner.request import SamplingParams
from trtb.runner.scheduling.schedule_inputs import make_renderer, make_source
from trtb.runner.source import Item, Refused

_GREEDY: Final = 1  # of runtime_top_k
_MAX_JSON_INT: Final = (1 << 63) - 1  # perf_analyzer reads no larger ones


@dataclass(frozen=True, slots=True)
class Entry:
    """One prompt with all that goes with it, by tensor, as perf_analyzer's input data has it."""

    tensors: dict[str, Any]


def synthetic_entries(
    manifest: EngineManifest, tokenizer: Path, lengths: tuple[int, int], count: int, seed: str
) -> list[Entry]:
    """Return prompts of random ids of one length, each answered at exactly the other length.

    Args:
        manifest: The engine's.
        tokenizer: Its `tokenizer/` folder; special tokens are not drawn.
        lengths: Tokens of each prompt and of each answer.
        count: How many prompts.
        seed: The same seed gives the same prompts.
    """
    num_input, num_output = lengths
    special = special_ids(tokenizer, manifest)
    ordinary = [token for token in range(manifest.model.vocab_size) if token not in special]
    draw = random.Random(seed)
    return [
        _entry(
            draw.choices(ordinary, k=num_input),
            num_output,
            end_id=None,  # nothing ends it early: the length is what was asked for
            pad_id=manifest.tokens.pad,
            more={contract.TOP_K.name: [_GREEDY]},
        )
        for _ in range(count)
    ]


def check_lengths(manifest: EngineManifest, lengths: tuple[int, int]) -> None:
    """Refuse lengths that the engine has no room for.

    Raises:
        ConfigError: They are too long together.
    """
    num_input, num_output = lengths
    if num_input + num_output > manifest.limits.max_seq_len:
        raise ConfigError(
            f"--input-tokens {num_input}, --output-tokens {num_output}: {num_input + num_output} together; "
            f"engine {manifest.reference} was built for {manifest.limits.max_seq_len}",
            "choose shorter ones, or build with a larger --max-seq-len",
        )


def special_ids(tokenizer: Path, manifest: EngineManifest) -> frozenset[int]:
    """Return the ids that mean more than text: those added to the tokenizer, and the engine's own."""
    tokens = manifest.tokens
    known = {tokens.pad, *tokens.eos, *([] if tokens.bos is None else [tokens.bos])}
    try:
        added = orjson.loads((tokenizer / "tokenizer.json").read_bytes()).get("added_tokens", [])
    except FileNotFoundError:
        added = []
    return frozenset(known | {token["id"] for token in added})


def file_entries(options: RunOptions, count: int) -> list[Entry]:
    """Return the first prompts of the user's file, rendered and tokenised as a run does it.

    A line that a run would refuse is left out. The file may have fewer than `count`; they are then sent
    again, in turn.

    Raises:
        InputFileError: The file cannot be read, or no line in it can be sent.
    """
    renderer = make_renderer(options, None)
    source = make_source(options, renderer, LineSet(), LineSet(), None, seed_base="sweep")
    num_refused = 0

    def entries() -> Iterator[Entry]:
        nonlocal num_refused
        for item in source:
            if isinstance(item, Refused):
                num_refused += 1
                continue
            stop_words = renderer.stop_word_ids(item.sampling.stop) if item.sampling.stop else ()
            yield from _entries_of(item, options.manifest, stop_words)

    found = list(itertools.islice(entries(), count))
    if not found:
        raise InputFileError(
            f"{options.input_path}: no line can be sent; {num_refused} are refused; expected at least one",
            f"trtb validate {options.input_path}",
        )
    return found


def write_input_data(path: Path, entries: list[Entry]) -> None:
    """Write perf_analyzer's --input-data."""
    files.write_atomic(path, orjson.dumps({"data": [entry.tensors for entry in entries]}))


def _entries_of(
    item: Item, manifest: EngineManifest, stop_words: tuple[tuple[int, ...], ...]
) -> Iterator[Entry]:
    tokens = manifest.tokens
    words = (*((token,) for token in tokens.eos[1:]), *stop_words)
    more = _sampling_tensors(item.sampling, is_greedy=item.is_greedy, seed=item.seed)
    if words:
        ids, ends = contract.pack_stop_words([list(word) for word in words])
        more[contract.STOP_WORDS_LIST.name] = {"content": [*ids, *ends], "shape": [2, len(ids)]}
    for prompt in item.prompts:
        yield _entry(prompt.input_ids, prompt.max_tokens, end_id=tokens.end, pad_id=tokens.pad, more=more)


def _sampling_tensors(sampling: SamplingParams, *, is_greedy: bool, seed: int) -> dict[str, Any]:
    """Return how a request is sampled; all of them, since perf_analyzer sends the same tensors each time."""
    return {
        contract.TOP_K.name: [_GREEDY if is_greedy else sampling.top_k or 0],
        contract.TEMPERATURE.name: [1.0 if is_greedy else sampling.temperature],
        contract.TOP_P.name: [1.0 if is_greedy else sampling.top_p],
        contract.REPETITION_PENALTY.name: [sampling.repetition_penalty],
        contract.PRESENCE_PENALTY.name: [sampling.presence_penalty],
        contract.FREQUENCY_PENALTY.name: [sampling.frequency_penalty],
        contract.MIN_TOKENS.name: [sampling.min_tokens],
        contract.SEED.name: [seed & _MAX_JSON_INT],
    }


def _entry(
    ids: list[int], max_tokens: int, *, end_id: int | None, pad_id: int, more: dict[str, Any]
) -> Entry:
    tensors: dict[str, Any] = {
        contract.INPUT_IDS.name: {"content": ids, "shape": [len(ids)]},
        contract.INPUT_LENGTHS.name: [len(ids)],
        contract.REQUEST_OUTPUT_LEN.name: [max_tokens],
        contract.PAD_ID.name: [pad_id],
        contract.STREAMING.name: [True],
        contract.EXCLUDE_INPUT_IN_OUTPUT.name: [True],
    }
    if end_id is not None:
        tensors[contract.END_ID.name] = [end_id]
    return Entry({**tensors, **more})
