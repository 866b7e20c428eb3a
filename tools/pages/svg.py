"""Specification to static SVG, ready to stand in a page."""

from __future__ import annotations

import hashlib
import json
import re
from xml.etree import ElementTree

from markupsafe import Markup

from trtb.tools.pages.layers import Spec

_SVG = "http://www.w3.org/2000/svg"
# what the renderer says of every mark and group, and browsers do not need
_REPEATED = ("aria-roledescription", "aria-label", "aria-hidden", "role", "pointer-events", "font-family")


def to_svg(spec: Spec) -> Markup:
    """Draw a chart as SVG, the text of each mark as its tooltip, with no request to anywhere.

    The same specification gives the same SVG.
    """
    import vl_convert

    drawn = vl_convert.vegalite_to_svg(spec, vl_version="6.4")
    drawn = _with_own_ids(drawn, hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:8])
    root = ElementTree.fromstring(drawn)
    for element in root.iter():
        _tidy(element)
    root.set("role", "img")
    root.set("class", "chart")
    ElementTree.register_namespace("", _SVG)
    return Markup(ElementTree.tostring(root, encoding="unicode"))  # serialised, so escaped


def _with_own_ids(drawn: str, name: str) -> str:
    """Name a chart's ids after it: ids are the page's, and the renderer counts on from chart to chart."""
    seen: dict[str, str] = {}

    def renamed(found: re.Match[str]) -> str:
        return f"{found[1]}c{name}-{seen.setdefault(found[2], str(len(seen) + 1))}"

    return re.sub(r'(id="|url\(#)(\w+)', renamed, drawn)


def _tidy(element: ElementTree.Element) -> None:
    """Make a mark's text its tooltip, and drop what every mark says again."""
    text = element.get("aria-label", "")
    if element.tag == f"{{{_SVG}}}text" and element.get("stroke"):
        element.set("paint-order", "stroke")  # a halo lies behind its word
    is_mark = element.get("role") == "graphics-symbol"
    for name in _REPEATED:
        element.attrib.pop(name, None)
    if is_mark and text and not list(element):
        ElementTree.SubElement(element, f"{{{_SVG}}}title").text = text
