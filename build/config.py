"""BuildConfig: what the user chose for a build, validated."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, ValidationError

from trtb.build.errors import ConfigError
from trtb.build.manifest import Record
from trtb.build.quantization import DEFAULT_QUANT

MAX_SEQ_LEN_DEFAULT = 8192

KvCacheDtype = Literal["auto", "f32", "bf16", "f16", "fp8", "int8"]


class CalibrationConfig(Record):
    """Which texts calibrate a quantisation, and how many."""

    source: str | None = None  # a JSONL of requests or a text file; None is the built-in set
    num_samples: int = Field(default=128, ge=1, le=4096)
    max_tokens: int = Field(default=512, ge=16, le=8192)  # of one sample
    seed: int = Field(default=1234, ge=0)


class BuildConfig(Record):
    """The options of one build; None and "auto" mean the backend's or the checkpoint's own default."""

    quant: str = DEFAULT_QUANT
    group_size: int | None = Field(default=None, ge=1)
    dtype: Literal["auto", "bf16", "f16"] = "auto"  # of what is not quantised
    kv_cache_dtype: KvCacheDtype = "auto"
    tp_size: int = Field(default=1, ge=1, le=64)
    pp_size: int = Field(default=1, ge=1, le=64)
    max_seq_len: int | None = Field(default=None, ge=2)  # prompt + output, in tokens
    max_batch_size: int | None = Field(default=None, ge=1, le=4096)  # requests in flight
    max_num_tokens: int | None = Field(default=None, ge=32)  # computed in one step
    calibration: CalibrationConfig = CalibrationConfig()
    quantise_with: Literal["auto", "toolchain", "container"] = "auto"  # for TensorRT-LLM
    trtllm: dict[str, str | int | bool] = Field(default_factory=dict)  # trtllm-build's, by flag name


def make_config(**options: Any) -> BuildConfig:
    """Return a BuildConfig from a person's options.

    Raises:
        ConfigError: An option is unknown or out of range.
    """
    try:
        return BuildConfig(**options)
    except ValidationError as exc:
        first = exc.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{where}: {first.get('input')!r}; {first['msg']}") from exc


def resolve_max_seq_len(config: BuildConfig, max_position_embeddings: int) -> int:
    """Return the length the engine is built for.

    Raises:
        ConfigError: The option asks for more than the model's context.
    """
    if config.max_seq_len is None:
        return min(max_position_embeddings, MAX_SEQ_LEN_DEFAULT)
    if config.max_seq_len > max_position_embeddings:
        raise ConfigError(
            f"max_seq_len: {config.max_seq_len}; the model's context is {max_position_embeddings} tokens"
        )
    return config.max_seq_len
