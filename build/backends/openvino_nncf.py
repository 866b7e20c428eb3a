"""Weight compression by nncf: the F16 IR becomes an IR with fewer bits; no torch.

The values stay what the CPU plugin expands again as it multiplies; activations are not quantised.
"""

from __future__ import annotations

import contextlib
import gc
import io
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from trtb.build.backends.openvino_runtime import MODEL_FILE, model_inputs, silence_telemetry
from trtb.build.errors import QuantizationError

# quant -> nncf.CompressWeightsMode
_MODES = {
    "int8_wo": "INT8_ASYM",
    "fp8": "FP8_E4M3",
    "int4_awq": "INT4_SYM",
    "nvfp4": "NVFP4",
    "mxfp4": "MXFP4",
}


def compress_weights(
    base_ir: Path, target: Path, quant: str, group_size: int | None, samples: Sequence[Sequence[int]]
) -> None:
    """Compress the F16 IR's weights and save the new IR in `target`, an existing folder.

    Args:
        base_ir: The folder of the F16 IR.
        target: Gets the model's two files, not the tokenizers.
        quant: int8_wo, fp8, int4_awq, nvfp4 or mxfp4.
        group_size: Weights that share a scale; None: a whole row.
        samples: Token ids whose activations calibrate int4_awq; the others need none.

    Raises:
        QuantizationError: nncf refuses the model or the scheme.
    """
    silence_telemetry()
    import nncf
    import openvino

    model = openvino.Core().read_model(base_ir / MODEL_FILE)
    options: dict[str, Any] = {"mode": nncf.CompressWeightsMode[_MODES[quant]]}
    if group_size is not None:
        options["group_size"] = group_size
    if quant == "int4_awq":
        options |= {
            "ratio": 1.0,
            "awq": True,
            "scale_estimation": True,
            "dataset": nncf.Dataset([model_inputs([ids]) for ids in samples]),
            "subset_size": len(samples),
        }
    nncf.set_log_level(logging.ERROR)  # its handler holds the stdout of before the redirection
    # nncf's errors share no base of their own
    kinds = [kind for kind in vars(nncf.errors).values() if isinstance(kind, type)]
    errors: tuple[type[Exception], ...] = tuple(kind for kind in kinds if issubclass(kind, Exception))
    try:
        with _quiet():
            compressed = nncf.compress_weights(model, **options)
    except errors as exc:
        raise QuantizationError(f"{quant}: nncf refused: {type(exc).__name__}: {exc}") from exc
    openvino.save_model(compressed, target / MODEL_FILE)
    del compressed, model
    gc.collect()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep nncf's progress bars off stdout, which belongs to data."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield
