"""BuildConfig: what the user chose for a build, validated."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, ValidationError

from trtb.build.errors import ConfigError
from trtb.build.manifest import Record
from trtb.build.quantization import DEFAULT_QUANT

MAX_SEQ_LEN_DEFAULT = 8192


class BuildConfig(Record):
    """The options of one build; None means the backend's or the checkpoint's own default."""

    quant: str = DEFAULT_QUANT
    group_size: int | None = Field(default=None, ge=1)
    max_seq_len: int | None = Field(default=None, ge=2)  # prompt + output, in tokens
    max_batch_size: int = Field(default=128, ge=1, le=4096)
    max_num_tokens: int = Field(default=512, ge=32)  # per step; short steps let cancels in
    kv_cache_dtype: Literal["f32"] = "f32"  # greedy answers then do not depend on what else is in flight


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
