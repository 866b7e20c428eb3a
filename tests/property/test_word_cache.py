"""Whatever the text, the word cache gives the tokenizer's own ids, or says that it cannot."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from trtb.runner.word_cache import WordCache

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CUTTERS = {
    "gpt2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm2": pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
    "llama3": pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LLAMA3), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    ),
}
PIECES = st.one_of(
    st.sampled_from(
        [" the", "the", " ", "  ", "\n", "'s", "'ll a", "<|end|>", "<|en", "12 a", "é a", "\u00a0a"]
    ),
    st.text(max_size=6),
)


def make(cutter, **added) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = cutter
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(["the cat and the other cat's 12 tables are in the street"] * 5, trainer)
    tokenizer.add_special_tokens([AddedToken("<|end|>", **added), AddedToken("<|e", **added)])
    return tokenizer


TOKENIZERS = {name: make(cutter) for name, cutter in CUTTERS.items()}
CACHES = {name: WordCache(tokenizer) for name, tokenizer in TOKENIZERS.items()}


@pytest.mark.parametrize("name", TOKENIZERS)
@given(text=st.lists(PIECES, max_size=12).map("".join))
def test_the_ids_are_the_tokenizers_own_for_any_text(name, text):
    assert CACHES[name].is_usable
    expected = TOKENIZERS[name].encode(text, add_special_tokens=False).ids
    assert CACHES[name].encode(text) == expected
    assert CACHES[name].encode(text) == expected  # from memory


@pytest.mark.parametrize(
    "change",
    [
        lambda t: setattr(t, "normalizer", normalizers.NFC()),
        lambda t: setattr(t, "pre_tokenizer", pre_tokenizers.ByteLevel(add_prefix_space=True)),
        lambda t: setattr(t, "pre_tokenizer", pre_tokenizers.Metaspace()),
        lambda t: setattr(t, "pre_tokenizer", pre_tokenizers.Digits()),
        lambda t: setattr(
            t, "pre_tokenizer", pre_tokenizers.Split(Regex(r"\w+ \w+|.| ?\p{L}+|x"), behavior="isolated")
        ),
        lambda t: t.enable_truncation(4),
        lambda t: t.add_tokens([AddedToken("New York")]),
        lambda t: t.add_tokens([AddedToken("Yo", rstrip=True)]),
        lambda t: t.add_tokens([AddedToken("Yo", single_word=True)]),
    ],
)
def test_a_tokenizer_that_looks_further_is_left_to_itself(change):
    tokenizer = make(CUTTERS["gpt2"])
    change(tokenizer)
    cache = WordCache(tokenizer)
    assert not cache.is_usable
    text = "New York is the 1st of a  lot<|end|> of York"
    assert cache.encode(text) == tokenizer.encode(text, add_special_tokens=False).ids


def test_the_memory_is_bounded(monkeypatch):
    monkeypatch.setattr("trtb.runner.word_cache.MAX_PARTS", 10)
    cache = WordCache(TOKENIZERS["gpt2"])
    for i in range(100):
        cache.encode(" ".join("abcdefghij"[j] * (i + 1) for j in range(10)))
    assert len(cache._parts) <= 10
