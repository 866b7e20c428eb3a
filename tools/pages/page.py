"""Pages: templates rendered with everything escaped, written whole or not at all."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtb.build.errors import ConfigError
from trtb.build.files import check_replaceable, write_atomic

if TYPE_CHECKING:
    import jinja2

_BEGINNING = b"<!doctype html>"
_OTHER_FILE = "name another: --html FILE"
# the policy that every page carries: it may run nothing and ask for nothing
CONTENT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def render(template: str, context: dict[str, Any]) -> str:
    """Return a page: a template of `templates/`, which extends `base.html`, filled in.

    Every text is escaped; only what `svg.to_svg` made is markup. The macros of `parts.html` make the parts
    that pages share. A name that the context lacks is an error.
    """
    return _environment().get_template(template).render({"content_policy": CONTENT_POLICY, **context})


def write_page(path: Path, html: str) -> None:
    """Write a page where the user wants it; it is whole and durable when this returns.

    Raises:
        ConfigError: It cannot be written there, or would replace what is no page.
    """
    check_page(path)
    try:
        write_atomic(path, html.encode("utf-8", errors="replace"))  # half a surrogate pair is no UTF-8
    except OSError as exc:
        raise _not_writable(path, exc) from exc


def check_page(path: Path) -> None:
    """Refuse a place that a page cannot or must not take, before the work that it is to show.

    A file that is there is replaced if it is empty or a page: anything else would be lost.

    Raises:
        ConfigError: It cannot be written there, or would replace what is no page.
    """
    check_replaceable(path)
    try:
        with path.open("rb") as file:
            beginning = file.read(len(_BEGINNING))
    except FileNotFoundError:
        beginning = b""
    except OSError as exc:
        raise _not_writable(path, exc) from exc
    if beginning and beginning.lower() != _BEGINNING:
        raise ConfigError(
            f"{path}: is no page, and would be lost; expected a new file or a page", _OTHER_FILE
        )
    folder = next(folder for folder in path.absolute().parents if folder.exists())
    try:  # permissions do not tell of a file system that takes no files
        tempfile.NamedTemporaryFile(prefix=f".{path.name}.", suffix=".part", dir=folder).close()
    except OSError as exc:
        raise _not_writable(path, exc) from exc


def _not_writable(path: Path, exc: OSError) -> ConfigError:
    return ConfigError(f"{path}: {exc.strerror}; expected a file that can be written", _OTHER_FILE)


@functools.cache
def _environment() -> jinja2.Environment:
    import jinja2

    return jinja2.Environment(
        loader=jinja2.PackageLoader("trtb.tools.pages"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
