"""The README's table of TensorRT-LLM's parameters is the code's; TRTB_UPDATE_DOCS=1 writes it anew."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trtb.model_repo.trtllm_parameters import TrtllmDeployConfig, allowed_values, parameter_of

README = Path(__file__).parents[2] / "README.md"
BEGIN = "<!-- served parameters: begin; this table is generated -->\n"
END = "<!-- served parameters: end -->\n"
FORMS = {"groups": "groups, as in `0,1;2,3`", "tree": "groups, as in `{0}, {0, 1}`"}

pytestmark = pytest.mark.skipif(not README.is_file(), reason="the documents are not part of the wheel")


def generated() -> str:
    lines = ["| parameter | takes | trtb's default | meaning |", "|---|---|---|---|"]
    properties = TrtllmDeployConfig.model_json_schema()["properties"]
    for name, field in TrtllmDeployConfig.model_fields.items():
        parameter = parameter_of(field)
        words = allowed_values(field)
        schema = next(
            each for each in properties[name].get("anyOf", [properties[name]]) if each.get("type") != "null"
        )
        takes = ", ".join(words) or FORMS.get(parameter.form) or said_of(schema)
        default = "" if field.default in (None, ()) else str(field.default).lower()
        lines.append(f"| `{name}` | {takes} | {default} | {parameter.meaning} |".replace("  ", " "))
    return "\n".join(lines) + "\n"


def said_of(schema: dict[str, object]) -> str:
    if schema["type"] == "array":
        return "numbers, as in `4096,8192`"
    if schema["type"] == "string":
        return "a path"
    if schema["type"] == "integer":
        return f"a number from {schema['minimum']}"
    if "exclusiveMinimum" in schema:
        return "a number over 0 and under 1"
    return f"a number from {schema['minimum']:g} to {schema['maximum']:g}"


def test_the_readmes_table_of_served_parameters_is_the_codes() -> None:
    text = README.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin
    assert end, "the markers of the table are gone"
    wanted = f"{before}{BEGIN}\n{generated()}\n{END}{after}"
    if os.environ.get("TRTB_UPDATE_DOCS") == "1":
        README.write_text(wanted, encoding="utf-8")
        return
    assert text == wanted, "run: TRTB_UPDATE_DOCS=1 pytest tests/docs/test_served_parameters.py"
