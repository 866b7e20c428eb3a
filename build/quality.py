"""How much a quantised model differs from its base on fixed texts; pure arithmetic over logits and answers.

Fluent text proves nothing. Perplexity says how much worse the model got on the whole, the agreement of
the most likely tokens how often it would choose another one, and the greedy agreement how soon its
answers leave those of the base: one different token is enough to make the rest another text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np

from trtb.build.errors import QuantizationError
from trtb.build.manifest import QualityReport
from trtb.build.quantization import QuantScheme

NUM_PROMPT_TOKENS = 32  # the beginning of each text, from which the model goes on by itself
NUM_GREEDY_TOKENS = 32

# A conversion changes the precision of the arithmetic and nothing else: 0.1 % was measured on a 135M model.
MAX_CONVERSION_RATIO = 1.02

_SEPARATOR = "\n%%\n"

Answers = tuple[tuple[int, ...], ...]  # the greedy continuation of each prompt, in token ids


@dataclass(frozen=True, slots=True)
class TextScore:
    """What a model thinks of each token of some texts, given those before it; arrays of (num_scored,).

    The first token of a text has none before it and is not scored.
    """

    log_probs: np.ndarray[Any, np.dtype[np.float64]]
    top1: np.ndarray[Any, np.dtype[np.int64]]
    answers: Answers = ()

    @property
    def perplexity(self) -> float:
        """Return the exponential of the mean negative log probability."""
        return float(np.exp(-self.log_probs.mean()))


def quality_texts() -> list[str]:
    """Return the texts that every engine is measured on; a change of them is a change of the build schema."""
    text = resources.files("trtb.build").joinpath("data/quality.txt").read_text("utf-8")
    return text.rstrip("\n").split(_SEPARATOR)


def score(logits: np.ndarray[Any, Any], token_ids: Sequence[int]) -> TextScore:
    """Score a text from its logits (num_tokens, vocab_size).

    >>> even = score(np.zeros((3, 4)), [1, 2, 3])
    >>> round(even.perplexity, 6)
    4.0
    """
    rows = logits[:-1].astype(np.float64)
    rows -= rows.max(axis=1, keepdims=True)
    targets = np.asarray(token_ids[1:], dtype=np.int64)
    chosen = rows[np.arange(len(targets)), targets]
    return TextScore(log_probs=chosen - np.log(np.exp(rows).sum(axis=1)), top1=rows.argmax(axis=1))


def join(scores: Iterable[TextScore], answers: Answers = ()) -> TextScore:
    """Return one score over the tokens of several texts."""
    found = list(scores)
    return TextScore(
        log_probs=np.concatenate([each.log_probs for each in found]),
        top1=np.concatenate([each.top1 for each in found]),
        answers=answers,
    )


def greedy_agreement(answers: Answers, base_answers: Answers) -> float:
    """Return the mean share of an answer that is the base's, up to the first different token.

    >>> greedy_agreement(((1, 2, 3, 4), (5, 6, 7, 8)), ((1, 2, 9, 4), (5, 6, 7, 8)))
    0.75
    """
    shares = []
    for answer, base_answer in zip(answers, base_answers, strict=True):
        equal = [ours == theirs for ours, theirs in zip(answer, base_answer, strict=True)]
        shares.append((equal.index(False) if False in equal else len(equal)) / len(equal))
    return sum(shares) / len(shares)


def compare(quantised: TextScore, base: TextScore, base_name: str) -> QualityReport:
    """Return the report of a quantised model against its base on the same texts."""
    assert len(quantised.top1) == len(base.top1)
    return QualityReport(
        base=base_name,
        num_tokens=len(base.top1),
        perplexity=quantised.perplexity,
        base_perplexity=base.perplexity,
        top1_agreement=float((quantised.top1 == base.top1).mean()),
        greedy_agreement=greedy_agreement(quantised.answers, base.answers) if base.answers else None,
    )


def check_report(report: QualityReport, scheme: QuantScheme) -> None:
    """Refuse an engine that came out worse than its scheme explains.

    Raises:
        QuantizationError: Its perplexity is not a number, or too far above that of its base.
    """
    ratio = report.perplexity / report.base_perplexity
    if ratio <= scheme.max_perplexity_ratio:  # nan is not
        return
    raise QuantizationError(
        f"{scheme.name}: perplexity {report.perplexity:.3f} against {report.base_perplexity:.3f} of "
        f"{report.base}, ratio {ratio:.3f}; expected at most {scheme.max_perplexity_ratio}; "
        f"same top choice at {report.top1_agreement:.1%} of {report.num_tokens} tokens",
        "build with --quant int8_wo, with a smaller group size, or calibrate on texts like your requests",
    )


def check_conversion(reference_perplexity: float, perplexity: float) -> None:
    """Refuse a converted model that does not think what the model that it came from thinks.

    Raises:
        QuantizationError: Their perplexities differ by more than another arithmetic explains.
    """
    ratio = perplexity / reference_perplexity
    if 1 / MAX_CONVERSION_RATIO <= ratio <= MAX_CONVERSION_RATIO:
        return
    raise QuantizationError(
        f"convert: perplexity {perplexity:.3f} against {reference_perplexity:.3f} of the checkpoint by "
        f"torch, ratio {ratio:.3f}; expected at most {MAX_CONVERSION_RATIO} either way",
        "the exporter does not know this architecture well enough; use a GGUF file of the same model",
    )
