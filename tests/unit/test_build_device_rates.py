"""The worker that measures GPUs, with a torch whose clock the test sets: no GPU is here."""

from __future__ import annotations

import importlib.util
import sys
import types
from contextlib import nullcontext
from typing import Any

import pytest

from trtb.build.worker import WORKERS


class Tensor:
    def __init__(self, *shape: int) -> None:
        self.shape = shape

    def numel(self) -> int:
        return self.shape[0]

    def copy_(self, source: Tensor, non_blocking: bool = False) -> None:
        assert source.shape == self.shape

    def __matmul__(self, other: Tensor) -> Tensor:
        return self


def fake_torch(milliseconds: list[float], *, is_available: bool = True) -> Any:
    """Return a torch whose timed runs take these times, one after the other, from the start again."""
    times = iter(milliseconds * 100)

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None: ...
        def synchronize(self) -> None: ...
        def elapsed_time(self, other: Event) -> float:
            return next(times)

    cuda = types.SimpleNamespace(
        is_available=lambda: is_available, device_count=lambda: 2,
        get_device_name=lambda index: f"GPU-{index}",
        synchronize=lambda device: None, device=lambda device: nullcontext(), Event=Event,
    )  # fmt: skip
    return types.SimpleNamespace(
        cuda=cuda, uint8="u8", bfloat16="bf16", float16="f16", device=lambda kind, index: (kind, index),
        __version__="2.13.0", empty=lambda num, **options: Tensor(num), empty_like=lambda other: other,
        randn=lambda rows, columns, **options: Tensor(rows, columns),
    )  # fmt: skip


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Any:
    class UnsupportedError(Exception):
        pass

    protocol = types.SimpleNamespace(UnsupportedError=UnsupportedError, Progress=object)
    monkeypatch.setitem(sys.modules, "protocol", protocol)
    spec = importlib.util.spec_from_file_location("device_rates", WORKERS / "device_rates.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_rates_are_bytes_and_operations_by_the_best_time(
    worker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", fake_torch([4.0, 2.0]))
    told: list[str] = []
    request = {"num_bytes": 1000, "size": 100, "repeats": 2}
    found = worker.main(request, lambda step, detail: told.append(detail))
    assert told == ["GPU 0: GPU-0", "GPU 1: GPU-1"]
    rates = found["gpus"][1]
    assert rates["copy_bytes_per_s"] == pytest.approx(2 * 1000 / 0.002)  # read and written
    assert rates["upload_bytes_per_s"] == pytest.approx(1000 / 0.002)
    assert rates["matmul_flops"] == pytest.approx({"bfloat16": 2e6 / 0.002, "float16": 2e6 / 0.002})


def test_a_torch_that_sees_no_gpu_is_told(worker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", fake_torch([1.0], is_available=False))
    with pytest.raises(worker.protocol.UnsupportedError, match="sees no GPU"):
        worker.main({"num_bytes": 1, "size": 1, "repeats": 1}, lambda step, detail: None)
