"""`trtb models`: pinned checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from trtb.tools.console import JsonFlag, command, put, put_json, put_table, say, size

if TYPE_CHECKING:
    from trtb.build.checkpoint import PinnedCheckpoint

app = typer.Typer(no_args_is_help=True, help="Pinned checkpoints: fetch, pin, list, verify.")


@app.command("list")
@command
def list_models(as_json: JsonFlag = False) -> None:
    """List the catalogue and the pinned checkpoints.

    Example: trtb models list
    """
    from trtb.build import checkpoint
    from trtb.build.checkpoints import catalogue
    from trtb.build.files import trtb_home

    pinned = checkpoint.list_pinned(trtb_home())
    names = {item.pin.name for item in pinned}
    absent = [name for name in sorted(catalogue.CATALOGUE) if name not in names]
    if as_json:
        put_json(
            {"schema_version": 1, "pinned": [item.pin.model_dump() for item in pinned], "to_fetch": absent}
        )
        return
    rows = [
        [item.pin.name, item.pin.revision, item.pin.format, size(item.pin.total_bytes), item.pin.source]
        for item in pinned
    ]
    rows += [[name, "-", "-", "-", f"to fetch: trtb models fetch {name}"] for name in absent]
    put_table(["name", "revision", "format", "size", "source"], rows)


@app.command("fetch")
@command
def fetch(
    name: Annotated[str, typer.Argument(help="A name of the catalogue, or hf:org/name@commit.")],
    form: Annotated[
        Literal["gguf", "hf"],
        typer.Option("--format", help="hf: make a bf16 Hugging Face folder of a GGUF entry, as NAME-hf."),
    ] = "gguf",
    as_json: JsonFlag = False,
) -> None:
    """Download a checkpoint and pin it, file by file, with its hashes.

    Example: trtb models fetch smollm2-135m-instruct --format hf
    """
    from trtb.build import checkpoint
    from trtb.build.files import trtb_home

    pinned = checkpoint.fetch(name, trtb_home(), say_step, form=form)
    _put_pinned(pinned, as_json)


@app.command("pin")
@command
def pin(
    path: Annotated[Path, typer.Argument(help="A .gguf file, or a Hugging Face checkpoint folder.")],
    allow_remote_code: Annotated[
        bool, typer.Option(help="Accept a checkpoint whose config names code of its own (auto_map).")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Pin a local checkpoint: every file hashed; pickles and remote code refused.

    Example: trtb models pin ./model.gguf
    """
    from trtb.build import checkpoint
    from trtb.build.files import trtb_home

    pinned = checkpoint.pin_path(path, trtb_home(), say_step, allow_remote_code=allow_remote_code)
    _put_pinned(pinned, as_json)


@app.command("verify")
@command
def verify(
    model: Annotated[str, typer.Argument(help="A pinned checkpoint: NAME or NAME@REVISION.")],
    as_json: JsonFlag = False,
) -> None:
    """Hash every file of a pinned checkpoint again.

    Example: trtb models verify smollm2-135m-instruct
    """
    from trtb.build import checkpoint
    from trtb.build.files import trtb_home

    pinned = checkpoint.resolve(model, trtb_home())
    checkpoint.verify(pinned, say_step)
    if as_json:
        put_json({"schema_version": 1, "name": pinned.pin.name, "revision": pinned.pin.revision, "ok": True})
    else:
        put(f"{pinned.pin.name} {pinned.pin.revision}: {len(pinned.pin.files)} files, all as pinned")


def say_step(step: str, detail: str) -> None:
    """Tell of a step of a long command."""
    say(f"{step}: {detail}")


def _put_pinned(pinned: PinnedCheckpoint, as_json: bool) -> None:
    if as_json:
        put_json({"schema_version": 1, "path": pinned.path, **pinned.pin.model_dump()})
    else:
        put(f"{pinned.pin.name} {pinned.pin.revision}  {size(pinned.pin.total_bytes)}  {pinned.path}")
