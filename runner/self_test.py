"""A short test of the real pieces: a server starts for an engine, generates a few tokens, and ends."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from trtb.build.manifest import EngineManifest
from trtb.model_repo.render import DeployConfig
from trtb.runner import deploy
from trtb.runner.endpoint import Endpoint, EndpointConfig
from trtb.runner.server import ServerConfig
from trtb.runner.transport import EngineRequest
from trtb.runner.triton_client import TritonTransport

NUM_PROMPT_TOKENS = 64
NUM_OUTPUT_TOKENS = 32


@dataclass(frozen=True, slots=True)
class GenerationTest:
    """How a first generation went; one request alone, so no measure of throughput."""

    reference: str
    start_s: float  # from nothing to the first token that a probe got
    num_tokens: int
    first_token_s: float
    tokens_per_s: float  # after the first token


async def generate_once(
    engine_dir: Path, manifest: EngineManifest, work_dir: Path, timeout_s: float
) -> GenerationTest:
    """Start a server of our own with a small KV pool, generate once, and stop it.

    Raises:
        ServerError: It did not start.
        RequestError: It started and did not answer.
    """
    tokens_per_block = manifest.limits.tokens_per_block
    num_blocks = 2 * -(-(NUM_PROMPT_TOKENS + NUM_OUTPUT_TOKENS) // tokens_per_block)
    config = ServerConfig(
        repository=work_dir / "repository", work_dir=work_dir, log_path=work_dir / "server.log"
    )
    started = time.monotonic()
    server = deploy.prepare(engine_dir, manifest, config, DeployConfig(num_kv_blocks=num_blocks))
    server.start()
    endpoint = Endpoint(
        EndpointConfig(start_timeout_s=timeout_s, probe_token_id=manifest.tokens.end),
        TritonTransport(server.endpoint),
        server,
    )
    try:
        await endpoint.wait_ready()
        start_s = time.monotonic() - started
        return await _generate(endpoint, manifest, start_s)
    finally:
        await endpoint.close()


async def _generate(endpoint: Endpoint, manifest: EngineManifest, start_s: float) -> GenerationTest:
    vocab_size = manifest.model.vocab_size
    stream = endpoint.open_stream()
    sent = time.monotonic()
    await stream.send(
        EngineRequest(
            request_id="self-test",
            input_ids=[token % vocab_size for token in range(100, 100 + NUM_PROMPT_TOKENS)],
            max_tokens=NUM_OUTPUT_TOKENS,
            min_tokens=NUM_OUTPUT_TOKENS,
            end_id=manifest.tokens.end,
            pad_id=manifest.tokens.pad,
            top_k=1,
            streaming=True,
        )
    )
    first = None
    num_tokens = 0
    while True:
        chunk = await stream.receive()
        num_tokens += len(chunk.token_ids)
        if first is None and chunk.token_ids:
            first = time.monotonic()
        if chunk.is_final:
            break
    ended = time.monotonic()
    first = ended if first is None else first
    return GenerationTest(
        reference=manifest.reference,
        start_s=start_s,
        num_tokens=num_tokens,
        first_token_s=first - sent,
        tokens_per_s=(num_tokens - 1) / max(ended - first, 1e-9),
    )
