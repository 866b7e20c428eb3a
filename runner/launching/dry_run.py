"""A run that is only planned: the file is checked and looked at, nothing is started and nothing is left."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Any

from trtb.runner.errors import InputRefusedError
from trtb.runner.line_set import LineSet
from trtb.runner.options import RunOptions
from trtb.runner.scheduling.schedule_inputs import make_plan_options, make_renderer, make_source
from trtb.runner.scheduling.schedule_planner import Planner
from trtb.runner.source import Refused
from trtb.runner.validate import validate_file

SCHEMA_VERSION = 1


def plan_run(options: RunOptions) -> tuple[str, dict[str, Any]]:
    """Return what a run of these options would do: a sentence, and its figures in JSON's types.

    The server is not asked: its pool is what the options say, and answers count as exact with
    `--deterministic` alone.

    Raises:
        InputFileError: The file is refused, as a run would refuse it.
    """
    checked = validate_file(
        options.input_path,
        model_names=options.model_names,
        strict_params=options.strict_params,
        capabilities=options.capabilities(),
        max_line_bytes=options.max_line_bytes,
    )
    if checked.is_refused or (checked.has_errors and options.on_invalid == "refuse"):
        raise InputRefusedError(options.input_path, checked)
    pool = options.num_blocks_asked
    refused: list[Refused] = []
    with tempfile.TemporaryDirectory(prefix="trtb-plan-") as folder:
        source = make_source(
            options, make_renderer(options, pool), LineSet(), checked.invalid_lines, pool, seed_base=""
        )
        plan_options = make_plan_options(
            options, Path(folder), is_exact=options.deterministic, is_reusing=options.kv_reuse is not False
        )
        planner = Planner(plan_options, source, refused.append)
        with contextlib.closing(planner):
            for _ in planner.steps():
                pass
            return planner.describe(), _figures(planner, checked.total, len(refused))


def _figures(planner: Planner, total: int, num_refused: int) -> dict[str, Any]:
    counted = planner.figures
    return {
        "schema_version": SCHEMA_VERSION,
        "total": total,
        "order": planner.choice.order,
        "why": planner.choice.why,
        "num_equal": len(planner.equal),
        "num_refused": num_refused if counted else None,
        "num_prefixes": counted.num_prefixes if counted else None,
        "num_grouped": counted.num_grouped if counted else None,
        "prompt_tokens": counted.prompt_tokens if counted else None,
        "reused_tokens": counted.reused_tokens if counted else None,
        "expected_reuse": round(counted.reuse_share, 4) if counted else None,
    }
