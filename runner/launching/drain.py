"""The end of a server that was asked to finish: when it has ended, or has nothing left to do.

A server whose client's connection breaks just as a request is refused keeps that request's state for good
(seen with Triton 2.51), and then waits its whole exit timeout for a model that is never let go. So it is
asked, through its metrics, whether requests are in the engine; without any it gets a few seconds more.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import urllib.request
from time import monotonic
from typing import Final

IDLE_GRACE_S = 5.0  # to unload the model; a server that has let go of everything takes 1 to 3
POLL_S = 0.1
ASK_PERIOD_S = 0.5
_ASK_TIMEOUT_S: Final = 1.0
_DIRECT: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # whatever the environment says
# what both engines call the requests that they hold
_IN_ENGINE: Final = re.compile(
    r'^nv_trt_llm_request_metrics\{[^}]*request_type="(?:active|waiting)"[^}]*\} (\S+)$', re.MULTILINE
)


async def wait_drained(process: subprocess.Popen[bytes], metrics_url: str, timeout_s: float) -> None:
    """Wait for a server that drains to end; returns when the time is up, or it is idle for long, too."""
    deadline = monotonic() + timeout_s
    idle_since: float | None = None
    next_question = 0.0
    while process.poll() is None and (now := monotonic()) < deadline:
        if now >= next_question:
            next_question = now + ASK_PERIOD_S
            is_idle = await asyncio.to_thread(_is_idle, metrics_url)
            idle_since = None if not is_idle else now if idle_since is None else idle_since
        if idle_since is not None and now - idle_since >= IDLE_GRACE_S:
            return
        await asyncio.sleep(POLL_S)


def _is_idle(metrics_url: str) -> bool:
    """Return whether the server says that no request is in its engine; False where it does not say."""
    try:
        with _DIRECT.open(metrics_url, timeout=_ASK_TIMEOUT_S) as answer:
            text = answer.read().decode(errors="replace")
    except (OSError, ValueError):
        return False
    counts = _IN_ENGINE.findall(text)
    return bool(counts) and all(float(count) == 0 for count in counts)
