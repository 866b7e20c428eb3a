"""What a comparison of two runs says: the object that `trtb report A B --json` prints."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from trtb.runner.reporting.intervals import PairedDifference, Share

SCHEMA_VERSION: Final = 1
Value = str | int | float | bool | list[str] | None


class _Model(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class ComparedRun(_Model):
    """One of the two runs."""

    output: str
    run_id: str
    state: Literal["running", "interrupted", "finished"]
    engine: str
    engine_id: str
    input_path: str
    input_sha256: str
    host: str
    created_at: str
    total: int
    completed: int
    failed: int


class Difference(_Model):
    """Something that was not the same for both."""

    kind: Literal["engine", "input", "setting", "option", "version", "machine"]
    name: str
    a: Value
    b: Value


class Counts(_Model):
    """How the lines of the two runs belong together; a line without a result is in neither."""

    in_both: int
    completed_in_both: int
    failed_in_both: int
    regressed: int  # completed in A, failed in B
    repaired: int  # failed in A, completed in B
    only_a: int  # with a custom_id that B has no result of
    only_b: int
    only_a_samples: list[str]
    only_b_samples: list[str]
    without_id_a: int  # lines that had no custom_id, and failed
    without_id_b: int


class Change(_Model):
    """A request that ended otherwise: its custom_id, and the code of the run in which it failed."""

    custom_id: str
    code: str


class Figure(_Model):
    """One measure of both runs; null where a run does not have it."""

    name: str
    unit: str
    a: float | None
    b: float | None
    ratio: float | None  # b / a


class Speed(_Model):
    """How fast the runs were, by their own reports."""

    figures: list[Figure]
    # what else differed than the engine; where there is anything, the ratios do not tell of the engine
    cautions: list[str]
    # the mean, over pairs whose answers both came from the engine, of B's latency by A's (geometric)
    latency_ratio_of_pairs: float | None


class LengthsOfRun(_Model):
    """The output tokens of one run's answers, of the requests completed in both."""

    mean: float | None
    p50: int | None
    p90: int | None
    p99: int | None
    truncated: Share  # answers that max_tokens cut


class Lengths(_Model):
    """How long the answers are, of the requests completed in both."""

    a: LengthsOfRun
    b: LengthsOfRun
    ratio: float | None  # of the totals, b / a
    difference: PairedDifference  # in output tokens


class FinishChange(_Model):
    """How often an answer that ended for one reason in A ended for another in B."""

    a: str
    b: str
    count: int


class JsonAgreement(_Model):
    """Answers that are a JSON object or list."""

    in_both: int
    only_a: int
    only_b: int
    equal: Share  # of those in both, as values: neither spaces nor the order of keys count


class Agreement(_Model):
    """How far the answers to the same request agree, of the requests completed in both."""

    equal: Share  # byte by byte, text and tool calls
    begun_alike: int  # not equal, and one is the beginning of the other
    similarity_mean: float | None  # 1 is the same words in the same order
    similarity_p10: float | None
    same_beginning_mean: float | None  # share of the longer answer before the first difference
    # words before the first difference, of the answers that differ
    first_difference_p10: int | None
    first_difference_p50: int | None
    first_difference_p90: int | None
    prompts_differ: int  # pairs whose prompts are not of the same number of tokens
    finish_changes: list[FinishChange]
    json_answers: JsonAgreement
    tool_calls: Share  # answers with the same calls, of the pairs in which either calls a tool


class DifferentPair(_Model):
    """Two answers that agree the least."""

    custom_id: str
    line_a: int
    line_b: int
    similarity: float
    words_alike: int  # with which both begin
    words_a: int
    words_b: int
    text_a: str | None = None  # only on request
    text_b: str | None = None


class PairBin(_Model):
    """How many of each run's values lie in [low, high)."""

    low: float
    high: float
    a: int
    b: int


class ValueBin(_Model):
    """How many pairs lie in [low, high)."""

    low: float
    high: float
    count: int


class Distributions(_Model):
    """What the charts are drawn from."""

    # of the requests that the engine answered itself in both
    request_latency_ms: list[PairBin]
    ttft_ms: list[PairBin]
    output_tokens: list[PairBin]  # of the requests completed in both
    # of the answers that differ
    length_difference: list[ValueBin]  # in output tokens, B less A
    first_difference: list[ValueBin]  # in words
    similarity: list[ValueBin]


class Comparison(_Model):
    """Two runs, request by request."""

    schema_version: Literal[1] = SCHEMA_VERSION
    a: ComparedRun
    b: ComparedRun
    same_input: bool
    differences: list[Difference]
    counts: Counts
    regressions: list[Change]  # the first of them
    repairs: list[Change]
    speed: Speed
    lengths: Lengths
    agreement: Agreement
    most_different: list[DifferentPair]
    distributions: Distributions
    verdict: list[str]
