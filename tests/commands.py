"""The trtb command as a process of its own, and what a server tells at /metrics."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TRTB = (sys.executable, "-c", "from trtb.tools.cli import main; main()")
METRIC = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)


def environment(home: Path, **more: str) -> dict[str, str]:
    """Return the environment of a command that works in `home`."""
    return {**os.environ, "TRTB_HOME": str(home), **more}


def start(home: Path, *arguments: object, **options: Any) -> subprocess.Popen[str]:
    """Start a command; it runs in the environment's folder, not in the checkout."""
    values = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
        "cwd": sys.prefix,
        **options,
    }
    return subprocess.Popen([*TRTB, *map(str, arguments)], env=environment(home), **values)


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        """Return what it printed as JSON."""
        return json.loads(self.stdout)


def trtb(home: Path, *arguments: object, timeout_s: float = 250, **options: Any) -> Done:
    """Run a command to its end."""
    process = start(home, *arguments, **options)
    try:
        stdout, stderr = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        stdout, stderr = process.communicate()
        raise AssertionError(f"trtb {arguments}: not done after {timeout_s} s\n{stderr}") from None
    return Done(process.returncode, stdout, stderr)


def metrics(url: str) -> dict[str, float]:
    """Return a server's metrics: "name" or "name{label="value"}" to value."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        text = answer.read().decode()
    return {
        (f"{name}{{{labels}}}" if labels else name): float(value)
        for name, labels, value in METRIC.findall(text)
        if value not in ("NaN", "+Inf")
    }


def metric(url: str, name: str, **labels: str) -> float:
    """Return one metric, whatever other labels it has; 0 where it has not been told."""
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    for key, value in metrics(url).items():
        if key.partition("{")[0] == name and all(label in key for label in wanted):
            return value
    return 0.0


def wait_until(is_so: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Return once something is so.

    Raises:
        AssertionError: It is not so in time.
    """
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.02)
