"""The keys of a config.json that no size needs and every library trusts: their types and ranges.

A wrong one is found by a worker else, minutes later and in a library's own words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from trtb.build.errors import CheckpointError, CheckpointUnsupportedError

# of transformers' names, those that a gated MLP of the families known here is published with
ACTIVATIONS: Final = (
    *("silu", "swish", "gelu", "gelu_pytorch_tanh", "gelu_new", "gelu_fast", "gelu_python", "quick_gelu"),
    *("relu", "relu2"),
)
ROPE_KINDS: Final = ("linear", "dynamic", "yarn", "longrope", "su", "llama3")
MIN_POSITIONS: Final = 16  # a short prompt and its answer

_DTYPES = ("auto", "bfloat16", "float16", "float32", "float64", "half", "float", "double")
_HINT = "correct it, or fetch the checkpoint again"


class _Rule(NamedTuple):
    is_right: Callable[[Any], bool]
    expected: str


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_text_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(name, str) and name for name in value)


_BOOL = _Rule(lambda value: isinstance(value, bool), "true or false")
_POSITIVE = _Rule(lambda value: _is_number(value) and value > 0, "a positive number")
_DTYPE = _Rule(
    lambda value: isinstance(value, str) and value.removeprefix("torch.") in _DTYPES,
    f"one of {', '.join(_DTYPES)}",
)
# null says of each of them that the class's default holds
_RULES: Final = {
    "architectures": _Rule(_is_text_list, "a list like ['LlamaForCausalLM']"),
    "tie_word_embeddings": _BOOL,
    "attention_bias": _BOOL,
    "mlp_bias": _BOOL,
    "use_sliding_window": _BOOL,
    "torch_dtype": _DTYPE,
    "dtype": _DTYPE,
    "rms_norm_eps": _Rule(lambda value: _is_number(value) and 0 < value < 1, "a number between 0 and 1"),
    "attn_logit_softcapping": _POSITIVE,
    "final_logit_softcapping": _POSITIVE,
    "query_pre_attn_scalar": _POSITIVE,
    "max_position_embeddings": _Rule(
        lambda value: type(value) is int and value >= MIN_POSITIONS,
        f"a whole number of positions, at least {MIN_POSITIONS}",
    ),
}
_ROPE_LISTS = ("short_factor", "long_factor")
_ROPE_NEEDS = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor",),
    "longrope": _ROPE_LISTS,
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}


def check_values(where: str, config: Mapping[str, Any]) -> None:
    """Refuse a config.json with a value of the wrong type or out of its range.

    Raises:
        CheckpointError: There is one; the message names its key.
        CheckpointUnsupportedError: The activation function is none that is known here.
    """
    for key, rule in _RULES.items():
        value = config.get(key)
        if value is not None and not rule.is_right(value):
            raise _wrong(where, key, value, rule.expected)
    for key in ("hidden_act", "hidden_activation"):
        value = config.get(key)
        if value is None or value in ACTIVATIONS:
            continue
        if not isinstance(value, str):
            raise _wrong(where, key, value, f"one of {', '.join(ACTIVATIONS)}")
        raise CheckpointUnsupportedError(
            f"{where}: {key}: {value[:100]!r}; expected one of {', '.join(ACTIVATIONS)}",
            "choose a model with one of these activation functions",
        )


def check_rope_scaling(where: str, scaling: Mapping[str, Any]) -> None:
    """Refuse a scaling that lacks a number of its kind or has something else in its place.

    Raises:
        CheckpointError: It does; the message names its key.
        CheckpointUnsupportedError: It is of a kind that is not known here.
    """
    kind = scaling["rope_type"]
    if kind not in ROPE_KINDS:
        raise CheckpointUnsupportedError(
            f"{where}: rope_scaling.rope_type: {str(kind)[:100]!r}; expected one of {', '.join(ROPE_KINDS)}",
            "choose a model with one of these kinds, or with none",
        )
    for key in _ROPE_NEEDS.get(kind, ()):
        if scaling.get(key) is None:
            raise CheckpointError(f"{where}: rope_scaling.{key}: not there; {kind!r} needs it", _HINT)
    for key, value in scaling.items():
        if key in _ROPE_LISTS:
            if not isinstance(value, list) or not all(map(_POSITIVE.is_right, value)):
                raise _wrong(where, f"rope_scaling.{key}", value, "a list of positive numbers")
            continue
        is_number = key.endswith(("factor", "embeddings")) or key.startswith("beta")
        if is_number and value is not None and not _POSITIVE.is_right(value):
            raise _wrong(where, f"rope_scaling.{key}", value, _POSITIVE.expected)


def _wrong(where: str, key: str, value: Any, expected: str) -> CheckpointError:
    return CheckpointError(f"{where}: {key}: {str(repr(value))[:200]}; expected {expected}", _HINT)
