"""The quantisation schemes: what each means on each backend, and how much worse it may make a model.

The worst acceptable ratio is of perplexities on the fixed quality text, quantised over F16. It is set
from measurements on a 135M model (int8_wo 1.003, fp8 1.023, int4_awq 1.165), which suffers more from
few bits than a larger one: a build beyond it is not merely coarse, something went wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from trtb.build.errors import ConfigError

DEFAULT_QUANT = "int8_wo"


@dataclass(frozen=True, slots=True)
class QuantScheme:
    """One scheme on one backend; `group_size` None means one scale per row or per block of its format."""

    name: str
    backend: str
    weight_bits: int
    needs_calibration: bool
    group_size: int | None
    max_perplexity_ratio: float
    summary: str


SCHEMES: tuple[QuantScheme, ...] = (
    QuantScheme("f16", "openvino", 16, False, None, 1.0, "weights as they are, in half precision"),
    QuantScheme("int8_wo", "openvino", 8, False, None, 1.02, "8-bit weights (Q8_0: blocks of 32)"),
    QuantScheme("fp8", "openvino", 8, False, 64, 1.10, "FP8 E4M3 weights in groups"),
    QuantScheme("int4_awq", "openvino", 4, True, 64, 1.30, "4-bit weights, AWQ and scale estimation"),
)


def get_scheme(backend: str, quant: str) -> QuantScheme:
    """Return a backend's scheme of that name.

    Raises:
        ConfigError: The backend has no such scheme.
    """
    known = {scheme.name: scheme for scheme in SCHEMES if scheme.backend == backend}
    if quant not in known:
        raise ConfigError(f"quant: {quant!r}; the {backend} backend builds {', '.join(known)}")
    return known[quant]


def check_group_size(group_size: int, widths: Iterable[int]) -> None:
    """Refuse a group size that does not divide the width of every matrix, and name the nearest that does.

    Raises:
        ConfigError: It does not divide them.
    """
    common = math.gcd(*widths)  # a number divides every width exactly if it divides this
    if group_size > 0 and common % group_size == 0:
        return
    powers = [size for size in (16, 32, 64, 128, 256) if common % size == 0]
    nearest = min(powers, key=lambda size: abs(size - group_size), default=None)
    raise ConfigError(
        f"group_size: {group_size}; expected a divisor of {common}, as of the width of every matrix",
        f"use group_size {nearest}" if nearest else "use int8_wo or f16, which need no groups",
    )
