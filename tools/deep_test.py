"""The deep part of `trtb preflight`: a generation, the disk, and each GPU, by the real pieces."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtb.build.errors import EngineNotFoundError, ToolchainMissingError, TrtbError
from trtb.build.files import trtb_home
from trtb.build.store import EngineStore
from trtb.tools.console import say

if TYPE_CHECKING:
    from trtb.build.store import StoredEngine

WRITE_BYTES = 256 << 20
START_TIMEOUT_S = 300.0
COPY_BYTES = 1 << 30
MATRIX_SIZE = 8192


def run_deep_test(backend: str, stored: StoredEngine | None) -> list[dict[str, Any]]:
    """Return what was measured: `what`, `text` for a person, and the figures, which may be none.

    Raises:
        ServerError, RequestError: The engine did not start, or did not answer.
    """
    found = [_generation(backend, stored), _write_speed()]
    if backend == "tensorrt_llm":
        found += _device_rates()
    return found


def _generation(backend: str, stored: StoredEngine | None) -> dict[str, Any]:
    from trtb.runner.self_test import generate_once

    what = "generation"
    if stored is None:
        try:
            stored = EngineStore(trtb_home()).resolve(None)
        except EngineNotFoundError:
            return _not_measured(what, "no engine in the store; trtb build makes one")
    manifest = stored.manifest
    if manifest.backend != backend:
        return _not_measured(what, f"{manifest.reference} is for {manifest.backend}; name one with --engine")
    if backend != "openvino":
        return _not_measured(what, "engines of this backend are not served by this version")
    say(f"generating with {manifest.reference}")
    with tempfile.TemporaryDirectory(prefix="trtb-deep-") as folder:
        test = asyncio.run(generate_once(stored.path, manifest, Path(folder), START_TIMEOUT_S))
    text = (
        f"{test.reference} started in {test.start_s:.1f} s; first token after {test.first_token_s:.3f} s, "
        f"then {test.tokens_per_s:.1f} tokens/s of one request"
    )
    return {
        "what": what,
        "text": text,
        "start_s": test.start_s,
        "first_token_s": test.first_token_s,
        "tokens_per_s": test.tokens_per_s,
    }


def _write_speed() -> dict[str, Any]:
    from trtb.build.probe.host_disks import measure_write_speed

    folder = trtb_home()
    say(f"writing {WRITE_BYTES >> 20} MiB to {folder}")
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        speed = measure_write_speed(folder, WRITE_BYTES)
    except TrtbError as exc:
        return _not_measured("disk", exc.message)
    finally:
        if is_new and not any(folder.iterdir()):
            folder.rmdir()
    return {
        "what": "disk",
        "text": f"{speed / 1e6:.0f} MB/s written durably to {folder}",
        "bytes_per_s": speed,
    }


def _device_rates() -> list[dict[str, Any]]:
    from trtb.build.toolchain import get_toolchain
    from trtb.build.worker import WORKERS, run_worker

    try:
        toolchain = get_toolchain("modelopt", trtb_home())
    except ToolchainMissingError as exc:
        return [_not_measured("GPU", f"{exc.message}; {exc.hint}")]
    request = {"num_bytes": COPY_BYTES, "size": MATRIX_SIZE, "repeats": 5}
    with tempfile.TemporaryDirectory(prefix="trtb-deep-") as folder:
        log_path = Path(folder) / "log"
        with log_path.open("w", encoding="utf-8") as log:
            try:
                reply = run_worker(
                    toolchain.python,
                    WORKERS / "device_rates.py",
                    request,
                    log=log,
                    on_progress=lambda step, detail: say(f"{step}: {detail}"),
                    work=Path(folder) / "work",
                )
            except TrtbError as exc:
                return [_not_measured("GPU", f"{exc.message}; {exc.hint}")]
    return [
        {
            "what": f"GPU {index}",
            "text": f"{gpu['copy_bytes_per_s'] / 1e9:.0f} GB/s within its memory, "
            f"{gpu['upload_bytes_per_s'] / 1e9:.1f} GB/s from the host, "
            f"{gpu['matmul_flops']['bfloat16'] / 1e12:.0f} TFLOP/s in bf16",
            **gpu,
        }
        for index, gpu in enumerate(reply["result"]["gpus"])
    ]


def _not_measured(what: str, why: str) -> dict[str, Any]:
    return {"what": what, "text": f"not measured: {why}"}
