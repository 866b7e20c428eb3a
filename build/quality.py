"""How much a quantised model differs from its base on a fixed text; pure arithmetic over logits."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np

from trtb.build.manifest import QualityReport


@dataclass(frozen=True, slots=True)
class TextScore:
    """What a model thinks of each token of a text, given those before it; arrays of (num_tokens - 1,)."""

    log_probs: np.ndarray[Any, np.dtype[np.float64]]
    top1: np.ndarray[Any, np.dtype[np.int64]]

    @property
    def perplexity(self) -> float:
        """Return the exponential of the mean negative log probability."""
        return float(np.exp(-self.log_probs.mean()))


def quality_text() -> str:
    """Return the text that every engine is measured on; a change of it is a change of the build schema."""
    return resources.files("trtb.build").joinpath("data/quality.txt").read_text("utf-8")


def calibration_texts() -> list[str]:
    """Return the texts that calibrate activations, one a line."""
    return resources.files("trtb.build").joinpath("data/calibration.txt").read_text("utf-8").splitlines()


def score(logits: np.ndarray[Any, Any], token_ids: list[int]) -> TextScore:
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


def compare(quantised: TextScore, base: TextScore, base_name: str) -> QualityReport:
    """Return the report of a quantised model against its base on the same text."""
    assert len(quantised.top1) == len(base.top1)
    return QualityReport(
        base=base_name,
        num_tokens=len(base.top1) + 1,
        perplexity=quantised.perplexity,
        base_perplexity=base.perplexity,
        top1_agreement=float((quantised.top1 == base.top1).mean()),
    )
