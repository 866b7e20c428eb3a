"""The command line: parse, call one function, print, exit code. No logic, and nothing heavy at import."""

from __future__ import annotations

from typing import Annotated

import typer

from trtb.tools import (
    accept,
    build,
    cache,
    engines,
    models,
    plan,
    preflight,
    report,
    runs,
    serve,
    sweep,
    toolchain,
    validate,
)
from trtb.tools.help_panels import PanelCommand

app = typer.Typer(
    name="trtb",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Offline batch inference with large language models on your own hardware.",
    epilog="Example: trtb run input.jsonl -o out.jsonl",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from trtb.build import __version__

        typer.echo(f"trtb {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Offline batch inference with large language models on your own hardware."""


app.add_typer(models.app, name="models")
app.add_typer(engines.app, name="engines")
app.add_typer(toolchain.app, name="toolchain")
app.add_typer(cache.app, name="cache")
app.command("build")(build.build)
app.command("preflight")(preflight.preflight)
app.command("plan")(plan.plan)
app.command("serve", cls=PanelCommand)(serve.serve)
app.command("validate")(validate.validate)
app.command("run", cls=PanelCommand)(runs.run)
app.command("retry")(runs.retry)
app.command("report", cls=report.ReportCommand)(report.report)
app.command("accept")(accept.accept)
app.command("sweep")(sweep.sweep)


def main() -> None:
    """Run the command line."""
    app()
