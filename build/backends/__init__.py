"""The engine backends, looked up by name and imported only when one is used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, cast

from trtb.build.errors import ConfigError

if TYPE_CHECKING:
    from trtb.build.backends.base import EngineBackend

_CLASSES = {"openvino": ("trtb.build.backends.openvino", "OpenvinoBackend")}


def choose_backend(name: str) -> tuple[str, str]:
    """Return the backend that `name` or "auto" means on this machine, and why.

    Raises:
        ConfigError: There is no such backend.
    """
    if name == "auto":
        return "openvino", "the embedded CPU engine: this version of trtb has no other backend"
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
