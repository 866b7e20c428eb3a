"""The engine backends, looked up by name and imported only when one is used."""

from __future__ import annotations

import importlib
import shutil
from typing import TYPE_CHECKING, cast

from trtb.build.errors import ConfigError

if TYPE_CHECKING:
    from trtb.build.backends.base import EngineBackend

_CLASSES = {
    "openvino": ("trtb.build.backends.openvino", "OpenvinoBackend"),
    "tensorrt_llm": ("trtb.build.backends.tensorrt_llm", "TensorrtLlmBackend"),
}


def choose_backend(name: str) -> tuple[str, str]:
    """Return the backend that `name` or "auto" means on this machine, and why.

    Raises:
        ConfigError: There is no such backend.
    """
    if name == "auto":
        return _choose()
    if name not in _CLASSES:
        raise ConfigError(f"backend: {name!r}; expected auto or {', '.join(_CLASSES)}")
    return name, "chosen by name"


def get_backend(name: str) -> EngineBackend:
    """Return the backend of that name; its libraries load when it works, not here.

    Raises:
        ConfigError: There is no such backend.
    """
    module, kind = _CLASSES[choose_backend(name)[0]]
    return cast("EngineBackend", getattr(importlib.import_module(module), kind)())


def _choose() -> tuple[str, str]:
    """Take the GPU where there is one and a compiler for it; a GPU left idle is told of."""
    from trtb.build import hardware

    gpus = hardware.probe_gpus().gpus
    if not gpus:
        return "openvino", "no NVIDIA GPU is here"
    what = f"{len(gpus)} x {gpus[0].name}"
    if shutil.which("trtllm-build"):
        return "tensorrt_llm", f"{what}, and trtllm-build is on the PATH"
    if shutil.which("docker"):
        return "tensorrt_llm", f"{what}, and docker, for the pinned container"
    return "openvino", f"{what}, but neither trtllm-build nor docker is here to build for it"
