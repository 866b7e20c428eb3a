"""Text while it comes: what is given out at once, what waits, and where an answer ends."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models
from tokenizers.pre_tokenizers import ByteLevel

from trtb.runner.detokenize import Detokenizer, StopMatcher


def make(tokens: list[str], decoder: Any) -> Any:
    vocab = {token: index for index, token in enumerate(["<end>", *tokens])}
    tokenizer = Tokenizer(models.WordLevel(vocab=vocab, unk_token="<end>"))
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    return tokenizer


@pytest.fixture(scope="module")
def letters() -> Any:
    """A byte-level tokenizer whose ids are those of `ids_of`, and a word."""
    return make([*sorted(ByteLevel.alphabet()), "abcd"], decoders.ByteLevel())


def ids_of(tokenizer: Any, text: str) -> list[int]:
    pre = ByteLevel(add_prefix_space=False, use_regex=False)
    return [tokenizer.token_to_id(char) for word, _ in pre.pre_tokenize_str(text) for char in word]


def test_a_character_waits_for_its_last_byte(letters: Any) -> None:
    detokenizer = Detokenizer(letters)
    assert [detokenizer.push([token]) for token in ids_of(letters, "a😀b")] == ["a", "", "", "", "😀", "b"]
    assert detokenizer.finish() == ""


def test_a_character_cut_at_the_end_becomes_one_replacement(letters: Any) -> None:
    detokenizer = Detokenizer(letters)
    assert detokenizer.push(ids_of(letters, "a😀")[:-1]) == "a"
    assert detokenizer.finish() == "\ufffd"


def test_bytes_that_are_no_text_do_not_hold_back_what_follows(letters: Any) -> None:
    detokenizer = Detokenizer(letters)
    stray = ids_of(letters, "😀")[1]
    assert detokenizer.push([stray, *ids_of(letters, "a")]) == "\ufffda"


def test_special_tokens_have_no_text_and_split_no_character(letters: Any) -> None:
    first, second = ids_of(letters, "é")
    assert Detokenizer(letters).push([0, first, 0, second, 0]) == "é"


def test_nothing_gives_nothing(letters: Any) -> None:
    detokenizer = Detokenizer(letters)
    assert (detokenizer.push([]), detokenizer.finish()) == ("", "")


def test_a_run_of_byte_tokens_waits_for_its_end() -> None:
    bytes_of_e = [f"<0x{value:02X}>" for value in "é".encode()]
    llama = make(
        ["▁a", *bytes_of_e],
        decoders.Sequence(
            [
                decoders.Replace("▁", " "),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(" ", 1, 0),
            ]
        ),
    )
    detokenizer = Detokenizer(llama)
    assert [detokenizer.push([token]) for token in (1, 2, 3, 1)] == ["a", "", "", "é a"]
    spoiled = Detokenizer(llama)
    # one more byte, and the character that was complete is none
    assert [spoiled.push([token]) for token in (2, 3, 3, 1)] == ["", "", "", "\ufffd" * 3 + " a"]


@pytest.mark.parametrize(
    ("stop", "text", "expected"),
    [
        (("ab", "abc"), "xabcy", "x"),
        (("abc", "bc"), "xabcy", "x"),
        (("bc", "abcd"), "xabcdy", "xa"),
        (("aab",), "aaab", "a"),
        (("é",), "caf\u0065\u0301 café", "cafe\u0301 caf"),
        (("\n\n",), "one\ntwo\n\nthree", "one\ntwo"),
        (("😀",), "😁😀", "😁"),
        (("never",), "neve", "neve"),
    ],
)
def test_an_answer_ends_before_the_stop_string_that_is_complete_first(
    letters: Any, stop: tuple[str, ...], text: str, expected: str
) -> None:
    matcher = StopMatcher(Detokenizer(letters), stop)
    for token in ids_of(letters, text):
        if matcher.push([token]) is not None:
            break
    assert matcher.finish() == expected
    assert matcher.has_stopped == (expected != text)


def test_a_stop_string_inside_one_token_is_found_as_if_it_came_in_letters(letters: Any) -> None:
    word = letters.token_to_id("abcd")
    assert StopMatcher(Detokenizer(letters), ("bc", "abcd")).push([word]) == "a"


def test_tokens_after_the_stop_string_are_not_counted(letters: Any) -> None:
    matcher = StopMatcher(Detokenizer(letters), ("b",))
    assert matcher.push(ids_of(letters, "abcdef")) == "a"
    assert matcher.push(ids_of(letters, "xyz")) == "a"
    assert matcher.num_tokens == 2


def test_a_stop_string_of_the_very_end_is_found_by_finish(letters: Any) -> None:
    matcher = StopMatcher(Detokenizer(letters), ("\ufffd",))
    assert matcher.push(ids_of(letters, "ok😀")[:-1]) is None
    assert matcher.finish() == "ok"
    assert matcher.has_stopped


def test_no_stop_strings_give_the_whole_text(letters: Any) -> None:
    matcher = StopMatcher(Detokenizer(letters), ())
    assert matcher.push(ids_of(letters, "all")) is None
    assert matcher.finish() == "all"
    assert not matcher.has_stopped
