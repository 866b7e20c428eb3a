"""`--set NAME=V1,V2`: settings of the engine as axes of a sweep, checked before anything starts.

Some are the server's, which is started again for them; some are the engine's, which is built again, or
found in the store where it was built before.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from trtb.build.config import BuildConfig, make_config
from trtb.build.errors import ConfigError
from trtb.build.manifest import EngineManifest
from trtb.model_repo.deploy_config import DeployConfig
from trtb.model_repo.trtllm_parameters import TrtllmDeployConfig, parse_parameters
from trtb.tools.sweeping.point import SettingValue

Settings = Mapping[str, SettingValue]


def _natural(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def _blocks(text: str) -> int:
    value = int(text)
    if value < 2:  # one of them is nobody's
        raise ValueError(text)
    return value


def _switch(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


_SERVER: Final[Mapping[str, Callable[[str], SettingValue]]] = {
    "num_kv_blocks": _blocks,
    "deterministic": _switch,
    "kv_reuse": _switch,
}
_BUILD: Final[Mapping[str, Callable[[str], SettingValue]]] = {
    "quant": str,
    "group_size": _natural,
    "dtype": str,
    "kv_cache_dtype": str,
    "max_seq_len": _natural,
    "max_batch_size": _natural,
    "max_num_tokens": _natural,
    "tp_size": _natural,
    "pp_size": _natural,
}
_EXPECTED: Final[Mapping[Callable[[str], SettingValue], str]] = {
    _natural: "a whole number of 1 or more",
    _blocks: "a whole number of 2 or more",
    _switch: "true or false",
}

# what one scheme was built with is not what another needs
_OF_A_SCHEME: Final = frozenset({"group_size", "dtype", "kv_cache_dtype"})


@dataclass(frozen=True, slots=True)
class Axis:
    """One setting and the values that it takes."""

    name: str
    values: tuple[SettingValue, ...]


def parse_axes(pairs: Sequence[str], manifest: EngineManifest) -> tuple[Axis, ...]:
    """Return the axes that a person typed, each as NAME=V1,V2.

    Raises:
        ConfigError: A name is unknown or given twice, or a value is not one of its setting's.
    """
    axes: dict[str, Axis] = {}
    for pair in pairs:
        name, is_pair, text = pair.partition("=")
        name = name.strip().replace("-", "_")
        if not is_pair or not text.strip():
            raise ConfigError(f"--set: {pair!r}; expected NAME=VALUE,VALUE, as in num_kv_blocks=200,400")
        if name in axes:
            raise ConfigError(f"--set: {name} is given twice; expected all of its values in one")
        texts = [each.strip() for each in text.split(",")]
        values = tuple(dict.fromkeys(_read(name, each, manifest) for each in texts))
        axes[name] = Axis(name, values)
    return tuple(axes.values())


def is_of_build(name: str) -> bool:
    """Say whether a setting is the engine's, which is built again for another value."""
    return name in _BUILD


def build_config(settings: Settings, manifest: EngineManifest) -> BuildConfig:
    """Return how the engine of some settings is built: as the sweep's own, but for them.

    Raises:
        ConfigError: A value is out of range.
    """
    changed = {name: value for name, value in settings.items() if is_of_build(name)}
    left_open = _OF_A_SCHEME if "quant" in changed else frozenset()
    base = {
        name: value
        for name, value in manifest.build_config.items()
        if name in BuildConfig.model_fields and name not in left_open
    }
    return make_config(**{**base, **changed})


def deploy_config(settings: Settings, num_kv_blocks: int | None, *, deterministic: bool) -> DeployConfig:
    """Return how a server of some settings serves its engine; those not set are as the options say.

    Raises:
        ConfigError: A parameter of TensorRT-LLM has no such value.
    """
    config = DeployConfig(num_kv_blocks=num_kv_blocks, deterministic=deterministic)
    own: dict[str, Any] = {name: settings[name] for name in _SERVER if name in settings}
    parameters = {
        name: str(value) for name, value in settings.items() if name in TrtllmDeployConfig.model_fields
    }
    return replace(config, trtllm=parse_parameters(parameters), **own)


def _read(name: str, text: str, manifest: EngineManifest) -> SettingValue:
    reader = _SERVER.get(name) or _BUILD.get(name)
    if reader is not None:
        try:
            return reader(text)
        except (ValueError, KeyError) as exc:
            raise ConfigError(f"--set {name}: {text!r}; expected {_EXPECTED[reader]}") from exc
    is_gpu = manifest.backend == "tensorrt_llm"
    if is_gpu and name in TrtllmDeployConfig.model_fields:
        parse_parameters({name: text})
        return text
    known = [*_SERVER, *_BUILD, *(TrtllmDeployConfig.model_fields if is_gpu else ())]
    close = difflib.get_close_matches(name, known, n=1)
    if name in TrtllmDeployConfig.model_fields:
        raise ConfigError(
            f"--set {name}: of TensorRT-LLM; {manifest.reference} is an engine of the "
            f"{manifest.backend} backend",
            f"known: {', '.join(known)}",
        )
    raise ConfigError(
        f"--set {name}: no such setting",
        f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}",
    )
