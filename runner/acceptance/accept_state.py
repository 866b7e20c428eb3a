"""What the steps of an acceptance share: where they work, what is there so far, and what serves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from trtb.build import hardware
from trtb.build.manifest import EngineManifest
from trtb.build.probe.hardware_info import HardwareInfo
from trtb.build.store import EngineStore, StoredEngine
from trtb.runner.acceptance.accept_commands import Child, Commands
from trtb.runner.options import RunOptions, default_start_timeout_s
from trtb.runner.report import RunReport
from trtb.runner.transport import Chunk, EngineRequest

REQUEST_TIMEOUT_S = 300.0
GRACE_S = 10.0


def _run_batch(options: RunOptions) -> RunReport:
    from trtb.runner.run import run_batch

    return run_batch(options)


def _ask(endpoint: str, requests: Sequence[EngineRequest]) -> list[Chunk]:
    """Send requests one after the other, past the runner; returns what the engine tells at each one's end."""
    from trtb.runner.triton_client import TritonTransport

    async def answer_all() -> list[Chunk]:
        transport = TritonTransport(endpoint)
        stream = transport.open_stream()
        told: list[Chunk] = []
        try:
            for request in requests:
                await stream.send(request)
                chunk = await stream.receive()
                last = chunk
                while not chunk.is_final:
                    chunk = await stream.receive()
                    last = chunk if chunk.first_token_ns else last
                told.append(last)
        finally:
            await transport.close()
        return told

    return asyncio.run(asyncio.wait_for(answer_all(), REQUEST_TIMEOUT_S))


@dataclass(frozen=True, slots=True)
class AcceptOptions:
    """What is to be accepted, and where."""

    trtb: tuple[str, ...]  # how trtb is called
    home: Path
    evidence: Path
    base: Path | None = None  # a home whose checkpoints and toolchains are used, but not its engines
    backend: Literal["auto", "openvino", "tensorrt_llm"] = "auto"
    model: str = "smollm2-135m-instruct"
    quants: tuple[str, ...] = ()  # (): the backend's own two
    num_requests: int = 500
    include_paths: bool = False


@dataclass(frozen=True, slots=True)
class Served:
    """A server of ours that answers."""

    child: Child
    engine: StoredEngine
    endpoint: str
    metrics_url: str


@dataclass(slots=True)
class AcceptState:
    """The one owner of what the steps find and make."""

    options: AcceptOptions
    backend: str
    quants: tuple[str, ...]
    work_dir: Path
    commands: Commands
    versions: dict[str, str] = field(default_factory=dict)
    started_at: str = ""  # UTC, ISO 8601
    machine: HardwareInfo | None = None
    checkpoint: str = ""  # name@revision
    checkpoint_dir: Path | None = None
    engines: dict[str, StoredEngine] = field(default_factory=dict)  # by quantisation
    served: Served | None = None
    has_used_docker: bool = False  # to start a server
    run: Callable[[RunOptions], RunReport] = _run_batch
    ask: Callable[[str, Sequence[EngineRequest]], list[Chunk]] = _ask

    @property
    def store(self) -> EngineStore:
        """Return the store of the engines."""
        return EngineStore(self.options.home)

    @property
    def main_quant(self) -> str:
        """Return the quantisation that all that needs one engine is done with."""
        return self.quants[0]

    def probe(self) -> HardwareInfo:
        """Return this machine."""
        self.machine = hardware.probe((self.options.home, self.work_dir))
        return self.machine

    def run_options(self, input_path: Path, **fields: Any) -> RunOptions:
        """Return the options of a run on the server that is up, whose output lies beside its input."""
        assert self.served
        manifest: EngineManifest = self.served.engine.manifest
        values: dict[str, Any] = {
            "endpoints": (self.served.endpoint,),
            "model_aliases": ("*",),
            "concurrency": 1,
            "request_timeout_s": REQUEST_TIMEOUT_S,
            "grace_s": GRACE_S,
            "order": "input",
            "dedup": False,  # what is asked twice is to be computed twice
            "start_timeout_s": default_start_timeout_s(manifest),
            **fields,
        }
        return RunOptions(
            input_path, input_path.with_suffix(".out.jsonl"), self.served.engine.path, manifest, **values
        )
