"""Say, as one line of JSON on stdout, which TensorRT-LLM and TensorRT load here and which GPUs they see.

Run by the Python that runs trtllm-build, here or in a container. The versions of package metadata would not
show that the libraries load; one that does not is a traceback, which trtb reads.
"""

import json
import os
import sys

MARK = "trtb-probe: "


def describe_gpus(torch):
    """Return the GPUs that the compiler may use, in its order."""
    found = []
    for index in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(index)
        found.append({"name": gpu.name, "compute_capability": f"sm_{gpu.major}{gpu.minor}"})
    return found


def read_driver_version():
    """Return the NVIDIA driver's version, or None where it is not told."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        version = pynvml.nvmlSystemGetDriverVersion()
    except pynvml.NVMLError:
        return None
    return version.decode() if isinstance(version, bytes) else version


def main():
    """Load everything, then tell."""
    told = os.dup(1)
    os.dup2(2, 1)  # TensorRT-LLM greets on stdout
    import tensorrt
    import tensorrt_llm
    import torch

    modules = {"tensorrt_llm": tensorrt_llm, "tensorrt": tensorrt, "torch": torch}
    reply = {
        "versions": {name: str(module.__version__) for name, module in modules.items()},
        "gpus": describe_gpus(torch),
        "driver_version": read_driver_version(),
    }
    sys.stdout.flush()
    os.write(told, f"{MARK}{json.dumps(reply)}\n".encode())


main()
