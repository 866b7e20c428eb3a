"""The check of a layout accepts exactly what works by every rule, and what it names instead works too."""

from __future__ import annotations

import re

from hypothesis import example, given
from hypothesis import strategies as st

from trtb.build.checkpoints.hf_checkpoint import Linear
from trtb.build.errors import ConfigError
from trtb.build.manifest import ModelShape
from trtb.build.quantization import SCHEMES, QuantScheme, check_layout, get_scheme

TRTLLM = [scheme for scheme in SCHEMES if scheme.backend == "tensorrt_llm"]
OPTION = re.compile(r"--(group-size|tp-size|pp-size) (\d+)|--(quant) (\w+)")


@st.composite
def models(draw: st.DrawFn) -> tuple[ModelShape, int]:
    num_kv_heads = draw(st.sampled_from([1, 2, 3, 4, 8]))
    num_heads = num_kv_heads * draw(st.sampled_from([1, 2, 3, 4, 7]))
    head_dim = draw(st.sampled_from([16, 33, 64, 80, 128]))
    own_width = num_heads * head_dim
    hidden_size = draw(st.sampled_from([own_width, own_width * 2, 576, 1024]))
    model = ModelShape(
        architecture="llama",
        num_layers=draw(st.sampled_from([1, 2, 12, 30, 80])),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        hidden_size=hidden_size,
        vocab_size=draw(st.sampled_from([501, 512, 49152, 128256])),
        max_position_embeddings=2048,
    )
    return model, draw(st.sampled_from([hidden_size * 2, 1536, 18944, 28672, 341]))


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


def works(
    scheme: QuantScheme,
    model: ModelShape,
    width: int,
    group_size: int | None,
    tp: int,
    pp: int,
    *,
    is_compiled: bool,
) -> bool:
    """Lay every rank's matrices out as (rows, columns) and look at them; nothing is shared with the check."""
    heads, kv_heads, head_dim, hidden = model.num_heads, model.num_kv_heads, model.head_dim, model.hidden_size
    if tp > 64 or any(size % tp for size in (heads, hidden, width, model.vocab_size)):
        return False
    if model.num_layers % pp or (kv_heads % tp and tp % kv_heads):
        return False
    kv_of_rank = max(kv_heads, tp) // tp
    ranks = [
        ((heads // tp + 2 * kv_of_rank) * head_dim, hidden),
        (hidden, heads // tp * head_dim),
        (width // tp, hidden),
        (hidden, width // tp),
    ]
    split_columns = {hidden // tp, heads * head_dim // tp, width // tp}
    is_awq = scheme.name in ("int4_awq", "w4a8_awq")
    if is_awq and (model.vocab_size % 64 or any(rows % 2 for rows, _ in ranks)):
        return False
    is_integer = is_awq or scheme.name in ("int8_wo", "int4_wo")
    if is_compiled and is_integer and any(rows % 64 or columns % 64 for rows, columns in ranks):
        return False
    of_w4a8 = {128} if is_compiled else {64, 128}
    groups = {"int4_awq": {64, 128}, "w4a8_awq": of_w4a8, "nvfp4": {16}}.get(scheme.name, {None})
    if group_size not in groups:
        return False
    return group_size is None or all(columns % group_size == 0 for columns in split_columns)


FEW_KV_HEADS = ModelShape(
    architecture="llama",
    num_layers=2,
    num_heads=8,
    num_kv_heads=1,
    head_dim=16,
    hidden_size=1024,
    vocab_size=512,
    max_position_embeddings=2048,
)
WIDE_HEADS = FEW_KV_HEADS.model_copy(update={"num_kv_heads": 2, "head_dim": 128, "hidden_size": 576})


@given(
    drawn=models(),
    scheme=st.sampled_from(TRTLLM),
    group_size=st.sampled_from([None, 16, 64, 128, 256]),
    tp_size=st.sampled_from([1, 2, 3, 4, 7, 8, 16, 28, 65]),
    pp_size=st.sampled_from([1, 2, 3, 4, 5]),
    is_compiled=st.booleans(),
)
# 96 rows a rank: 4 query heads and its copies of the KV head; without the copies they would be 64
@example((FEW_KV_HEADS, 2048), get_scheme("tensorrt_llm", "int8_wo"), None, 2, 1, True)
# half of 576 columns is no multiple of 64, and only matrices whose inputs are split have half of them
@example((WIDE_HEADS, 1536), get_scheme("tensorrt_llm", "int8_wo"), None, 2, 1, True)
def test_exactly_what_works_is_accepted_and_what_is_named_works(
    drawn: tuple[ModelShape, int],
    scheme: QuantScheme,
    group_size: int | None,
    tp_size: int,
    pp_size: int,
    is_compiled: bool,
) -> None:
    model, width = drawn
    matrices = linears(model, width)

    def is_working(quant: QuantScheme, size: int | None, tp: int, pp: int) -> bool:
        return works(quant, model, width, size, tp, pp, is_compiled=is_compiled)

    def check(quant: QuantScheme, size: int | None, tp: int, pp: int) -> int | None:
        return check_layout(
            quant,
            model,
            width,
            matrices,
            group_size=size,
            tp_size=tp,
            pp_size=pp,
            needs_kernels=is_compiled,
        )

    own = {"int4_awq": (128, 64), "w4a8_awq": (128, 64), "nvfp4": (16,)}.get(scheme.name, (None,))
    tried = own if group_size is None else (group_size,)
    working = [size for size in tried if is_working(scheme, size, tp_size, pp_size)]
    try:
        found = check(scheme, group_size, tp_size, pp_size)
    except ConfigError as exc:
        assert not working
        hint = exc.hint
    else:
        assert working
        assert found == working[0]
        return
    if hint == "this checkpoint cannot be split or quantised so":
        assert not any(
            is_working(other, size, tp, 1)  # one stage always works if several do
            for other in TRTLLM
            for size in (None, 16, 64, 128)
            for tp in range(1, 65)
        )
        return
    named = {number or name: size or quant for number, size, name, quant in OPTION.findall(hint)}
    wanted = None if hint.endswith("without --group-size") or hint == "leave --group-size out" else group_size
    assert named or wanted != group_size
    other = get_scheme("tensorrt_llm", named.get("quant", scheme.name))
    size = int(named["group-size"]) if "group-size" in named else wanted
    tp, pp = int(named.get("tp-size", tp_size)), int(named.get("pp-size", pp_size))
    assert is_working(other, check(other, size, tp, pp), tp, pp)
