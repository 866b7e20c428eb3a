"""Splits and group sizes of real models: what can be built, and what is named instead of what cannot."""

from __future__ import annotations

import pytest

from trtb.build.checkpoints.hf_checkpoint import Linear
from trtb.build.errors import ConfigError
from trtb.build.manifest import ModelShape
from trtb.build.quantization import check_layout, check_linears, check_parallel, get_scheme


def shape(
    num_layers: int, num_heads: int, num_kv_heads: int, head_dim: int, hidden_size: int, vocab_size: int
) -> ModelShape:
    return ModelShape(
        architecture="llama",
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        hidden_size=hidden_size,
        vocab_size=vocab_size,
        max_position_embeddings=8192,
    )


def linears(model: ModelShape, width: int) -> tuple[Linear, ...]:
    hidden, query = model.hidden_size, model.num_heads * model.head_dim
    kv = 2 * model.num_kv_heads * model.head_dim
    return (
        Linear("attention.qkv", hidden, query + kv, is_row_parallel=False),
        Linear("attention.dense", query, hidden, is_row_parallel=True),
        Linear("mlp.fc", hidden, width, is_row_parallel=False),
        Linear("mlp.gate", hidden, width, is_row_parallel=False),
        Linear("mlp.proj", width, hidden, is_row_parallel=True),
    )


MODELS = {
    "SmolLM2-135M": (shape(30, 9, 3, 64, 576, 49152), 1536),
    "Llama-3.1-8B": (shape(32, 32, 8, 128, 4096, 128256), 14336),
    "Llama-3.1-70B": (shape(80, 64, 8, 128, 8192, 128256), 28672),
    "Qwen2.5-7B": (shape(28, 28, 4, 128, 3584, 152064), 18944),
    "GPT-2's vocabulary": (shape(12, 12, 12, 64, 768, 50257), 3072),
}
# query heads wider than the model together: the exporter splits the inputs of every matrix all the same
WIDE_HEADS = (shape(2, 16, 8, 128, 1024, 1024), 2048)


def layout(name: str, quant: str, backend: str = "tensorrt_llm", **asked: object) -> int | None:
    model, width = MODELS[name]
    scheme = get_scheme(backend, quant)
    return check_layout(scheme, model, width, linears(model, width), **asked)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "quant", "asked", "group_size"),
    [
        ("SmolLM2-135M", "int4_awq", {}, 64),
        ("SmolLM2-135M", "int4_awq", {"group_size": 64, "tp_size": 3}, 64),
        ("SmolLM2-135M", "int4_awq", {"group_size": 64, "tp_size": 3, "pp_size": 2}, 64),
        ("SmolLM2-135M", "fp8", {"pp_size": 5}, None),
        ("SmolLM2-135M", "nvfp4", {"tp_size": 3}, 16),
        ("SmolLM2-135M", "w4a8_awq", {"needs_kernels": False}, 64),
        ("Llama-3.1-8B", "int4_awq", {}, 128),
        ("Llama-3.1-8B", "int4_awq", {"tp_size": 8}, 128),
        ("Llama-3.1-8B", "w4a8_awq", {"tp_size": 4}, 128),
        ("Llama-3.1-70B", "fp8", {"tp_size": 4}, None),
        ("Llama-3.1-70B", "fp8", {"tp_size": 8}, None),
        ("Llama-3.1-70B", "int4_awq", {"tp_size": 8, "pp_size": 2}, 128),
        ("Llama-3.1-70B", "int4_awq", {"tp_size": 16}, 128),  # two ranks hold each KV head
        ("Qwen2.5-7B", "int4_awq", {"tp_size": 2}, 128),
        ("Qwen2.5-7B", "int4_awq", {"tp_size": 4}, 128),
        ("GPT-2's vocabulary", "fp8", {}, None),
    ],
)
def test_what_can_be_built(name: str, quant: str, asked: dict[str, object], group_size: int | None) -> None:
    assert layout(name, quant, **asked) == group_size


