"""The options of trtllm-build: what is written, what is read, and that both are the compiler's own."""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from fakes.trtllm_build import make_parser

from trtb.build.errors import ConfigError
from trtb.build.trtllm.trtllm_options import (
    REFUSED,
    TrtllmOptions,
    allowed_values,
    flag_of,
    given_text,
    parse_options,
    render_argv,
)

TABLE = json.loads((Path(__file__).parents[1] / "data" / "trtllm_build_flags.json").read_text())["flags"]
FLAGS = {row["name"]: row for row in TABLE}
CHECKPOINT, OUTPUT = PurePosixPath("/checkpoint"), PurePosixPath("/engine")
# trtb leaves out levels that would hide what it reads
FEWER_CHOICES = {"log_level"}


def another_value(name: str) -> Any:
    """Return a value of an option that is not its default."""
    field = TrtllmOptions.model_fields[name]
    if field.annotation is bool:
        return not field.default
    if allowed := allowed_values(field):
        return next(value for value in allowed if value != field.default)
    if field.annotation == tuple[str, ...]:
        return ("one", "two")
    return (
        "a/file"
        if name == "input_timing_cache"
        else 64 + (field.default or 0 if name != "max_seq_len" else 0)
    )


def options(**values: Any) -> TrtllmOptions:
    return TrtllmOptions(**{"max_seq_len": 4096, **values})


@pytest.mark.parametrize("name", TrtllmOptions.model_fields)
def test_an_option_is_written_as_the_compiler_reads_it(name: str) -> None:
    value = another_value(name)
    argv = render_argv(options(**{name: value}), CHECKPOINT, OUTPUT)
    assert {part for part in argv if part.startswith("--")} <= {f"--{flag}" for flag in FLAGS}
    read = getattr(make_parser().parse_args(argv), name)
    bare = FLAGS[name]["kind"] == "bare"
    assert read == (
        True if bare else list(value) if isinstance(value, tuple) else type(read)(given_text(value))
    )


def test_a_flag_that_the_compiler_does_not_know_would_be_noticed() -> None:
    with pytest.raises(SystemExit):
        make_parser().parse_args(["--enable_xqa", "enable"])


@pytest.mark.parametrize("name", FLAGS)
def test_every_flag_is_an_option_or_refused_with_a_reason(name: str) -> None:
    assert (name in TrtllmOptions.model_fields) or REFUSED[name]


@pytest.mark.parametrize("name", TrtllmOptions.model_fields)
def test_an_option_has_the_compilers_default_choices_and_a_meaning(name: str) -> None:
    field, row = TrtllmOptions.model_fields[name], FLAGS[name]
    assert flag_of(field).meaning
    assert flag_of(field).is_bare == (row["kind"] == "bare")
    if row["kind"] == "choice":
        allowed, choices = set(allowed_values(field)), set(row["choices"])
        assert allowed <= choices if name in FEWER_CHOICES else allowed == choices
    if "default" in row and not field.is_required():
        assert given_text(field.default) == str(row["default"])


def test_what_an_engine_depends_on_is_written_even_where_it_is_the_default() -> None:
    argv = render_argv(options(), CHECKPOINT, OUTPUT)
    for name in ("max_seq_len", "use_paged_context_fmha", "tokens_per_block", "remove_input_padding"):
        assert f"--{name}" in argv
    assert "--lora_plugin" not in argv


def test_what_a_person_types_gets_its_type() -> None:
    given = {
        "--reduce-fusion": "enable",
        "workers": "2",
        "weight_streaming": True,
        "gemm_plugin": "auto",
        "lora_target_modules": "attn_q,attn_v",
        "context_fmha": "disable",
    }
    assert parse_options(given) == {
        "reduce_fusion": True,
        "workers": 2,
        "weight_streaming": True,
        "gemm_plugin": "auto",
        "lora_target_modules": ("attn_q", "attn_v"),
        "context_fmha": False,
    }


@pytest.mark.parametrize(
    ("given", "message", "hint"),
    [
        ({"reduce_fuson": "enable"}, "'reduce_fuson': trtllm-build has no such option", "reduce_fusion?"),
        ({"zzz": "1"}, "'zzz': trtllm-build has no such option", "known: "),
        ({"reduce_fusion": "yes"}, "reduce_fusion: 'yes'; expected enable or disable", ""),
        ({"gemm_plugin": "int4"}, "gemm_plugin: 'int4'; expected auto or float16", ""),
        ({"workers": "two"}, "workers: 'two'; expected a whole number", ""),
        ({"workers": "0"}, "workers: 0; Input should be greater than or equal to 1", ""),
        ({"tp_size": "2"}, "tp_size: not an option of a build", "use --tp-size"),
        ({"max_seq_len": 4096}, "max_seq_len: not an option of a build", "use --max-seq-len"),
        ({"strip_plan": "enable"}, "strip_plan: not an option of a build", "cannot be served"),
        ({"use-fused-mlp": "enable", "use_fused_mlp": "enable"}, "use_fused_mlp: given twice", ""),
    ],
)
def test_a_wrong_option_is_refused_with_what_would_do(given: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(ConfigError, match="trtllm option") as caught:
        parse_options(given)
    assert message in caught.value.message
    assert hint in caught.value.hint
