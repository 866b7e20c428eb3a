"""`trtb toolchain`: the environments of their own that quantise, convert and measure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtb.tools.console import JsonFlag, command, put, put_json, put_table, size
from trtb.tools.models import say_step

if TYPE_CHECKING:
    from trtb.build.toolchain import Toolchain

app = typer.Typer(no_args_is_help=True, help="The environments that quantise, convert and measure.")

NamesArgument = Annotated[
    list[str], typer.Argument(metavar="NAME...", help="modelopt, optimum, perf_analyzer.")
]


@app.command("install")
@command
def install(names: NamesArgument, as_json: JsonFlag = False) -> None:
    """Install toolchains with pip, each at its pinned versions; one that is there is left as it is.

    Example: trtb toolchain install modelopt
    """
    from trtb.build import toolchain
    from trtb.build.files import trtb_home

    for name in names:
        toolchain.get_spec(name)  # before the first one's minutes
    _put_toolchains([toolchain.install(name, trtb_home(), say_step) for name in names], as_json)


@app.command("list")
@command
def list_toolchains(as_json: JsonFlag = False) -> None:
    """List what is installed and what could be, with sizes.

    Example: trtb toolchain list
    """
    from trtb.build import toolchain
    from trtb.build.files import trtb_home

    rows = toolchain.list_toolchains(trtb_home())
    if as_json:
        found = [
            {
                "name": row.name,
                "purpose": row.purpose,
                "state": row.state,
                "path": row.path,
                "python": row.python,
                "size_bytes": row.size_bytes,
                "installed_at": row.installed_at,
                "versions": row.versions,
            }
            for row in rows
        ]
        put_json({"schema_version": 1, "toolchains": found})
        return
    table = []
    for row in rows:
        versions = _join(toolchain.decisive_versions(row.name, row.versions or {}))
        num_bytes = size(row.size_bytes) if row.size_bytes else "-"
        table.append([row.name, row.state, num_bytes, versions or "-", row.purpose])
    put_table(["name", "state", "size", "versions", "purpose"], table)


@app.command("verify")
@command
def verify(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME...]", help="Only these; default: all that are there.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Check again that toolchains are what their pins say, and that their libraries load.

    Example: trtb toolchain verify modelopt
    """
    from trtb.build import toolchain
    from trtb.build.errors import ToolchainMissingError
    from trtb.build.files import trtb_home

    home = trtb_home()
    wanted = names or [row.name for row in toolchain.list_toolchains(home) if row.state == "installed"]
    if not wanted:
        raise ToolchainMissingError("no toolchain is installed", "trtb toolchain install modelopt")
    _put_toolchains([toolchain.verify(name, home, say_step) for name in wanted], as_json)


@app.command("remove")
@command
def remove(
    name: Annotated[str, typer.Argument(help="modelopt, optimum or perf_analyzer.")],
    outdated: Annotated[
        bool, typer.Option("--outdated", help="Only environments of other pins or of another Python.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Remove a toolchain, with what earlier versions of trtb left of it.

    Example: trtb toolchain remove modelopt --outdated
    """
    from trtb.build import toolchain
    from trtb.build.files import trtb_home

    removed = toolchain.remove(name, trtb_home(), only_outdated=outdated)
    if as_json:
        put_json({"schema_version": 1, "removed": list(removed)})
    else:
        for path in removed:
            put(f"{path}: removed")


def _put_toolchains(toolchains: list[Toolchain], as_json: bool) -> None:
    if as_json:
        put_json({"schema_version": 1, "toolchains": [_as_json(item) for item in toolchains]})
    else:
        for item in toolchains:
            put(f"{item.name}  {_join(item.decisive_versions)}  {item.path}")


def _as_json(item: Toolchain) -> dict[str, Any]:
    return {"name": item.name, "path": item.path, "python": item.python, "versions": item.versions}


def _join(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())
