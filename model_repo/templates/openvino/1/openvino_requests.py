"""What a request is to the engine, and how it and the device are told to the library."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import openvino as ov
import openvino_genai as genai


@dataclass(slots=True)
class Sampling:
    """How one request is generated; `top_k` 1 is greedy."""

    max_tokens: int
    end_id: int | None = None
    stop_words: list[list[int]] = field(default_factory=list)
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_tokens: int = 0
    seed: int = 0
    log_probs: bool = False
    num_sequences: int = 1  # several come whole, at the end
    guide: tuple[str, str] | None = None  # json_schema, regex or ebnf_grammar, and its text


@dataclass(slots=True)
class Sequence:
    """One answer of a request."""

    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Job:
    """One request: `on_tokens` hears each step's new tokens, then exactly one of the other two is called.

    `is_cancelled` is polled between steps. All callbacks run on the engine's thread.
    """

    ids: list[int]
    sampling: Sampling
    on_tokens: Callable[[list[int]], None] | None
    on_done: Callable[[Job], None]
    on_error: Callable[[Job, str], None]
    is_cancelled: Callable[[], bool]
    arrival_ns: int = field(default_factory=time.time_ns)
    sequences: dict[int, Sequence] = field(default_factory=dict)
    num_sent: int = 0  # tokens that on_tokens has heard of
    first_scheduled_ns: int = 0
    first_token_ns: int = 0
    last_token_ns: int = 0
    next_poll: float = 0.0
    strikes: int = 0  # failing steps this job was part of
    cancelled: bool = False
    has_no_room: bool = False  # the pool is full of others' blocks
    handle: object = None

    @property
    def tokens(self) -> list[int]:
        """Return the tokens of the first answer."""
        return self.sequences[0].tokens if 0 in self.sequences else []


def generation_config(sampling: Sampling) -> genai.GenerationConfig:
    """Translate to the library's own configuration."""
    config = genai.GenerationConfig()
    config.max_new_tokens = sampling.max_tokens
    config.min_new_tokens = sampling.min_tokens
    stop_ids = {word[0] for word in sampling.stop_words if len(word) == 1}
    end_id = sampling.end_id if sampling.end_id is not None else next(iter(stop_ids), None)
    if end_id is None:
        config.ignore_eos = True
    else:
        config.set_eos_token_id(end_id)
        config.stop_token_ids = stop_ids | {end_id}
    config.repetition_penalty = sampling.repetition_penalty
    config.presence_penalty = sampling.presence_penalty
    config.frequency_penalty = sampling.frequency_penalty
    config.logprobs = 1 if sampling.log_probs else 0
    if sampling.top_k != 1:
        config.do_sample = True
        config.temperature = sampling.temperature
        config.top_p = sampling.top_p
        if sampling.top_k > 0:
            config.top_k = sampling.top_k
        config.rng_seed = fold_seed(sampling.seed)
        config.num_return_sequences = sampling.num_sequences
    if sampling.guide is not None:
        config.structured_output_config = guide_config(*sampling.guide)
    return config


def fold_seed(seed: int) -> int:
    """Return 32 bits that depend on all 64: the library's generator takes the low half only.

    >>> fold_seed(1) == fold_seed((1 << 32) + 1)
    False
    """
    return ((seed * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF) >> 32


def guide_config(kind: str, text: str) -> genai.StructuredOutputConfig:
    """Translate a guide; the library compiles it in the request's first step, and dies of a bad one.

    Raises:
        ValueError: The kind is unknown.
    """
    if kind in ("json_schema", "json"):
        return genai.StructuredOutputConfig(json_schema=text or "{}")
    if kind == "regex":
        return genai.StructuredOutputConfig(regex=text)
    if kind == "ebnf_grammar":
        return genai.StructuredOutputConfig(grammar=text)
    raise ValueError(
        f"guided_decoding_guide_type is {kind!r}; expected json, json_schema, regex or ebnf_grammar"
    )


def device_properties(*, deterministic: bool, is_kv_quantised: bool = False) -> dict[str, str]:
    """Return the CPU plugin's properties.

    Deterministic: f32 arithmetic and KV, and no dynamic quantisation of activations, which on CPUs with
    VNNI makes an answer depend on the batch it was computed in. Otherwise the CPU's own fast arithmetic,
    with the KV cache in the type of that arithmetic (the library's default of 8 bits changes answers, and
    is for those who ask for it).
    """
    if deterministic:
        return {
            "INFERENCE_PRECISION_HINT": "f32",
            "KV_CACHE_PRECISION": "f32",
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
        }
    if is_kv_quantised:
        return {"KV_CACHE_PRECISION": "u8"}
    precision = ov.Core().get_property("CPU", "INFERENCE_PRECISION_HINT").get_type_name()
    return {"KV_CACHE_PRECISION": precision}
