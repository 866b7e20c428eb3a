"""How commands speak: data on stdout, talk on stderr, one JSON object where --json asks for it."""

from __future__ import annotations

import functools
import json
import math
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ParamSpec

import typer

from trtb.build.errors import ConfigError, TrtbError

P = ParamSpec("P")

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]


def say(text: str) -> None:
    """Write a line to stderr."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201


def put(text: str) -> None:
    """Write a line of data to stdout."""
    print(text, flush=True)  # noqa: T201


def put_json(value: Any) -> None:
    """Write an object to stdout."""
    put(json.dumps(value, ensure_ascii=False, indent=2, default=_plain))


def put_table(columns: list[str], rows: list[list[str]], title: str = "") -> None:
    """Write a table: drawn on a terminal, tab-separated in a pipe."""
    if not sys.stdout.isatty():
        put("\t".join(columns))
        for row in rows:
            put("\t".join(row))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title or None, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def report_error(error: TrtbError, *, as_json: bool) -> None:
    """Tell of an error, as a person or a program reads it."""
    if as_json:
        put_json({"error": {"code": error.code, "message": error.message, "hint": error.hint}})
        return
    colour = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    say(f"\x1b[1;31merror\x1b[0m: {error.message}" if colour else f"error: {error.message}")
    if error.hint:
        say(f"\x1b[1mhint\x1b[0m: {error.hint}" if colour else f"hint: {error.hint}")


def command(function: Callable[P, int | None]) -> Callable[P, None]:
    """Make a function a command: its return value, or its error's class, is the exit code.

    One of the two places that catch any exception: whatever is not an error of ours is a bug, told in
    full, with exit code 70.
    """

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> None:
        as_json = bool(kwargs.get("as_json"))
        try:
            _check_finite(kwargs)
            code = function(*args, **kwargs)
        except TrtbError as exc:
            report_error(exc, as_json=as_json)
            code = exc.exit_code
        except KeyboardInterrupt:
            say("interrupted")
            code = 128 + signal.SIGINT
        except BrokenPipeError:  # the reader of stdout has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = 128 + signal.SIGPIPE
        except typer.Exit:
            raise
        except Exception as exc:  # noqa: BLE001 (the boundary of the process)
            traceback.print_exc()
            say("this is a bug in trtb; please report it with the lines above")
            if as_json:
                put_json({"error": {"code": "internal", "message": repr(exc), "hint": ""}})
            code = 70
        raise typer.Exit(code or 0)

    return wrapper


def _check_finite(options: dict[str, Any]) -> None:
    """Refuse nan and infinity, which an option without bounds takes: nothing is more than nan."""
    for name, value in options.items():
        if isinstance(value, float) and not math.isfinite(value):
            flag = name.replace("_", "-")
            raise ConfigError(f"--{flag}: {value}; expected a number that is finite")


def size(num_bytes: int) -> str:
    """Return a size as people read it.

    >>> size(98_362_432)
    '98.4 MB'
    """
    value = float(num_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def duration(seconds: float) -> str:
    """Return a duration as people read it.

    >>> duration(3725)
    '1:02:05'
    """
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    raise TypeError(type(value).__name__)