@pytest.mark.parametrize(
    ("name", "quant", "asked", "found", "hint"),
    [
        (
            "SmolLM2-135M",
            "int4_awq",
            {"group_size": 128},
            "group_size: 128; expected a divisor of 576, the width of attention.qkv",
            "use --group-size 64",
        ),
        (
            "SmolLM2-135M",
            "fp8",
            {"tp_size": 2},
            "tp_size: 2; expected a divisor of 9, the attention heads of the model",
            "use --tp-size 1",
        ),
        (
            "SmolLM2-135M",
            "fp8",
            {"tp_size": 9},
            "tp_size: 9; expected a divisor of 1536, the MLP width of the model",
            "use --tp-size 3",
        ),
        (
            "SmolLM2-135M",
            "fp8",
            {"pp_size": 4},
            "pp_size: 4; expected a divisor of 30, the layers of the model",
            "use --pp-size 3",
        ),
        (
            "SmolLM2-135M",
            "int4_awq",
            {"group_size": 32},
            "group_size: 32; int4_awq takes 64 or 128",
            "use --group-size 64",
        ),
        (
            "SmolLM2-135M",
            "int4_awq",
            {"group_size": 128, "tp_size": 2},
            "tp_size: 2; expected a divisor of 9, the attention heads of the model",
            "use --tp-size 1 --group-size 64",
        ),
        (
            "SmolLM2-135M",
            "w4a8_awq",
            {"group_size": 64},
            (
                "group_size: 64; TensorRT-LLM's kernels for w4a8_awq take 128 "
                "(a checkpoint alone may have it: --stop-after checkpoint)"
            ),
            "use --quant int4_awq",
        ),
        (
            "SmolLM2-135M",
            "int8_wo",
            {"group_size": 64},
            "group_size: 64; int8_wo has no groups to choose",
            "leave --group-size out",
        ),
        (
            "Qwen2.5-7B",
            "int4_awq",
            {"tp_size": 7},
            "tp_size: 7; expected a divisor of 18944, the MLP width of the model",
            "use --tp-size 4",
        ),
        (
            "Llama-3.1-8B",
            "bf16",
            {"tp_size": 128},
            "tp_size: 128; expected at most 64",
            "use --tp-size 32",
        ),
        (
            "GPT-2's vocabulary",
            "int4_awq",
            {},
            (
                "int4_awq: a vocabulary of 50257; expected a multiple of 64, or ModelOpt adds tokens "
                "that mean nothing"
            ),
            "use --quant int8_wo",
        ),
    ],
)
def test_what_cannot_be_built_and_the_nearest_that_can(
    name: str, quant: str, asked: dict[str, object], found: str, hint: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        layout(name, quant, **asked)
    assert (caught.value.message, caught.value.hint) == (found, hint)


def test_another_scheme_is_one_that_the_gpu_runs() -> None:
    model, width = shape(2, 2, 2, 48, 96, 512), 192  # no multiple of 64, as integer weights would need
    with pytest.raises(ConfigError, match="expected multiples of 64") as caught:
        check_layout(get_scheme("tensorrt_llm", "int8_wo"), model, width, linears(model, width), sm=89)
    assert caught.value.hint == "use --quant fp8"
    with pytest.raises(ConfigError) as caught:
        check_layout(get_scheme("tensorrt_llm", "int8_wo"), model, width, linears(model, width), sm=80)
    assert caught.value.hint == "use --quant bf16"


def test_the_inputs_of_a_matrix_that_is_split_by_rows_are_divided_too() -> None:
    """ModelOpt 0.47 refuses it at the export, after the calibration: 1024 / 16 is no multiple of 128."""
    model, width = WIDE_HEADS
    scheme = get_scheme("tensorrt_llm", "int4_awq")
    matrices = linears(model, width)
    with pytest.raises(ConfigError, match=r"a divisor of 1024 / tp_size 16, the width of attention\.qkv"):
        check_layout(scheme, model, width, matrices, group_size=128, tp_size=16)
    assert check_layout(scheme, model, width, matrices, tp_size=16) == 64


def test_a_small_model_on_the_cpu_is_not_split() -> None:
    assert layout("SmolLM2-135M", "int4_awq", backend="openvino") == 64
    with pytest.raises(ConfigError, match="does not split a model") as caught:
        layout("SmolLM2-135M", "f16", backend="openvino", tp_size=2)
    assert caught.value.hint == "use --tp-size 1"


def test_a_split_alone_can_be_checked() -> None:
    model, width = MODELS["SmolLM2-135M"]
    check_parallel(model, width, 3, 10)
    with pytest.raises(ConfigError, match="9, the attention heads") as caught:
        check_parallel(model, width, 2, 1)
    assert caught.value.hint == "use --tp-size 1"


def test_matrices_alone_can_be_checked() -> None:
    model, width = MODELS["SmolLM2-135M"]
    scheme = get_scheme("openvino", "int4_awq")
    assert check_linears(scheme, linears(model, width), None, 1) == 64
    with pytest.raises(ConfigError, match="128; expected a divisor of 576") as caught:
        check_linears(scheme, linears(model, width), 128, 1)
    assert caught.value.hint == "use --group-size 64"


def test_rows_are_packed_in_pairs() -> None:
    scheme = get_scheme("tensorrt_llm", "int4_awq")
    odd = Linear("mlp.proj", 128, 65, is_row_parallel=True)
    with pytest.raises(ConfigError, match=r"mlp\.proj has 65 rows a rank; expected an even number"):
        check_linears(scheme, [odd], 128, 1, needs_kernels=False)


def test_a_checkpoint_that_nothing_fits_is_said_to_be_so() -> None:
    model, width = shape(1, 1, 1, 33, 33, 100), 33
    with pytest.raises(ConfigError, match="int4_awq") as caught:
        check_linears(get_scheme("openvino", "int4_awq"), linears(model, width)[:0], 7, 1)
    assert caught.value.hint == "use --group-size 16"
    with pytest.raises(ConfigError) as caught:
        check_parallel(model.model_copy(update={"num_kv_heads": 3}), width, 65, 1)
    assert caught.value.hint == "use --tp-size 1"
