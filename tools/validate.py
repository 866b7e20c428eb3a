"""`trtb validate`: every fault of a file, no engine needed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtb.tools.console import JsonFlag, command, put, put_json, put_table, say

if TYPE_CHECKING:
    from trtb.build.store import StoredEngine
    from trtb.runner.findings import Finding
    from trtb.runner.request import Capabilities
    from trtb.runner.token_statistics import TokenStatistics
    from trtb.runner.validate import ValidationReport

InputArgument = Annotated[Path, typer.Argument(help="The JSONL file of requests.")]
AliasOption = Annotated[
    list[str] | None,
    typer.Option("--model-alias", help="A body.model that means the chosen engine; repeatable, * is any."),
]
StrictOption = Annotated[
    bool, typer.Option("--strict-params", help="Make unknown parameters errors, not warnings.")
]
MaxLineOption = Annotated[int, typer.Option(min=1, help="Longer lines are refused, in bytes.")]
EngineOption = Annotated[
    str | None, typer.Option("--engine", help="NAME, NAME@VERSION or an id; default: the newest default.")
]


@command
def validate(
    input_path: Annotated[Path | None, typer.Argument(help="The JSONL file of requests.")] = None,
    engine: EngineOption = None,
    model_alias: AliasOption = None,
    strict_params: StrictOption = False,
    max_line_bytes: MaxLineOption = 16 << 20,
    max_findings: Annotated[int, typer.Option(min=0, help="List at most so many findings.")] = 100,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Count tokens, shared prefixes and KV blocks, too (slower).")
    ] = False,
    default_max_tokens: Annotated[
        int, typer.Option(min=1, help="With --tokens: bound of answers whose request names none.")
    ] = 1024,
    parameters: Annotated[
        bool, typer.Option("--parameters", help="Print what becomes of each request parameter, and end.")
    ] = False,
    as_json: JsonFlag = False,
) -> int:
    """Check a request file: every fault, with its line, and nothing started.

    Without an engine in the store, any model name is accepted.

    Example: trtb validate input.jsonl --model-alias gpt-4o-mini
    """
    from trtb.build.errors import ConfigError
    from trtb.runner.options import accepted_models, capabilities_of
    from trtb.runner.request import Capabilities
    from trtb.runner.validate import to_json, validate_file

    stored = _chosen_engine(engine, is_needed=tokens)
    capabilities = capabilities_of(stored.path) if stored else Capabilities()
    if parameters:
        _put_parameters(stored, capabilities, as_json)
        return 0
    if input_path is None:
        raise ConfigError("INPUT: missing; expected a JSONL file of requests", "trtb validate input.jsonl")
    report = validate_file(
        input_path,
        model_names=accepted_models(stored.manifest, tuple(model_alias or ())) if stored else None,
        strict_params=strict_params,
        capabilities=capabilities,
        max_line_bytes=max_line_bytes,
        max_findings=max_findings,
    )
    counted = None
    if tokens and stored and not report.is_refused:
        from trtb.runner.token_statistics import count_tokens_of

        counted = count_tokens_of(
            input_path,
            stored.path,
            stored.manifest,
            report.invalid_lines,
            default_max_tokens=default_max_tokens,
            max_line_bytes=max_line_bytes,
            max_findings=max_findings,
        )
    if as_json:
        put_json(to_json(report) | ({"tokens": counted.to_json()} if counted else {}))
    else:
        show(report)
        if counted:
            _show_tokens(counted)
    return 3 if report.has_errors or (counted and counted.num_too_long) else 0


def _chosen_engine(engine: str | None, *, is_needed: bool) -> StoredEngine | None:
    from trtb.build.errors import EngineNotFoundError
    from trtb.build.files import trtb_home
    from trtb.build.store import EngineStore

    try:
        return EngineStore(trtb_home()).resolve(engine)
    except EngineNotFoundError:
        if engine is not None or is_needed:
            raise
        say("no engine in the store: any model name and every capability is accepted")
        return None


def _put_parameters(stored: StoredEngine | None, capabilities: Capabilities, as_json: bool) -> None:
    from trtb.runner.parameter_table import as_rows

    backend = stored.manifest.backend if stored else "openvino"
    rows = []
    for name, on_openvino, on_tensorrt_llm, accepts, note in as_rows():
        status = on_tensorrt_llm if backend == "tensorrt_llm" else on_openvino
        if name in ("tools", "tool_choice") and capabilities.tool_style is None:
            rows.append([name, "refused", accepts, "the engine's chat template has no tools"])
        else:
            rows.append([name, status, accepts, note])
    columns = ["parameter", "status", "accepts", "note"]
    if as_json:
        found = [dict(zip(columns, row, strict=True)) for row in rows]
        reference = stored.manifest.reference if stored else None
        put_json({"schema_version": 1, "engine": reference, "backend": backend, "parameters": found})
    else:
        put_table(columns, rows)


def _show_tokens(counted: TokenStatistics) -> None:
    for finding in counted.findings:
        put(describe(finding))
    figures = counted.to_json()
    lengths, blocks = figures["prompt_length"], figures["kv_blocks_per_request"]
    partly = " (at least)" if counted.is_prefix_count_partial else ""
    put(
        f"{figures['prompt_tokens']} prompt tokens in {figures['prompts']} prompts: "
        f"p50 {lengths['p50']}, p90 {lengths['p90']}, max {lengths['max']}; "
        f"{figures['shared_prefix_share']:.1%} in shared prefixes{partly}"
    )
    put(
        f"at most {figures['max_output_tokens']} output tokens; KV blocks of {figures['tokens_per_block']} "
        f"tokens a request: p50 {blocks['p50']}, p90 {blocks['p90']}, max {blocks['max']}"
    )
    if counted.num_too_long:
        put(f"{counted.num_too_long} requests cannot be sent: see above")


def show(report: ValidationReport, *, to: object = put) -> None:
    """Print what a validation found, and its sum."""
    write = put if to is put else say
    for finding in report.findings:
        write(describe(finding))
    if report.truncated:
        write(f"... and more; {len(report.findings)} are listed")
    counts = ", ".join(f"{count} {code}" for code, count in report.codes.most_common())
    write(
        f"{report.total} requests: {report.valid} valid, {report.invalid} invalid"
        + (f" ({counts})" if counts else "")
    )


def describe(finding: Finding) -> str:
    """Return a finding on one line, with its hint."""
    place = "file" if finding.line is None else f"line {finding.line}"
    if finding.column is not None:
        place += f":{finding.column}"
    if finding.custom_id is not None:
        place += f" [{finding.custom_id}]"
    hint = f" ({finding.hint})" if finding.hint else ""
    return f"{finding.severity}: {place}: {finding.code}: {finding.message}{hint}"
