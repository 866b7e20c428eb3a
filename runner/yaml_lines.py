"""Read a YAML file with the line of each key, strictly: plain values only, one document, no key twice."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from trtb.build.errors import ConfigError

MAX_FILE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class YamlDocument:
    """A file's value, and where in the file each part of it is."""

    path: Path
    value: Any
    lines: dict[tuple[Hashable, ...], int]  # of each key and list item, from 1

    def line(self, place: tuple[Hashable, ...]) -> int:
        """Return the line of a place, or of the nearest one around it."""
        while place and place not in self.lines:
            place = place[:-1]
        return self.lines.get(place, 1)


def read_yaml(path: Path) -> YamlDocument:
    """Read a YAML file; an empty one is an empty mapping.

    Raises:
        ConfigError: It cannot be read, is not plain YAML, or a key stands twice.
    """
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path}: not a regular file; expected a job file")
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        text = data.decode("utf-8-sig")
    except OSError as exc:
        raise ConfigError(f"{path}: {exc.strerror}; expected a job file") from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{path}: byte {exc.start} is not UTF-8; expected a YAML file") from exc
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"{path}: more than {MAX_FILE_BYTES} bytes; expected a job file")
    lines: dict[tuple[Hashable, ...], int] = {}
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        for place, line in _walk(node, path):
            lines.setdefault(place, line)
        value = {} if node is None else loader.construct_document(node)
    except yaml.MarkedYAMLError as exc:
        at = f":{exc.problem_mark.line + 1}" if exc.problem_mark else ""
        raise ConfigError(f"{path}{at}: not YAML: {exc.problem}; expected a job file") from exc
    except (yaml.YAMLError, ValueError, RecursionError) as exc:  # the last two: scalars, and depth
        raise ConfigError(f"{path}: not YAML that can be read; expected a job file") from exc
    return YamlDocument(path, {} if value is None else value, lines)


def _walk(root: yaml.Node | None, path: Path) -> Iterator[tuple[tuple[Hashable, ...], int]]:
    """Yield the place and line of each node, an aliased one once.

    Raises:
        ConfigError: A key stands twice in a mapping.
    """
    seen: set[int] = set()
    waiting: list[tuple[tuple[Hashable, ...], yaml.Node]] = [] if root is None else [((), root)]
    while waiting:
        place, node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            for i, item in enumerate(node.value):
                yield (*place, i), item.start_mark.line + 1
                waiting.append(((*place, i), item))
        elif isinstance(node, yaml.MappingNode):
            first: dict[str, int] = {}
            for key, item in node.value:
                name, line = str(key.value), key.start_mark.line + 1
                if name in first:
                    where = ".".join(str(part) for part in (*place, name))
                    raise ConfigError(
                        f"{path}:{line}: {where}: is in line {first[name]} already; expected each key once"
                    )
                first[name] = line
                yield (*place, name), line
                waiting.append(((*place, name), item))
