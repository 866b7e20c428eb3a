"""`trtb accept`: the whole road on this host, and one evidence file of it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from trtb.tools.console import JsonFlag, command, put, say

# how a child calls trtb: by this Python, whatever is on the PATH
TRTB = (sys.executable, "-c", "from trtb.tools.cli import main; main()")


@command
def accept(
    backend: Annotated[
        Literal["auto", "openvino", "tensorrt_llm"],
        typer.Option(help="auto takes the GPU where there is one and something to build for it."),
    ] = "auto",
    model: Annotated[
        str, typer.Option(help="A small checkpoint: a name, a path, or hf:org/name@commit.")
    ] = "smollm2-135m-instruct",
    quants: Annotated[
        str | None,
        typer.Option(help="Two quantisations, as in int8_wo,f16; default: those the device is best at."),
    ] = None,
    num_requests: Annotated[
        int, typer.Option(min=20, help="Requests of the run that is killed, stopped and gone on with.")
    ] = 500,
    evidence: Annotated[Path, typer.Option(help="Folder of evidence.json and evidence.txt.")] = Path(
        "trtb-evidence"
    ),
    engine_home: Annotated[
        Path | None,
        typer.Option(help="A home (as TRTB_HOME) for the engines; default: one of its own in the cache."),
    ] = None,
    include_paths: Annotated[
        bool, typer.Option("--include-paths", help="Leave paths and the machine's name in the evidence.")
    ] = False,
    as_json: JsonFlag = False,
) -> int:
    """Prove this host: build, serve, run, kill, resume, cancel, measure, and leave nothing behind.

    The exit code is 0, or that of the first step that failed: 4 machine, 5 build, 6 server, 1 requests, 70
    reconciliation.

    Example: trtb accept --backend openvino --num-requests 100
    """
    from trtb.build.files import trtb_home
    from trtb.runner.acceptance.accept import accept as accept_host
    from trtb.runner.acceptance.accept_evidence import to_text, verdict_lines
    from trtb.runner.acceptance.accept_state import AcceptOptions

    own_home = trtb_home() / "cache" / "acceptance"
    options = AcceptOptions(
        trtb=TRTB,
        home=engine_home.expanduser().resolve() if engine_home else own_home,
        base=None if engine_home else trtb_home(),
        evidence=evidence,
        backend=backend,
        model=_absolute(model),
        quants=tuple(quants.split(",")) if quants else (),
        num_requests=num_requests,
        include_paths=include_paths,
    )
    found = accept_host(options, say)
    say(f"evidence: {evidence}")
    if not as_json:
        put(to_text(found).rstrip())
    else:
        put(found.model_dump_json(indent=2))
        say("\n".join(verdict_lines(found)))
    return found.exit_code


def _absolute(model: str) -> str:
    """Return a path as children in other folders would have to name it; a name stays as it is."""
    is_path = not model.startswith("hf:") and ("/" in model or model.endswith(".gguf"))
    return str(Path(model).expanduser().resolve()) if is_path else model
