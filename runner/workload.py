"""What a file of requests asks of an engine: its lengths, counted as a run would, for a plan."""

from __future__ import annotations

from pathlib import Path

from trtb.build.errors import ConfigError
from trtb.build.manifest import ModelShape, TokenIds
from trtb.build.planning.plan import Workload
from trtb.build.planning.plan_memory import TOKENS_PER_BLOCK
from trtb.runner.errors import InputFileError
from trtb.runner.options import capabilities_of
from trtb.runner.prompt import LengthLimits
from trtb.runner.reader import DEFAULT_MAX_LINE_BYTES
from trtb.runner.token_statistics import TokenStatistics, count_tokens
from trtb.runner.validate import validate_file


def read_workload(
    path: Path, tokenizer: Path, model: ModelShape, tokens: TokenIds, default_max_tokens: int
) -> Workload:
    """Return what the valid requests of a file add up to.

    Args:
        path: A JSONL file of requests.
        tokenizer: A `tokenizer/` folder, as an engine has it.
        model: The model's shape; its context bounds what counts.
        tokens: The model's special ids.
        default_max_tokens: Of requests that name no bound.

    Raises:
        InputFileError: The file cannot be read, or no request in it can be sent.
    """
    report = validate_file(
        path,
        model_names=None,
        strict_params=False,
        capabilities=capabilities_of(tokenizer.parent),
        max_line_bytes=DEFAULT_MAX_LINE_BYTES,
        max_findings=0,
    )
    statistics = count_tokens(
        path,
        tokenizer,
        LengthLimits(model.max_position_embeddings, default_max_tokens),
        model.vocab_size,
        tokens,
        report.invalid_lines,
        tokens_per_block=TOKENS_PER_BLOCK,
        max_line_bytes=DEFAULT_MAX_LINE_BYTES,
        max_findings=0,
    )
    if statistics.num_requests == 0:
        raise InputFileError(
            f"{path}: no request that this model could answer; {report.invalid} are invalid and "
            f"{statistics.num_too_long} too long",
            f"trtb validate {path}",
        )
    return _workload(statistics)


def uniform_workload(num_requests: int, prompt_tokens: int, output_tokens: int) -> Workload:
    """Return a file of equal requests, where there is none yet to count.

    Raises:
        ConfigError: A length is missing.
    """
    if min(num_requests, prompt_tokens, output_tokens) < 1:
        raise ConfigError(
            "num_requests, prompt_tokens, output_tokens: not all given; expected all three, or none",
            "or give the file itself: --input batch.jsonl",
        )
    total = prompt_tokens + output_tokens
    blocks = -(-total // TOKENS_PER_BLOCK)
    return Workload(
        num_requests, num_requests * prompt_tokens, num_requests * output_tokens, total, num_requests * blocks
    )


def _workload(statistics: TokenStatistics) -> Workload:
    return Workload(
        num_requests=statistics.num_requests,
        prompt_tokens=statistics.prompt_tokens,
        output_tokens=statistics.max_output_tokens,
        max_request_tokens=statistics.blocks.max_value * TOKENS_PER_BLOCK,
        num_blocks=statistics.kv_blocks,
        shared_prefix_share=statistics.shared_prefix_tokens / max(1, statistics.prompt_tokens),
    )
