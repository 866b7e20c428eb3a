"""A server's metrics over HTTP, and gauges out of them; both engines name theirs alike."""

from __future__ import annotations

import asyncio
import http.client
import re
import urllib.parse
from typing import Final

REQUESTS_GAUGE: Final = ("nv_trt_llm_request_metrics", "request_type")
BLOCKS_GAUGE: Final = ("nv_trt_llm_kv_cache_block_metrics", "kv_cache_block_type")
POOL_PATIENCE_S: Final = 3.0  # TensorRT-LLM tells its pool only with the figures of its first steps
_ASK_TIMEOUT_S: Final = 1.0
_POLL_S: Final = 0.1


def read_gauge(text: str, family: str, label: str, value: str) -> float | None:
    r"""Return the sum of a metric's values with that label over all servers; None where it is not there.

    >>> read_gauge('a{model="m",kind="used"} 3\na{model="n",kind="used"} 4\n', "a", "kind", "used")
    7.0
    """
    pattern = rf'^{family}\{{[^}}\n]*{label}="{value}"[^}}\n]*\}} (\S+)$'
    found = re.findall(pattern, text, re.MULTILINE)
    return sum(map(float, found)) if found else None


def fetch_metrics(url: str) -> str:
    """Return a server's metrics; nothing where it does not answer. Waits for a bounded time."""
    place = urllib.parse.urlsplit(url)
    if place.hostname is None:
        return ""
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=_ASK_TIMEOUT_S)
    try:
        connection.request("GET", place.path)
        return connection.getresponse().read().decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return ""
    finally:
        connection.close()


async def wait_for_pool(url: str, patience_s: float = POOL_PATIENCE_S) -> int | None:
    """Return the KV blocks that a server which has answered says it has; None where it does not say."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_s
    while True:
        blocks = read_gauge(await asyncio.to_thread(fetch_metrics, url), *BLOCKS_GAUGE, "max")
        if blocks or loop.time() >= deadline:
            return int(blocks) if blocks else None
        await asyncio.sleep(_POLL_S)
