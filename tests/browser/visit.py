"""A page as a browser shows it: what it says, what it asks for, whether it fits, and pictures of it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from browser.fetch_browser import find_browser

ARTEFACTS = Path(__file__).resolve().parents[2] / ".cache/browser-artefacts"
PRINT_WIDTH = 703  # px of an A4 sheet (210 mm) without its margins
FLAGS = [
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--host-resolver-rules=MAP * ~NOTFOUND",  # whatever a page asks for, nothing leaves this machine
]
# how far the page or a table in it is wider than its place
_OVERFLOW = """() => Math.max(
  document.documentElement.scrollWidth - document.documentElement.clientWidth,
  ...[...document.querySelectorAll('.table')].map(one => one.scrollWidth - one.clientWidth))"""
_TEXTS = """() => [...document.querySelectorAll('body *')]
  .filter(one => [...one.childNodes].some(node => node.nodeType === 3 && node.data.trim()))
  .filter(one => one.getClientRects().length && one.tagName !== 'title')
  .map(one => one.textContent.trim())"""
_TITLES = "() => [...document.querySelectorAll('svg title')].map(one => one.textContent)"
# words of a chart that lie on one another, or stick out of it
_COLLISIONS = """() => [...document.querySelectorAll('svg')].flatMap(svg => {
  const frame = svg.getBoundingClientRect();
  const words = [...svg.querySelectorAll('text')]
    .filter(one => one.textContent.trim() && getComputedStyle(one).opacity !== '0')
    .map(one => [one.textContent, one.getBoundingClientRect()]);
  const found = [];
  words.forEach(([word, a], n) => {
    if (a.left < frame.left - 1 || a.right > frame.right + 1) found.push(`${word} sticks out`);
    words.slice(n + 1).forEach(([other, b]) => {
      const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (across > 2 && down > 4) found.push(`${word} on ${other}`);
    });
  });
  return found;
})"""


@dataclass(frozen=True)
class PageVisit:
    """What a browser saw of a page."""

    console: list[str]  # every message, error and failed request
    requests: list[str]  # but for the page itself
    overflow_px: int  # at the width asked for
    print_overflow_px: int  # on A4
    collisions: list[str]
    texts: list[str]
    titles: list[str]  # of the marks of charts
    screenshot: Path
    pdf: Path
    pdf_pages: int


def open_page(path: Path, *, width: int = 1280, name: str = "") -> PageVisit:
    """Open a page in a browser of its own; pictures are kept in ARTEFACTS as `name`.png and `name`.pdf."""
    from playwright.sync_api import sync_playwright

    found = find_browser()
    if found is None:
        raise RuntimeError("no browser is here; expected chromium on PATH, or what `make browser` unpacks")
    ARTEFACTS.mkdir(parents=True, exist_ok=True)
    picture = ARTEFACTS / f"{name or path.stem}.png"
    console: list[str] = []
    requests: list[str] = []
    address = path.resolve().as_uri()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=found.executable, env={**os.environ, **found.environment}, args=FLAGS
        )
        page = browser.new_page(viewport={"width": width, "height": 900})
        page.on("console", lambda message: console.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: console.append(f"error: {error}"))
        page.on("requestfailed", lambda request: console.append(f"failed: {request.url}"))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(address, wait_until="load", timeout=60_000)
        overflow, collisions = page.evaluate(_OVERFLOW), page.evaluate(_COLLISIONS)
        texts, titles = page.evaluate(_TEXTS), page.evaluate(_TITLES)
        page.screenshot(path=picture, full_page=True)
        pdf = page.pdf(path=picture.with_suffix(".pdf"), prefer_css_page_size=True)
        page.set_viewport_size({"width": PRINT_WIDTH, "height": 1000})
        page.emulate_media(media="print")
        print_overflow = page.evaluate(_OVERFLOW)
        browser.close()
    return PageVisit(
        console=console,
        requests=[one for one in requests if one != address],
        overflow_px=overflow,
        print_overflow_px=print_overflow,
        collisions=collisions,
        texts=texts,
        titles=titles,
        screenshot=picture,
        pdf=picture.with_suffix(".pdf"),
        pdf_pages=len(re.findall(rb"/Type\s*/Page\b", pdf)),
    )
