"""Whatever a TensorRT-LLM server may be told, its configuration says exactly that."""

from __future__ import annotations

import tempfile
from pathlib import Path, PurePosixPath
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pydantic.fields import FieldInfo

from trtb.model_repo import pbtxt
from trtb.model_repo.render_trtllm import read_parameters, served_parameters
from trtb.model_repo.trtllm_parameters import (
    TrtllmDeployConfig,
    allowed_values,
    parse_parameters,
    to_parameters,
)

texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Z"]), min_size=1, max_size=30).filter(
    lambda text: "${" not in text
)
groups = st.lists(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=4).map(tuple), max_size=4).map(
    tuple
)


def values(name: str, field: FieldInfo) -> st.SearchStrategy[Any]:
    """Return every value of a parameter, read off its own declaration."""
    schema = TrtllmDeployConfig.model_json_schema()["properties"][name]
    schema = next((each for each in schema.get("anyOf", [schema]) if each.get("type") != "null"), schema)
    kind = schema.get("type")
    optional = st.none() if type(None) in getattr(field.annotation, "__args__", ()) else st.nothing()
    if words := allowed_values(field):
        return optional | (st.booleans() if kind == "boolean" else st.sampled_from(words))
    if kind == "integer":
        return optional | st.integers(schema["minimum"], schema["maximum"])
    if kind == "number":
        low, high = (
            schema.get(key, schema.get(f"exclusive{key.capitalize()}")) for key in ("minimum", "maximum")
        )
        is_open = "exclusiveMinimum" in schema
        return optional | st.floats(low, high, exclude_min=is_open, exclude_max=is_open)
    if kind == "string":
        return optional | texts
    if schema["items"]["type"] == "array":
        return groups
    assert kind == "array"
    return st.lists(st.integers(1, 2**31 - 1), max_size=4).map(tuple)


configs = st.fixed_dictionaries(
    {}, optional={name: values(name, field) for name, field in TrtllmDeployConfig.model_fields.items()}
).map(lambda given: TrtllmDeployConfig(**given))


@given(configs)
def test_a_config_reads_back_from_its_own_parameters(config):
    assert parse_parameters(to_parameters(config)) == config


@given(configs.filter(lambda config: config.guided_decoding_backend != "auto"))
def test_a_rendered_model_says_what_was_asked(config):
    model = pbtxt.new_config("tensorrt_llm", "tensorrtllm", 8)
    pbtxt.set_parameters(model, served_parameters(config, PurePosixPath("/engine"), "e" * 64))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "config.pbtxt")
        pbtxt.write(path, model)
        said = {key: value.string_value for key, value in pbtxt.read(path).parameters.items()}
    assert read_parameters(said) == config
