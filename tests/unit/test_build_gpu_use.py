"""How busy GPUs are: the real nvidia-ml-py in a child that stays, on a library that plays any machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.nvml_library import Machine, no_library

from trtb.build.probe.gpu_use import GpuUse, GpuWatch


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("nvml")


@pytest.fixture
def watch_of(libraries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """Return what starts a watch on a machine; it is closed after the test."""
    opened = []

    def open_watch(machine: Machine | None, answer_timeout_s: float = 30.0) -> GpuWatch:
        environment = no_library(tmp_path) if machine is None else machine.environment(libraries, tmp_path)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        opened.append(GpuWatch(answer_timeout_s))
        return opened[-1]

    yield open_watch
    for watch in opened:
        watch.close()


def test_each_gpu_tells_how_busy_it_is_each_time_it_is_asked(watch_of):
    watch = watch_of(Machine(["h100", "h200"], ["0.busy_percent 87", "1.memory_free 100"]))
    first, second = watch.read()
    assert first == GpuUse(0, 0.87, 85520809984 - 84981841920, 85520809984, 68.32)
    assert (second.index, second.busy_fraction) == (1, None)  # a slice of a GPU does not tell
    assert second.memory_used_bytes == (second.memory_total_bytes or 0) - 100
    assert watch.read() == (first, second)


@pytest.mark.parametrize("machine", [None, Machine(["h100"], ["fault.nvmlInitWithFlags 18"])])
def test_without_a_driver_that_works_there_is_nothing_to_see(watch_of, machine):
    watch = watch_of(machine)
    assert (watch.read(), watch.read()) == ((), ())


def test_a_driver_that_hangs_is_asked_once(watch_of):
    watch = watch_of(Machine(["h100"], ["fault.0.nvmlDeviceGetUtilizationRates hang"]), 0.5)
    assert watch.read() == ()
    assert watch._process is None
    assert watch.read() == ()


def test_a_driver_that_crashes_ends_its_own_process(watch_of):
    watch = watch_of(Machine(["h100"], ["fault.0.nvmlDeviceGetPowerUsage crash"]))
    assert watch.read() == ()
