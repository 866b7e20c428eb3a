"""The sections of a job file: their keys and types."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

_Count = Annotated[int, Field(ge=1)]
_MAX_MS: Final = 1e11  # three years


class Section(BaseModel):
    """Keys that are read strictly; an unknown one is refused."""

    model_config = ConfigDict(strict=True, extra="forbid")


class Input(Section):
    """What is read, and how strictly."""

    path: str | None = None
    limit: _Count | None = None
    on_invalid: Literal["refuse", "fail"] | None = None
    model_aliases: list[str] | None = None
    strict_params: bool | None = None
    max_line_bytes: _Count | None = None


class Inference(Section):
    """What answers."""

    engine: str | None = None
    model_path: str | None = None  # a checkpoint, where the engine is not named
    batch_size: _Count | None = None
    max_seq_len: _Count | None = None  # must be the engine's own
    device_ids: Any = None  # "0,1;2,3", or lists of numbers
    launch: Literal["auto", "embedded", "image", "docker"] | None = None
    default_max_tokens: _Count | None = None
    deterministic: bool | None = None
    num_kv_blocks: Annotated[int, Field(ge=2)] | None = None
    kv_cache_dtype: Literal["auto", "int8"] | None = None
    kv_cache_gb: Annotated[float, Field(ge=0.001, le=1e6, allow_inf_nan=False)] | None = None
    kv_host_cache_gb: Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)] | None = None
    kv_reuse: bool | None = None
    kv_retention: bool | None = None
    trtllm_parameters: dict[str, str | bool | int | float] | None = None  # by TensorRT-LLM's names
    endpoints: list[str] | None = None


class Scheduler(Section):
    """When a request is sent, given up, and sent again."""

    queue_size: _Count | None = None
    order: Literal["auto", "prefix", "length", "input"] | None = None
    dedup: bool | None = None
    canary: Annotated[int, Field(ge=0)] | None = None
    max_failure_rate: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    timeout_ms: Annotated[float, Field(ge=1, le=_MAX_MS, allow_inf_nan=False)] | None = None
    retry_times: Annotated[int, Field(ge=0)] | None = None
    grace_ms: Annotated[float, Field(ge=0, le=_MAX_MS, allow_inf_nan=False)] | None = None
    server_wait_ms: Annotated[float, Field(ge=0, le=_MAX_MS, allow_inf_nan=False)] | None = None
    start_timeout_ms: Annotated[float, Field(ge=1000, le=_MAX_MS, allow_inf_nan=False)] | None = None


class Output(Section):
    """What is written."""

    path: str | None = None
    follow: str | None = None
    overwrite: bool | None = None


class Cache(Section):
    """Answers that are kept between runs."""

    enabled: bool | None = None
    capacity_gb: Annotated[float, Field(ge=0.001, le=4000, allow_inf_nan=False)] | None = None
    eviction_policy: Literal["lru"] | None = None
    sync_interval_ms: Annotated[float, Field(ge=0, le=3_600_000, allow_inf_nan=False)] | None = None
    ttl_hours: Annotated[float, Field(gt=0, le=1_000_000, allow_inf_nan=False)] | None = None


class Monitoring(Section):
    """Metrics beyond the report, which this version has not."""

    enabled: Any = None


class Job(Section):
    """A job file's content; what is absent or null is left to the command line and the defaults."""

    schema_version: Literal[1] = 1
    input: Input | None = None
    inference: Inference | None = None
    scheduler: Scheduler | None = None
    output: Output | None = None
    cache: Cache | None = None
    monitoring: Monitoring | None = None


SECTIONS: Final[dict[str, type[Section]]] = {
    "input": Input,
    "inference": Inference,
    "scheduler": Scheduler,
    "output": Output,
    "cache": Cache,
    "monitoring": Monitoring,
}
