"""Measures each GPU that torch sees: copies within its memory and to it, and products of matrices.

Request: {"num_bytes": bytes of one copy, "size": rows and columns of the matrices, "repeats": n}.
Result: {"gpus": [{"name", "copy_bytes_per_s", "upload_bytes_per_s", "matmul_flops": {dtype: flops per s}}]}.
"""

from __future__ import annotations

import protocol


def main(request: dict[str, object], progress: protocol.Progress) -> dict[str, object]:
    """Measure every GPU, one after the other."""
    import torch

    if not torch.cuda.is_available():
        raise protocol.UnsupportedError(
            f"torch {torch.__version__} sees no GPU", "install the toolchain again on the GPU's machine"
        )
    gpus = []
    for index in range(torch.cuda.device_count()):
        name = torch.cuda.get_device_name(index)
        progress("measure", f"GPU {index}: {name}")
        gpus.append({"name": name, **measure(torch, index, request)})
    return {"gpus": gpus}


def measure(torch, index, request):
    """Return one GPU's rates; each is the best of `repeats`, as others only make it slower."""
    repeats = int(request["repeats"])
    size = int(request["size"])
    device = torch.device("cuda", index)
    source = torch.empty(int(request["num_bytes"]), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    pinned = torch.empty(source.numel(), dtype=torch.uint8, pin_memory=True)
    # a copy reads and writes each byte
    copy = 2 * source.numel() / best(torch, device, repeats, lambda: target.copy_(source))
    upload = source.numel() / best(torch, device, repeats, lambda: target.copy_(pinned, non_blocking=True))
    flops = {}
    for dtype in ("bfloat16", "float16"):
        left = torch.randn(size, size, device=device, dtype=getattr(torch, dtype))
        right = torch.randn(size, size, device=device, dtype=getattr(torch, dtype))
        seconds = best(torch, device, repeats, lambda a=left, b=right: a @ b)
        flops[dtype] = 2 * size**3 / seconds
    return {"copy_bytes_per_s": copy, "upload_bytes_per_s": upload, "matmul_flops": flops}


def best(torch, device, repeats, work):
    """Return the shortest of several runs in seconds, by the GPU's own clock, after one to warm up."""
    work()
    torch.cuda.synchronize(device)
    times = []
    with torch.cuda.device(device):
        for _ in range(repeats):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            work()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / 1e3)
    return min(times)


if __name__ == "__main__":
    protocol.run(main)
