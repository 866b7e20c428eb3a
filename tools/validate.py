"""`trtb validate`: every fault of a file, no engine needed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtb.tools.console import JsonFlag, command, put, put_json, say

if TYPE_CHECKING:
    from trtb.runner.findings import Finding
    from trtb.runner.request import Capabilities
    from trtb.runner.validate import ValidationReport

InputArgument = Annotated[Path, typer.Argument(help="The JSONL file of requests.")]
AliasOption = Annotated[
    list[str] | None,
    typer.Option("--model-alias", help="A body.model that means the chosen engine; repeatable, * is any."),
]
StrictOption = Annotated[
    bool, typer.Option("--strict-params", help="Make unknown parameters errors, not warnings.")
]
MaxLineOption = Annotated[int, typer.Option(help="Longer lines are refused, in bytes.")]
EngineOption = Annotated[
    str | None, typer.Option("--engine", help="NAME, NAME@VERSION or an id; default: the newest default.")
]


@command
def validate(
    input_path: InputArgument,
    engine: EngineOption = None,
    model_alias: AliasOption = None,
    strict_params: StrictOption = False,
    max_line_bytes: MaxLineOption = 16 << 20,
    max_findings: Annotated[int, typer.Option(help="List at most so many findings.")] = 100,
    as_json: JsonFlag = False,
) -> int:
    """Check a request file: every fault, with its line, and nothing started.

    Without an engine in the store, any model name is accepted.

    Example: trtb validate input.jsonl --model-alias gpt-4o-mini
    """
    from trtb.runner.validate import to_json, validate_file

    names, capabilities = _chosen_engine(engine, tuple(model_alias or ()))
    report = validate_file(
        input_path,
        model_names=names,
        strict_params=strict_params,
        capabilities=capabilities,
        max_line_bytes=max_line_bytes,
        max_findings=max_findings,
    )
    if as_json:
        put_json(to_json(report))
    else:
        show(report)
    return 3 if report.has_errors else 0


def _chosen_engine(
    engine: str | None, aliases: tuple[str, ...]
) -> tuple[frozenset[str] | None, Capabilities]:
    from trtb.build.errors import EngineNotFoundError
    from trtb.build.files import trtb_home
    from trtb.build.store import EngineStore
    from trtb.runner.options import accepted_models, capabilities_of
    from trtb.runner.request import Capabilities

    try:
        stored = EngineStore(trtb_home()).resolve(engine)
    except EngineNotFoundError:
        if engine is not None:
            raise
        say("no engine in the store: any model name and every capability is accepted")
        return None, Capabilities()
    return accepted_models(stored.manifest, aliases), capabilities_of(stored.path)


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
