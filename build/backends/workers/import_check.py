"""Worker of every toolchain: its libraries load, and torch computes."""

from __future__ import annotations

import importlib
import importlib.util
import time
from typing import Any

import protocol


def check(request: dict[str, Any], progress: protocol.Progress) -> dict[str, Any]:
    """Import the modules that the request names.

    Request:
        imports: Names of modules.

    Reply:
        seconds: What each import took.
        cuda: The CUDA that torch was built for; None for a CPU build, or without torch.
        num_gpus: How many GPUs torch can use.
    """
    seconds = {}
    for name in request["imports"]:
        progress("import", name)
        started_s = time.monotonic()
        importlib.import_module(name)
        seconds[name] = round(time.monotonic() - started_s, 3)
    cuda, num_gpus = None, 0
    if importlib.util.find_spec("torch") is not None:
        import torch

        square = torch.ones(8, 8) @ torch.ones(8, 8)
        if float(square.sum()) != 512.0:
            raise protocol.WorkerError(f"torch {torch.__version__}: computes wrong sums on this CPU")
        cuda = torch.version.cuda
        num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return {"seconds": seconds, "cuda": cuda, "num_gpus": num_gpus}


if __name__ == "__main__":
    protocol.run(check)
