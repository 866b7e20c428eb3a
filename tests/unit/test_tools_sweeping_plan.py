"""The points of a sweep, their order and names, and what may vary."""

from __future__ import annotations

import pytest
from fakes.manifest import fake_manifest
from fakes.sweeps import fake_plan

from trtb.build.errors import ConfigError
from trtb.tools.sweeping.plan import MAX_RATE, axes_of, default_requests, default_warmup, parse_numbers
from trtb.tools.sweeping.settings import Axis, build_config, deploy_config, parse_axes

GPU = fake_manifest(backend="tensorrt_llm", compute_capability="sm_90")


def test_points_are_the_product_of_settings_lengths_and_load_one_server_after_the_other():
    axes = axes_of([Axis("num_kv_blocks", (100, 200))], ([8, 16], [4]))
    plan = fake_plan(axes=axes, values=[1.0, 4.0])
    points = plan.points()
    assert len(points) == len({point.name for point in points}) == 8
    assert points[0].name == "num_kv_blocks-100_input_tokens-8_concurrency-1"
    assert points[0].lengths == (8, 4)
    assert [point.engine_settings["num_kv_blocks"] for point in points] == [100] * 4 + [200] * 4
    groups = list(plan.groups())
    assert [(settings, len(group)) for settings, group in groups] == [
        ({"num_kv_blocks": 100}, 4),
        ({"num_kv_blocks": 200}, 4),
    ]


def test_without_settings_there_is_one_server():
    plan = fake_plan(axes={"input_tokens": [8], "output_tokens": [4]}, values=[1.0, 4.0])
    assert [(settings, len(points)) for settings, points in plan.groups()] == [({}, 2)]
    assert [point.name for point in plan.points()] == ["concurrency-1", "concurrency-4"]


def test_a_name_is_a_file_name_whatever_the_setting():
    plan = fake_plan(axes={"dtype": ["a/b", "c d"]}, values=[0.5], mode="request_rate")
    assert [point.name for point in plan.points()] == [
        "dtype-a.b_request-rate-0.5",
        "dtype-c.d_request-rate-0.5",
    ]


def test_requests_follow_the_load_unless_they_are_given():
    assert (default_requests("concurrency", 1), default_warmup("concurrency", 1)) == (16, 1)
    assert (default_requests("concurrency", 64), default_warmup("concurrency", 64)) == (256, 64)
    assert (default_requests("request_rate", 4), default_warmup("request_rate", 4)) == (80, 4)
    (point,) = fake_plan(axes={}, values=[8.0], num_requests=10, num_warmup=0).points()
    assert (point.num_requests, point.num_warmup) == (10, 0)


@pytest.mark.parametrize("text", ["10001", "inf", "nan", "0"])
def test_a_rate_has_a_maximum(text: str):
    with pytest.raises(ConfigError, match="numbers above 0, to 10000"):
        parse_numbers("--request-rate", text, is_whole=False, max_value=MAX_RATE)


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "x", "1,,4", "nan", "5000"])
def test_a_load_that_is_none_is_refused(text: str):
    with pytest.raises(ConfigError, match="--concurrency: "):
        parse_numbers("--concurrency", text, is_whole=True)


def test_a_rate_may_be_a_part():
    assert parse_numbers("--request-rate", "0.5,2, 2", is_whole=False) == [0.5, 2.0]


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (["num_kv_blocks"], "expected NAME=VALUE"),
        (["num_kv_blocks="], "expected NAME=VALUE"),
        (["num_kv_blocks=1,9"], "'1'; expected a whole number of 2 or more"),
        (["num_kv_blocks=2,x"], "'x'; expected a whole number"),
        (["num_kv_blocks=3", "num-kv-blocks=2"], "given twice"),
        (["deterministic=perhaps"], "true or false"),
        (["num_kv_block=1"], "no such setting"),
        (["enable_kv_cache_reuse=true"], "of TensorRT-LLM"),
    ],
)
def test_a_setting_that_is_none_is_refused_before_anything_starts(pairs: list[str], message: str):
    with pytest.raises(ConfigError, match=message):
        parse_axes(pairs, fake_manifest())


def test_the_nearest_setting_is_named():
    with pytest.raises(ConfigError) as caught:
        parse_axes(["num_kv_block=1"], fake_manifest())
    assert caught.value.hint == "did you mean num_kv_blocks?"


def test_settings_of_tensorrt_llm_are_for_its_engines_and_checked():
    (axis,) = parse_axes(["batch_scheduler_policy=max_utilization,guaranteed_no_evict"], GPU)
    assert axis.values == ("max_utilization", "guaranteed_no_evict")
    config = deploy_config({"batch_scheduler_policy": "max_utilization"}, 50, deterministic=False)
    assert (config.trtllm.batch_scheduler_policy, config.num_kv_blocks) == ("max_utilization", 50)
    with pytest.raises(ConfigError, match="expected"):
        parse_axes(["batch_scheduler_policy=fast"], GPU)


def test_a_setting_of_the_server_wins_over_the_option_and_numbers_stay_numbers():
    (axis,) = parse_axes(["num-kv-blocks=300,300,200"], fake_manifest())
    assert axis == Axis("num_kv_blocks", (300, 200))
    config = deploy_config({"num_kv_blocks": 300, "deterministic": True}, 50, deterministic=False)
    assert (config.num_kv_blocks, config.deterministic) == (300, True)


def test_a_build_is_as_the_engines_but_for_the_setting():
    built = {"quant": "int8_wo", "dtype": "f16", "max_num_tokens": 512, "backend_options": {}}
    manifest = fake_manifest(build_config=built)
    config = build_config({"max_num_tokens": 256, "num_kv_blocks": 9}, manifest)
    assert (config.max_num_tokens, config.quant, config.dtype) == (256, "int8_wo", "f16")
    other = build_config({"quant": "bf16"}, manifest)
    assert (other.quant, other.dtype, other.max_num_tokens) == ("bf16", "auto", 512)
    with pytest.raises(ConfigError, match="max_num_tokens"):
        build_config({"max_num_tokens": 1}, manifest)
