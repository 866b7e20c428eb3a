"""The README's table of quantisations is the one that the code has; TRTB_UPDATE_DOCS=1 writes it anew."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trtb.build.quantization import DEFAULT_QUANT, SCHEMES, QuantScheme, check_compute_capability

README = Path(__file__).parents[2] / "README.md"
BEGIN = "<!-- quantisations: begin; this table is generated, see below -->\n"
END = "<!-- quantisations: end -->\n"
LISTED_SMS = (80, 86, 89, 90, 100, 103, 120, 121)

pytestmark = pytest.mark.skipif(not README.is_file(), reason="the documents are not part of the wheel")


def gpus_of(scheme: QuantScheme) -> str:
    if scheme.backend == "openvino":
        return "none: any x86-64 CPU"
    runs = [sm for sm in LISTED_SMS if scheme.sm_fault(sm) is None]
    return ", ".join(f"{sm}{' (unverified)' if check_compute_capability(scheme, sm) else ''}" for sm in runs)


def group_sizes_of(scheme: QuantScheme) -> str:
    return ", ".join(f"**{size}**" if size == scheme.group_size else str(size) for size in scheme.group_sizes)


def generated() -> str:
    lines = [
        "| `--quant` | weights | calibrated | `--group-size` | compute capability | refused beyond |",
        "|---|---|---|---|---|---|",
    ]
    for backend in ("tensorrt_llm", "openvino"):
        lines.append(f"| *{backend}* | | | | | |")
        for scheme in (scheme for scheme in SCHEMES if scheme.backend == backend):
            cells = (
                f"`{scheme.name}`{' (default)' if scheme.name == DEFAULT_QUANT else ''}",
                scheme.summary,
                "yes" if scheme.needs_calibration else "",
                group_sizes_of(scheme),
                gpus_of(scheme),
                f"{scheme.max_perplexity_ratio:.2f}",
            )
            lines.append(f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |"))
    return "\n".join(lines) + "\n"


def test_the_readmes_table_of_quantisations_is_the_codes() -> None:
    text = README.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin
    assert end, "the markers of the table are gone"
    wanted = f"{before}{BEGIN}\n{generated()}\n{END}{after}"
    if os.environ.get("TRTB_UPDATE_DOCS") == "1":
        README.write_text(wanted, encoding="utf-8")
        return
    assert text == wanted, "run: TRTB_UPDATE_DOCS=1 pytest tests/docs/test_quantization_table.py"
