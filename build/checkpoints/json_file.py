"""The JSON files of a checkpoint folder, read with a bound: each is somebody else's, and may be anything."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from trtb.build.errors import CheckpointError, CheckpointNotFoundError

MAX_CONFIG_BYTES: Final = 4 << 20  # of *config.json; those of published models have some kilobytes
MAX_OTHER_BYTES: Final = 128 << 20  # a tokenizer.json with 256 000 tokens has 34 MB

_AGAIN = "fetch the checkpoint again"


def load_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object.

    Raises:
        CheckpointError: It is not there, no regular file, too large, not JSON, or no object.
    """
    value = load_json(path)
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: a {type(value).__name__}; expected an object", _AGAIN)
    return value


def load_json(path: Path, *, is_strict: bool = False) -> Any:
    """Read a JSON file; strictly, no key may stand in an object twice.

    Raises:
        CheckpointError: It is not there, no regular file, too large, or not JSON.
    """
    data = read_bounded(path, max_json_bytes(path.name))
    try:
        return json.loads(data, object_pairs_hook=unique_object if is_strict else None)
    except (ValueError, RecursionError) as exc:
        raise CheckpointError(f"{path}: not JSON ({exc}); expected a whole file of it", _AGAIN) from exc


def max_json_bytes(name: str) -> int:
    """Return the largest size of a JSON file of that name that is read."""
    return MAX_CONFIG_BYTES if name.lower().endswith("config.json") else MAX_OTHER_BYTES


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """Read a regular file of at most `max_bytes`.

    Raises:
        CheckpointError: It is not there, cannot be read, is no regular file, or is larger.
    """
    check_regular(path)
    try:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except OSError as exc:
        raise CheckpointError(
            f"{path}: {exc.strerror}; expected a readable file", "check its mode and its disk"
        ) from exc
    if len(data) > max_bytes:
        raise CheckpointError(
            f"{path}: more than {max_bytes} bytes; expected at most so many in a file of this name", _AGAIN
        )
    return data


def check_regular(path: Path) -> None:
    """Refuse what is no regular file: a pipe would block its reader, a device never ends.

    Raises:
        CheckpointNotFoundError: There is nothing.
        CheckpointError: It is something else, or a link that leads nowhere.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError as exc:
        raise CheckpointNotFoundError(
            f"{path}: not found; expected a file of a checkpoint", "check the path; trtb models list"
        ) from exc
    except OSError as exc:  # a loop of links, a file in the place of a folder, a name too long
        raise CheckpointError(f"{path}: {exc.strerror}; expected a file", "check the path") from exc
    if not stat.S_ISREG(mode):
        found = "a folder" if stat.S_ISDIR(mode) else "a pipe, socket or device"
        raise CheckpointError(f"{path}: {found}; expected a regular file", "copy its content into a file")


def unique_object(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Build a JSON object for `json.loads(object_pairs_hook=...)`; of two readers each could take another.

    Raises:
        ValueError: A key stands in it twice.
    """
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"key {key[:100]!r} twice")
        found[key] = value
    return found
