"""The machine in the words of a sweep's plan."""

from __future__ import annotations

from fakes.machine import fake_gpu, fake_hardware

from trtb.tools.sweeping.machine import describe_machine


def test_processor_and_gpus_are_counted():
    gpu = fake_gpu()

    bare = describe_machine(fake_hardware())
    two = describe_machine(fake_hardware(gpu, fake_gpu(index=1)))

    assert " threads of " in bare
    assert two == f"2 x {gpu.name}, {bare}"
