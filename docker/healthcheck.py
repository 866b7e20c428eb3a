"""Say whether what a container serves is alive: each server of its `trtb serve` must generate a token.

Readiness is not asked for: a server whose engine has died still reads as ready. A container with another
command is healthy as long as it runs: a run watches its own server, and a probe would only compete with it.

Usage: healthcheck.py [HOST:PORT ...]; without endpoints, those of this container's servers.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import PurePath

TIMEOUT_S = 60.0  # a step of a slow CPU takes seconds, and a probe waits for its turn
ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}


def is_serving(command_lines: Iterable[Sequence[str]]) -> bool:
    """Return whether one of these processes is `trtb serve`."""
    return any(
        PurePath(program).name == "trtb" and command == "serve"
        for line in command_lines
        for program, command in pairwise(line)
    )


def find_endpoints(command_lines: Iterable[Sequence[str]]) -> list[str]:
    """Return where the tritonservers among these processes listen; a rank that follows another does not."""
    endpoints = []
    for line in command_lines:
        if not line or PurePath(line[0]).name != "tritonserver":
            continue
        options = dict(option.split("=", 1) for option in line[1:] if "=" in option)
        if port := options.get("--grpc-port"):
            address = options.get("--grpc-address", "127.0.0.1")
            endpoints.append(f"{ANY_ADDRESS.get(address, address)}:{port}")
    return endpoints


async def probe(endpoint: str) -> None:
    """Make a server generate one token.

    Raises:
        RequestError: It did not.
        TimeoutError: It did not within `TIMEOUT_S`.
    """
    from trtb.runner.transport import EngineRequest
    from trtb.runner.triton_client import TritonTransport

    transport = TritonTransport(endpoint)
    stream = transport.open_stream()

    async def one_token() -> None:
        await stream.send(EngineRequest("healthcheck", [0], max_tokens=1, end_id=0, pad_id=0, top_k=1))
        while not (await stream.receive()).is_final:
            pass

    try:
        await asyncio.wait_for(one_token(), TIMEOUT_S)
    finally:
        stream.cancel()
        await transport.close()


def check(endpoint: str) -> str:
    """Return what is wrong with a server; nothing where it generates."""
    from trtb.runner.errors import RequestError

    try:
        asyncio.run(probe(endpoint))
    except RequestError as exc:
        return f"{endpoint}: {exc.message}"
    except (TimeoutError, asyncio.TimeoutError):
        return f"{endpoint}: no token within {TIMEOUT_S:g} s"
    return ""


def main(given: Sequence[str]) -> int:
    """Return 0 where all is well, else 1; one line says which."""
    endpoints = list(given)
    if not endpoints:
        import psutil

        lines = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
        if not is_serving(lines):
            sys.stdout.write("nothing is served here\n")
            return 0
        endpoints = find_endpoints(lines)
    faults = [fault for endpoint in endpoints if (fault := check(endpoint))]
    if not endpoints:
        faults = ["trtb serve has no server yet"]
    sys.stdout.write("; ".join(faults) or f"alive: {', '.join(endpoints)}")
    sys.stdout.write("\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
