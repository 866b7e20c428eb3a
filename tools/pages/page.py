"""Pages: templates rendered with everything escaped, written whole or not at all."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtb.build.errors import ConfigError
from trtb.build.files import write_atomic

if TYPE_CHECKING:
    import jinja2

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
        ConfigError: It cannot be written there.
    """
    try:
        write_atomic(path, html.encode("utf-8", errors="replace"))  # half a surrogate pair is no UTF-8
    except OSError as exc:
        raise ConfigError(
            f"{path}: {exc.strerror}; expected a file that can be written", "name another: --html FILE"
        ) from exc


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
