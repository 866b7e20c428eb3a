"""The README's table of parameters is the one that the code has; TRTB_UPDATE_DOCS=1 writes it anew."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trtb.runner.parameter_table import as_rows

README = Path(__file__).parents[2] / "README.md"
BEGIN = "<!-- parameters: begin; this table is generated, see below -->\n"
END = "<!-- parameters: end -->\n"

pytestmark = pytest.mark.skipif(not README.is_file(), reason="the documents are not part of the wheel")


def generated() -> str:
    lines = ["| parameter | openvino | tensorrt_llm | accepted | note |", "|---|---|---|---|---|"]
    for name, *cells in as_rows():
        cells = [cell.replace("|", "\\|") for cell in (f"`{name}`", *cells)]
        lines.append(f"| {' | '.join(cells)} |".replace("  ", " "))
    return "\n".join(lines) + "\n"


def test_the_readmes_parameter_table_is_the_codes() -> None:
    text = README.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin
    assert end, "the markers of the table are gone"
    wanted = f"{before}{BEGIN}\n{generated()}\n{END}{after}"
    if os.environ.get("TRTB_UPDATE_DOCS") == "1":
        README.write_text(wanted, encoding="utf-8")
        return
    assert text == wanted, "run: TRTB_UPDATE_DOCS=1 pytest tests/docs/test_parameter_table.py"
