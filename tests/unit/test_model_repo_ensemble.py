"""NVIDIA's text models filled from templates: everything that must have a value has one."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest
from fakes.trtllm_engine import fake_trtllm_manifest, write_trtllm_engine
from fakes.trtllm_templates import TEMPLATES, write_templates

from trtb.build.errors import ConfigError
from trtb.model_repo import pbtxt, render
from trtb.model_repo.render_ensemble import EnsembleConfig, fill, render_ensemble

ROOT = PurePosixPath("/engine")


@pytest.fixture
def templates(tmp_path: Path) -> Path:
    return write_templates(tmp_path / "templates")


def repository_of(tmp_path: Path, release: str = "1.2.1", max_queue_size: int = 0) -> Path:
    manifest = fake_trtllm_manifest(tensorrt_llm=release)
    engine = write_trtllm_engine(tmp_path / "engine", manifest)
    deploy = render.DeployConfig(max_queue_size=max_queue_size)
    render.render(engine, manifest, tmp_path / "repository", deploy, ROOT)
    return tmp_path / "repository"


def test_the_text_models_stand_beside_the_engines_with_every_value(tmp_path, templates):
    repository = repository_of(tmp_path)
    config = EnsembleConfig(num_tokenizers=3, num_bls=7, add_special_tokens=False, accumulate_tokens=True)
    render_ensemble(templates, repository, fake_trtllm_manifest(), config, ROOT)
    models = {name: pbtxt.read(repository / name / "config.pbtxt") for name in TEMPLATES}
    assert {model.max_batch_size for model in models.values()} == {256}
    assert models["preprocessing"].instance_group[0].count == 3
    assert models["postprocessing"].instance_group[0].count == 3
    assert models["tensorrt_llm_bls"].instance_group[0].count == 7
    assert models["tensorrt_llm_bls"].model_transaction_policy.decoupled
    assert models["ensemble"].output[0].data_type == models["tensorrt_llm_bls"].output[0].data_type == 11
    said = {
        name: {key: value.string_value for key, value in model.parameters.items()}
        for name, model in models.items()
    }
    assert said["preprocessing"] == {
        "tokenizer_dir": "/engine/tokenizer",
        "add_special_tokens": "False",
        "multimodal_model_path": "",  # asked for by name: its absence would be an error
        "gpt_model_path": "/engine/engine",
        "max_num_images": "",
    }
    assert said["postprocessing"] == {"tokenizer_dir": "/engine/tokenizer", "skip_special_tokens": "True"}
    assert said["tensorrt_llm_bls"] == {
        "accumulate_tokens": "True",
        "tensorrt_llm_model_name": "tensorrt_llm",
        "tensorrt_llm_draft_model_name": "",
    }
    files = {path.relative_to(repository).as_posix() for path in repository.rglob("*") if path.is_file()}
    assert {"tensorrt_llm_bls/1/lib/decode.py", "preprocessing/1/model.py"} <= files
    assert not list(repository.rglob("__pycache__"))
    assert (repository / "ensemble" / "1").is_dir()
    for path in repository.rglob("config.pbtxt"):
        assert "${" not in path.read_text()


@pytest.mark.parametrize(
    ("model", "old", "new", "said"),
    [
        ("ensemble", "${logits_datatype}", "${logits_type}", "logits_type: no value; expected a template of"),
        ("ensemble", '"text_output"', '"${out}"', "out: no value, and not of a parameter"),
        ("ensemble", '"seed" value', '"random_seed" value', "random_seed: the engine's model has no such"),
        ("ensemble", '"output_ids"', '"ids"', "ids: the engine's model has no such tensor"),
        ("ensemble", 'model_name: "preprocessing"', 'model_name: "pre"', "step 'pre' is no model"),
        ("preprocessing", 'name: "preprocessing"', 'name: "other"', "name 'other'; expected 'preprocessing'"),
        ("postprocessing", "kind: KIND_CPU", "kind: KIND_TPU", "expected a Triton ModelConfig"),
        ("postprocessing", "${triton_max_batch_size}", "0", "max_batch_size 0; expected at least 1"),
    ],
)
def test_a_template_that_cannot_be_filled_or_does_not_fit_is_refused(
    tmp_path, templates, model, old, new, said
):
    path = templates / model / "config.pbtxt"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(ConfigError) as caught:
        render_ensemble(templates, repository_of(tmp_path), fake_trtllm_manifest(), EnsembleConfig(), ROOT)
    assert said in caught.value.message


def test_a_missing_template_or_its_code_is_named(tmp_path, templates):
    (templates / "postprocessing" / "1" / "model.py").unlink()
    with pytest.raises(ConfigError, match=r"postprocessing: no 1/model\.py"):
        render_ensemble(templates, repository_of(tmp_path), fake_trtllm_manifest(), EnsembleConfig(), ROOT)
    (templates / "preprocessing" / "config.pbtxt").unlink()
    with pytest.raises(ConfigError, match=r"preprocessing/config\.pbtxt: not found") as caught:
        render_ensemble(templates, tmp_path / "repository", fake_trtllm_manifest(), EnsembleConfig(), ROOT)
    assert "/app/all_models" in caught.value.hint


@pytest.mark.parametrize(("release", "is_refused"), [("1.0.0", True), ("1.2.0", True), ("1.2.1", False)])
def test_a_bounded_queue_is_refused_where_a_full_one_hangs(tmp_path, templates, release, is_refused):
    repository = repository_of(tmp_path, release, max_queue_size=8)
    arguments = (templates, repository, fake_trtllm_manifest(tensorrt_llm=release), EnsembleConfig(), ROOT)
    if is_refused:
        with pytest.raises(ConfigError, match="max_queue_size: 8; expected 0 with an ensemble"):
            render_ensemble(*arguments)
    else:
        render_ensemble(*arguments)


def test_a_variable_in_quotes_beside_others_is_found(tmp_path):
    text = 'name: "a"\nparameters { key: "k" value: { string_value: "x ${y} z" } }'
    assert fill(text, {}, tmp_path).parameters["k"].string_value == ""
    assert fill(text, {"y": "1"}, tmp_path).parameters["k"].string_value == "x 1 z"
