"""The wire contract against TensorRT-LLM's own declaration, carried over as facts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trtb.model_repo import contract

FACTS = json.loads((Path(__file__).parents[1] / "data" / "tensorrt_llm_tensors.json").read_text())
INPUTS = {tensor["name"]: tensor for tensor in FACTS["inputs"]}
OUTPUTS = {tensor["name"]: tensor for tensor in FACTS["outputs"]}


@pytest.mark.parametrize("spec", contract.INPUTS, ids=lambda spec: spec.name)
def test_an_input_is_declared_as_tensorrt_llm_declares_it(spec):
    declared = INPUTS[spec.name]
    assert declared == {
        "name": spec.name,
        "data_type": spec.data_type,
        "dims": list(spec.dims),
        "optional": spec.optional,
        "scalar": spec.scalar,
        "allow_ragged_batch": spec.ragged,
    }


@pytest.mark.parametrize("spec", contract.OUTPUTS, ids=lambda spec: spec.name)
def test_an_output_is_declared_as_tensorrt_llm_declares_it(spec):
    declared = OUTPUTS[spec.name]
    assert (declared["data_type"], declared["dims"]) == (spec.data_type, list(spec.dims))
    assert not declared.get("scalar", False)


def test_no_tensor_stands_twice_and_every_required_input_is_there():
    names = [spec.name for spec in contract.INPUTS]
    assert len(set(names)) == len(names)
    assert len({spec.name for spec in contract.OUTPUTS}) == len(contract.OUTPUTS)
    required = {name for name, tensor in INPUTS.items() if not tensor["optional"]}
    assert required <= set(names)
    assert required == {spec.name for spec in contract.INPUTS if not spec.optional}
