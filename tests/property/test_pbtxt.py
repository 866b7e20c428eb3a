"""What is packed, or written as a model configuration, reads back the same."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from trtb.model_repo import contract, pbtxt

words = st.lists(st.lists(st.integers(0, 49151), min_size=1, max_size=5), max_size=8)
texts = st.text(st.characters(codec="utf-8"), max_size=40).filter(lambda text: "${" not in text)
data_types = st.sampled_from(["BOOL", "INT32", "INT64", "UINT64", "FP32", "STRING"])
names = st.from_regex(r"[a-z_][a-z0-9_]{0,20}", fullmatch=True)
specs = st.builds(
    contract.TensorSpec,
    name=names,
    data_type=data_types,
    dims=st.lists(st.integers(1, 9) | st.just(-1), min_size=1, max_size=3).map(tuple),
    optional=st.booleans(),
    scalar=st.booleans(),
)


@given(words)
def test_stop_words_come_back_as_they_were_packed(stop_words):
    ids, ends = contract.pack_stop_words(stop_words)
    assert len(ids) == len(ends)
    assert contract.unpack_stop_words(ids, ends) == stop_words


@given(st.dictionaries(names, texts, max_size=4), st.lists(specs, max_size=5), st.integers(0, 1024))
def test_a_configuration_reads_back_as_it_was_written(parameters, tensors, max_batch_size):
    config = pbtxt.new_config("m", "python", max_batch_size)
    for spec in tensors:
        pbtxt.add_tensor(config.input, spec, is_input=True)
        pbtxt.add_tensor(config.output, spec, is_input=False)
    pbtxt.set_parameters(config, parameters)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "config.pbtxt")
        pbtxt.write(path, config)
        read = pbtxt.read(path)
    assert read == config
    for spec, tensor in zip(tensors, read.input, strict=True):
        assert tuple(tensor.dims) == spec.dims
        assert tensor.optional == spec.optional
        assert tensor.allow_ragged_batch == spec.ragged
        assert tensor.HasField("reshape") == spec.scalar
        assert not tensor.reshape.shape
    assert not any(tensor.HasField("reshape") for tensor in read.output)
