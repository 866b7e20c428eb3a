"""Child of a benchmark: a whole run over a server that is there already."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from trtb.build.manifest import EngineManifest, read_record
from trtb.runner import session  # noqa: F401 (a second of imports, which are not what is measured)
from trtb.runner.options import RunOptions
from trtb.runner.run import run_batch
from trtb.tools.bench.children import peak_rss_bytes, serve_task


def run(task: dict[str, Any]) -> dict[str, Any]:
    """Answer a request file; returns the CPU seconds of it all, the peak RSS and the report."""
    engine_dir = Path(task["engine_dir"])
    options = RunOptions(
        input_path=Path(task["input"]),
        output=Path(task["output"]),
        engine_dir=engine_dir,
        manifest=read_record(engine_dir / "manifest.json", EngineManifest),
        endpoints=tuple(task["endpoints"]),
        concurrency=task["concurrency"],
        overwrite=True,
        **task.get("options", {}),
    )
    start = time.process_time()
    report = run_batch(options)
    cpu_s = time.process_time() - start
    return {"cpu_s": cpu_s, "peak_rss_bytes": peak_rss_bytes(), "report": report.model_dump(mode="json")}


if __name__ == "__main__":
    serve_task(run)
