"""Look quantisation schemes up, and refuse one that does not go with a GPU, a KV cache or a checkpoint."""

from __future__ import annotations

from trtb.build.errors import ConfigError, HardwareError
from trtb.build.quant_layout import check_layout, check_linears, check_parallel
from trtb.build.quant_schemes import BLACKWELL_DATACENTRE, DEFAULT_QUANT, SCHEMES, QuantScheme

__all__ = [
    "DEFAULT_QUANT",
    "SCHEMES",
    "QuantScheme",
    "check_compute_capability",
    "check_layout",
    "check_linears",
    "check_parallel",
    "get_scheme",
    "is_calibrated",
    "resolve_kv_cache_dtype",
]

# listed in TensorRT-LLM's support matrix; others of the same age may work
_LISTED_SMS = frozenset({80, 86, 89, 90, 100, 103, 120, 121})
_FP8_KV_MIN_SM = 89
_QUANTISED_KV = frozenset({"fp8", "int8"})


def get_scheme(backend: str, quant: str) -> QuantScheme:
    """Return a backend's scheme of that name.

    Raises:
        ConfigError: The backend has no such scheme.
    """
    known = {scheme.name: scheme for scheme in SCHEMES if scheme.backend == backend}
    if quant not in known:
        raise ConfigError(f"quant: {quant!r}; the {backend} backend builds {', '.join(known)}")
    return known[quant]


def is_calibrated(scheme: QuantScheme, kv_cache_dtype: str) -> bool:
    """Return whether a build runs calibration samples: for its weights, its activations or its KV cache."""
    return scheme.needs_calibration or kv_cache_dtype in _QUANTISED_KV


def resolve_kv_cache_dtype(scheme: QuantScheme, kv_cache_dtype: str, dtype: str) -> str:
    """Return the KV cache's element type; "auto" is the type of what is not quantised, `dtype`.

    Raises:
        ConfigError: The scheme does not go with it, or it is another 16-bit type than the engine's.
    """
    own = "f32" if scheme.backend == "openvino" else dtype
    if kv_cache_dtype == "auto":
        return own
    allowed = sorted((scheme.kv_cache_dtypes - {"auto", "bf16", "f16"}) | {own})
    if kv_cache_dtype not in allowed:
        raise ConfigError(
            f"kv_cache_dtype: {kv_cache_dtype!r}; {scheme.name} in {dtype} goes with {', '.join(allowed)}",
            f"use --kv-cache-dtype {own}",
        )
    return kv_cache_dtype


def check_compute_capability(scheme: QuantScheme, sm: int, kv_cache_dtype: str = "auto") -> tuple[str, ...]:
    """Refuse a GPU that cannot run a scheme; return what is not known to work, in words.

    Args:
        scheme: A scheme of the tensorrt_llm backend.
        sm: 90 for compute capability 9.0.
        kv_cache_dtype: As the config says or as resolved.

    Raises:
        HardwareError: The GPU is too old, or TensorRT-LLM 1.2 builds it wrongly or not at all.
    """
    if (why := scheme.sm_fault(sm)) is not None:
        others = [row for row in SCHEMES if row.backend == scheme.backend and row.sm_fault(sm) is None]
        nearest = min(others, key=scheme.distance, default=None)
        hint = f"use --quant {nearest.name}" if nearest else "use another GPU, or --backend openvino"
        raise HardwareError(f"{scheme.name} on sm_{sm}: {why}", hint)
    if (why := _kv_fault(sm, kv_cache_dtype)) is not None:
        raise HardwareError(f"kv_cache_dtype {kv_cache_dtype} on sm_{sm}: {why}", "use --kv-cache-dtype auto")
    remarks = [note.why for note in scheme.sm_notes if sm in note.sms]
    if sm not in _LISTED_SMS:
        remarks.append("TensorRT-LLM's support matrix does not list this compute capability")
    return tuple(f"{scheme.name} on sm_{sm} is unverified: {remark}" for remark in remarks)


def _kv_fault(sm: int, kv_cache_dtype: str) -> str | None:
    if kv_cache_dtype == "fp8" and sm < _FP8_KV_MIN_SM:
        return f"expected sm_{_FP8_KV_MIN_SM} or later; nobody has shown it for compiled engines before"
    if kv_cache_dtype == "int8" and sm in BLACKWELL_DATACENTRE:
        return "TensorRT-LLM's builder has no integer KV cache there"
    return None
