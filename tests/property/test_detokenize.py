"""Whatever ids come in whatever portions: the text of all of them at once, cut where it should be."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models
from tokenizers.pre_tokenizers import ByteLevel

from trtb.runner.detokenize import Detokenizer, StopMatcher

SPECIAL = ["<s>", "</s>"]
PLAIN_ADDED = ["<think>", "naïve 你", "é"]


def tokenizer_of(tokens: list[str], decoder: Any) -> Any:
    vocab = {token: index for index, token in enumerate([*SPECIAL, *tokens])}
    tokenizer = Tokenizer(models.WordLevel(vocab=vocab, unk_token="<s>"))
    if decoder is not None:
        tokenizer.decoder = decoder
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in PLAIN_ADDED])
    return tokenizer


def byte_level() -> Any:
    alphabet = sorted(ByteLevel.alphabet())
    words = ["Ġthe", "ĠðŁ", "ĺĢ", "ðŁĳ", "©âĢį", "eÌģ", "ab", "abc", "bc", "ĊĊ"]
    return tokenizer_of(alphabet + words, decoders.ByteLevel())


def byte_tokens() -> list[str]:
    # often a sequence, seldom a legal one
    values = [*b"\nAb", *"é你😀\ufffd".encode(), 0xFF, 0xC0, 0xED, 0xA0, 0x80]
    return [f"<0x{value:02X}>" for value in dict.fromkeys(values)] + ["<0x4>", "<0x+A>", "<0xZZ>", "<0xe4>"]


def pieces() -> list[str]:
    return ["▁", "▁▁", "▁a", "a", "b", "▁▁b", "▁你", "好", "x▁y", "##ing", "##", " .", " n't", " ", "x"]


LLAMA = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
WITH_BYTES = pieces() + byte_tokens()
DECODERS: dict[str, tuple[list[str], Any]] = {
    "byte level in a sequence": (sorted(ByteLevel.alphabet()), decoders.Sequence([decoders.ByteLevel()])),
    "metaspace": (WITH_BYTES, decoders.Metaspace()),
    "metaspace, never prepended": (pieces(), decoders.Metaspace(prepend_scheme="never")),
    "llama": (WITH_BYTES, decoders.Sequence([*LLAMA, decoders.Strip(" ", 1, 0)])),
    "llama, two blanks": (WITH_BYTES, decoders.Sequence([*LLAMA, decoders.Strip(" ", 2, 0)])),
    "gemma": (WITH_BYTES, decoders.Sequence(LLAMA)),
    "not fused": (WITH_BYTES, decoders.Sequence(LLAMA[:2])),
    "only bytes": (WITH_BYTES, decoders.ByteFallback()),
    "strips the anchor": (WITH_BYTES, decoders.Sequence([*LLAMA, decoders.Strip("x", 1, 0)])),
    "strips each token": (pieces(), decoders.Strip("▁", 1, 0)),
    "replaces a pattern": (
        pieces(),
        decoders.Sequence([decoders.Replace(Regex("[▁x]"), "-"), decoders.Metaspace()]),
    ),
    "word piece": (pieces(), decoders.WordPiece(prefix="##", cleanup=True)),
    "word piece, not cleaned": (pieces(), decoders.WordPiece(prefix="##", cleanup=False)),
    "end of word": (["a</w>", "b", "c</w>"], decoders.BPEDecoder(suffix="</w>")),
    "no repetitions": (["a", "b", "|", "<pad>"], decoders.CTC()),
    "no decoder": (pieces(), None),
}
TOKENIZERS = {name: tokenizer_of(*parts) for name, parts in DECODERS.items()} | {"byte level": byte_level()}


@st.composite
def portions_of_ids(draw: st.DrawFn) -> tuple[Any, list[list[int]]]:
    tokenizer = TOKENIZERS[draw(st.sampled_from(sorted(TOKENIZERS)))]
    # two ids beyond the vocabulary: decoding skips them
    ids = st.integers(0, tokenizer.get_vocab_size() + 1)
    return tokenizer, draw(st.lists(st.lists(ids, max_size=5), max_size=8))


def joined(portions: list[list[int]]) -> list[int]:
    return [token_id for ids in portions for token_id in ids]


def decode(tokenizer: Any, ids: list[int]) -> str:
    text: str = tokenizer.decode(ids, skip_special_tokens=True)
    return text


@given(portions_of_ids())
def test_portions_joined_are_the_text_of_all_ids(case: tuple[Any, list[list[int]]]) -> None:
    tokenizer, portions = case
    detokenizer = Detokenizer(tokenizer)
    parts = [detokenizer.push(ids) for ids in portions] + [detokenizer.finish()]
    assert "".join(parts) == decode(tokenizer, joined(portions))


@given(portions_of_ids(), st.data())
def test_what_was_given_out_is_not_changed_by_any_later_id(
    case: tuple[Any, list[list[int]]], data: st.DataObject
) -> None:
    tokenizer, portions = case
    detokenizer = Detokenizer(tokenizer)
    certain = "".join([detokenizer.push(ids) for ids in portions])
    later = data.draw(st.lists(st.integers(0, tokenizer.get_vocab_size() - 1), max_size=4))
    assert decode(tokenizer, joined(portions) + later).startswith(certain)


@given(st.binary(max_size=12), st.integers(0, 3))
def test_any_bytes_become_text_as_the_library_makes_it(data: bytes, num_tokens_a_portion: int) -> None:
    tokenizer = TOKENIZERS["byte level"]
    ids = [id_of_byte(tokenizer, value) for value in data]
    step = num_tokens_a_portion + 1
    detokenizer = Detokenizer(tokenizer)
    parts = [detokenizer.push(ids[at : at + step]) for at in range(0, len(ids), step)]
    assert "".join([*parts, detokenizer.finish()]) == decode(tokenizer, ids)


def id_of_byte(tokenizer: Any, value: int) -> int:
    # the alphabet in order of its characters: printable Latin-1 is itself, the rest follows in byte order
    alphabet = sorted(ByteLevel.alphabet())
    others = [byte for byte in range(256) if chr(byte) not in alphabet]
    char = chr(value) if chr(value) in alphabet else alphabet[256 - len(others) + others.index(value)]
    index: int = tokenizer.token_to_id(char)
    return index


def cut_by_search(text: str, stop: tuple[str, ...]) -> str | None:
    """Read the text as a person would: a character at a time, until a stop string stands at its end."""
    for end in range(1, len(text) + 1):
        starts = [end - len(word) for word in stop if text[:end].endswith(word)]
        if starts:
            return text[: min(starts)]
    return None


stops = st.lists(st.text("ab ⭐你好\ufffdce\u0301", min_size=1, max_size=4), min_size=1, max_size=5).map(
    tuple
)


@st.composite
def answers_with_stops(draw: st.DrawFn) -> tuple[Any, list[list[int]], tuple[str, ...]]:
    tokenizer, portions = draw(portions_of_ids())
    text = decode(tokenizer, joined(portions))
    # stop strings that are there are what the search is about
    cuts = st.tuples(st.integers(0, len(text)), st.integers(1, 5)).map(
        lambda cut: text[cut[0] : cut[0] + cut[1]]
    )
    there = draw(st.lists(cuts.filter(bool), min_size=1, max_size=3)) if text else []
    return tokenizer, portions, (*there, *draw(stops))


@given(answers_with_stops())
def test_an_answer_ends_where_a_search_of_all_its_text_ends_it(
    case: tuple[Any, list[list[int]], tuple[str, ...]],
) -> None:
    tokenizer, portions, stop = case
    ids = joined(portions)
    matcher = StopMatcher(Detokenizer(tokenizer), stop)
    for portion in portions:
        if matcher.push(portion) is not None:
            break
    expected = cut_by_search(decode(tokenizer, ids), stop)
    assert matcher.finish() == (decode(tokenizer, ids) if expected is None else expected)
    assert matcher.has_stopped == (expected is not None)
    assert matcher.num_tokens <= len(ids)


@given(answers_with_stops())
def test_an_answer_ends_with_the_token_that_makes_a_stop_string_certain(
    case: tuple[Any, list[list[int]], tuple[str, ...]],
) -> None:
    tokenizer, portions, stop = case
    matcher, certain = StopMatcher(Detokenizer(tokenizer), stop), Detokenizer(tokenizer)
    so_far, pushed = "", []
    for token in joined(portions):
        so_far += certain.push([token])
        pushed.append(token)
        found = matcher.push([token])
        assert found == cut_by_search(so_far, stop)
        if found is not None:
            assert decode(tokenizer, pushed).startswith(found)
            assert not any(word in found for word in stop)
            assert matcher.num_tokens == len(pushed)
            return


@given(answers_with_stops())
def test_the_portions_do_not_matter(case: tuple[Any, list[list[int]], tuple[str, ...]]) -> None:
    tokenizer, portions, stop = case
    in_portions = StopMatcher(Detokenizer(tokenizer), stop)
    for portion in portions:
        in_portions.push(portion)
    at_once = StopMatcher(Detokenizer(tokenizer), stop)
    at_once.push(joined(portions))
    assert in_portions.finish() == at_once.finish()
    assert in_portions.num_tokens == at_once.num_tokens


@pytest.mark.parametrize("name", sorted(TOKENIZERS))
def test_every_single_token_reads_as_the_library_reads_it(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    for first in range(tokenizer.get_vocab_size()):
        for ids in ([first], [first, 5], [5, first], [0, first, 1]):
            detokenizer = Detokenizer(tokenizer)
            assert detokenizer.push(ids) + detokenizer.finish() == decode(tokenizer, ids)
