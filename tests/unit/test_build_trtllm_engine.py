"""An engine folder is taken only if it is what was asked for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes import trtllm_build
from fakes.trtllm_zeros import make_config

from trtb.build.errors import CompileError
from trtb.build.trtllm.trtllm_engine import verify_engine
from trtb.build.trtllm.trtllm_options import TrtllmOptions, render_argv

OPTIONS = TrtllmOptions(max_seq_len=4096, max_batch_size=64, use_fp8_context_fmha=False)
CHECKPOINT = make_config(tp_size=2)


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """Two ranks as the compiler would write them."""
    args = trtllm_build.make_parser().parse_args(render_argv(OPTIONS, Path("c"), Path("e")))
    built = trtllm_build.resolve(args, CHECKPOINT, 90)
    for rank in range(2):
        trtllm_build.save(rank, tmp_path, built, CHECKPOINT, trtllm_build.MACHINE)
    return tmp_path


def change(engine: Path, *path: str, value: Any) -> None:
    config = json.loads((engine / "config.json").read_text())
    part = config
    for name in path[:-1]:
        part = part[name]
    part[path[-1]] = value
    (engine / "config.json").write_text(json.dumps(config))


def test_an_engine_as_it_was_asked_for_is_taken(engine: Path) -> None:
    found = verify_engine(engine, OPTIONS, "1.2.1", CHECKPOINT)
    assert (found.num_ranks, found.version, found.adjustments) == (2, "1.2.1", [])
    assert found.total_bytes == sum(path.stat().st_size for path in engine.iterdir())


FAULTS: list[tuple[Callable[[Path], object], str]] = [
    (lambda e: (e / "config.json").unlink(), "config.json: not found"),
    (lambda e: (e / "config.json").write_text("{"), "not JSON"),
    (lambda e: (e / "config.json").write_text("[]"), "pretrained_config: not found"),
    (lambda e: change(e, "version", value="1.1.0"), "version: '1.1.0'; expected 1.2.1"),
    (
        lambda e: (e / "rank1.engine").unlink(),
        "rank1.engine: not found; expected one engine for each of 2 ranks",
    ),
    (lambda e: (e / "rank1.engine").write_bytes(b""), "rank1.engine: 0 bytes"),
    (lambda e: (e / "rank2.engine").write_bytes(b"ftrt" * 999), "rank2.engine: not expected"),
    (lambda e: (e / "model.cache").write_bytes(b"x"), "model.cache: not expected"),
    (
        lambda e: (e / "rank0_managed_weights.safetensors").write_bytes(b"x"),
        "managed_weights.safetensors: not",
    ),
    (
        lambda e: change(e, "build_config", "max_batch_size", value=8),
        "build_config.max_batch_size: 8; expected '64'",
    ),
    (lambda e: change(e, "build_config", "max_seq_len", value=8192), "max_seq_len: 8192; expected '4096'"),
    (lambda e: change(e, "build_config", "kv_cache_type", value="CONTINUOUS"), "kv_cache_type: 'CONTINUOUS'"),
    (
        lambda e: change(e, "build_config", "plugin_config", "use_paged_context_fmha", value=False),
        "use_paged_context_fmha: False; expected 'enable'",
    ),
    (
        lambda e: change(e, "build_config", "plugin_config", "tokens_per_block", value=64),
        "tokens_per_block: 64; expected '32'",
    ),
    (
        lambda e: change(e, "pretrained_config", "num_hidden_layers", value=1),
        "pretrained_config.num_hidden_layers: 1; expected 2",
    ),
    (
        lambda e: change(e, "pretrained_config", "quantization", "quant_algo", value="FP8"),
        "pretrained_config.quantization.quant_algo: 'FP8'; expected None",
    ),
    (
        lambda e: change(e, "pretrained_config", "mapping", "tp_size", value=1),
        "pretrained_config.mapping.tp_size: 1; expected 2",
    ),
]


@pytest.mark.parametrize(("damage", "message"), FAULTS, ids=[message[:40] for _, message in FAULTS])
def test_any_other_engine_is_refused(engine: Path, damage: Callable[[Path], object], message: str) -> None:
    damage(engine)
    with pytest.raises(CompileError) as caught:
        verify_engine(engine, OPTIONS, "1.2.1", CHECKPOINT)
    assert message in caught.value.message


def test_a_feature_that_only_makes_it_faster_is_reported(engine: Path) -> None:
    change(engine, "build_config", "plugin_config", "gpt_attention_plugin", value="float16")
    change(engine, "build_config", "max_input_len", value=512)
    found = verify_engine(engine, OPTIONS, "1.2.1", CHECKPOINT)
    assert [(each.option, each.asked, each.built) for each in found.adjustments] == [
        ("max_input_len", "1024", "512"),
        ("gpt_attention_plugin", "auto", "float16"),
    ]


def test_drafts_may_make_the_limits_larger_and_nothing_may_make_them_smaller(engine: Path) -> None:
    drafting = OPTIONS.model_copy(
        update={"max_draft_len": 8, "speculative_decoding_mode": "draft_tokens_external"}
    )
    change(engine, "build_config", "max_draft_len", value=8)
    change(engine, "build_config", "max_seq_len", value=4104)
    found = verify_engine(engine, drafting, "1.2.1", CHECKPOINT)
    assert [each.option for each in found.adjustments] == ["max_seq_len"]
    change(engine, "build_config", "max_seq_len", value=4000)
    with pytest.raises(CompileError, match="max_seq_len: 4000"):
        verify_engine(engine, drafting, "1.2.1", CHECKPOINT)


def test_a_fast_build_keeps_its_weights_in_files_of_their_own(engine: Path) -> None:
    (engine / "rank0_managed_weights.safetensors").write_bytes(b"x")
    fast = OPTIONS.model_copy(update={"fast_build": True})
    assert verify_engine(engine, fast, "1.2.1", CHECKPOINT).num_ranks == 2
