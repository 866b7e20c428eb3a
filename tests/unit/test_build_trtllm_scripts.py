"""The commands that convert and quantise in the container."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from trtb.build.errors import CheckpointUnsafeError, CheckpointUnsupportedError, ConfigError
from trtb.build.trtllm.trtllm_scripts import (
    CONVERTERS,
    QFORMATS,
    WEIGHT_ONLY,
    ScriptJob,
    refuse_remote_code,
    script_argv,
    write_calibration_dataset,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "trtllm_build"
JOB = ScriptJob(
    architecture="Qwen2ForCausalLM",
    quant="bf16",
    dtype="bf16",
    kv_cache_dtype="bf16",
    group_size=None,
    tp_size=1,
    pp_size=1,
    num_samples=128,
    max_tokens=512,
    seed=1234,
)


def job(**changes: Any) -> ScriptJob:
    return dataclasses.replace(JOB, **changes)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("quantize-fp8-kv-fp8", job(quant="fp8", kv_cache_dtype="fp8")),
        ("quantize-int4_awq-tp2", job(quant="int4_awq", group_size=128, tp_size=2)),
        ("quantize-w4a8_awq", job(quant="w4a8_awq", group_size=128, dtype="f16", kv_cache_dtype="f16")),
        ("quantize-int8_sq", job(quant="int8_sq", architecture="GPTJForCausalLM")),
        ("quantize-nvfp4", job(quant="nvfp4", kv_cache_dtype="fp8")),
        ("convert-qwen-bf16-tp2-pp2", job(tp_size=2, pp_size=2)),
        ("convert-qwen-int8_wo", job(quant="int8_wo")),
        ("convert-llama-int4_wo", job(quant="int4_wo", architecture="LlamaForCausalLM", dtype="f16")),
        ("convert-phi-f16", job(quant="f16", architecture="Phi3ForCausalLM", dtype="f16", tp_size=2)),
    ],
)
def test_the_commands_are_the_golden_ones(name: str, wanted: ScriptJob) -> None:
    text = f"{shlex.join(script_argv(wanted))}\n".replace(" --", "\n--")
    golden = GOLDEN / f"{name}.txt"
    if os.environ.get("TRTB_UPDATE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()


def test_every_scheme_has_a_script() -> None:
    for quant in ("bf16", "f16", *WEIGHT_ONLY, *QFORMATS):
        argv = script_argv(job(quant=quant))
        assert argv[0] == "python3"
        assert argv[1].startswith("/app/examples/")


def test_awq_gets_no_more_samples_than_the_script_takes() -> None:
    def num_samples(quant: str) -> str:
        argv = script_argv(job(quant=quant))
        return argv[argv.index("--calib_size") + 1]

    assert (num_samples("int4_awq"), num_samples("fp8")) == ("32", "128")


def test_what_no_script_does_is_refused() -> None:
    with pytest.raises(CheckpointUnsupportedError, match=f"BloomForCausalLM.*{next(iter(CONVERTERS))}"):
        script_argv(job(architecture="BloomForCausalLM"))
    with pytest.raises(ConfigError, match="pp_size: 2"):
        script_argv(job(architecture="PhiForCausalLM", pp_size=2))
    with pytest.raises(ConfigError, match="kv_cache_dtype: 'fp8' with int8_wo weights"):
        script_argv(job(quant="int8_wo", kv_cache_dtype="fp8"))


def test_a_checkpoint_with_code_or_pickles_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    (tmp_path / "model.safetensors").write_bytes(b"")
    refuse_remote_code(tmp_path)
    for name in ("modeling_x.py", "pytorch_model.bin", "sub/weights.pt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
        with pytest.raises(CheckpointUnsafeError, match=Path(name).name):
            refuse_remote_code(tmp_path)
        (tmp_path / name).unlink()
    (tmp_path / "config.json").write_text(json.dumps({"auto_map": {"AutoModel": "x.Y"}}))
    with pytest.raises(CheckpointUnsafeError, match="auto_map"):
        refuse_remote_code(tmp_path)


def test_texts_are_written_as_the_script_reads_them(tmp_path: Path) -> None:
    texts = ["one\nline", "Übung", '"quoted"']
    write_calibration_dataset(texts, tmp_path / "data")
    lines = (tmp_path / "data" / "train.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == [{"text": text} for text in texts]
