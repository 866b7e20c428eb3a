"""What a person asked of a sweep is refused before anything starts, where it cannot be had."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from fakes.manifest import fake_manifest

from trtb.build.errors import ConfigError
from trtb.build.store import StoredEngine
from trtb.tools.sweeping import job
from trtb.tools.sweeping.job import SweepRequest, make_job
from trtb.tools.sweeping.perf_analyzer import PerfAnalyzer

ASKED = SweepRequest(
    engine=None,
    endpoint=None,
    concurrency=None,
    request_rate=None,
    input_tokens=None,
    output_tokens=None,
    input_path=None,
    request_count=None,
    warmup_request_count=None,
    repeats=3,
    max_spread=0.1,
    point_timeout_s=600.0,
    latency_limit_ms=None,
    best="throughput",
    settings=(),
    output=None,
    perf_analyzer=None,
    num_kv_blocks=None,
    deterministic=False,
    device_ids=None,
    launch="auto",
    start_timeout_s=None,
    seed=1,
)


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let there be one engine, and a perf_analyzer."""
    stored = StoredEngine(tmp_path, fake_manifest())
    monkeypatch.setattr(job, "EngineStore", lambda _: SimpleNamespace(resolve=lambda _: stored))
    monkeypatch.setattr(job, "find_perf_analyzer", lambda *_: PerfAnalyzer(Path("/pa"), "2.51.0", {}))
    monkeypatch.setattr(job.hardware, "probe", lambda: None)
    monkeypatch.setattr(job, "describe_machine", lambda _: "a machine")


def made(tmp_path: Path, **changes: object) -> job.SweepJob:
    values = {name: getattr(ASKED, name) for name in SweepRequest.__slots__}
    return make_job(SweepRequest(**{**values, **changes}), tmp_path, lambda _: None)


def test_prompts_have_their_lengths_where_none_was_typed(tmp_path: Path):
    plan = made(tmp_path).plan
    assert (plan.axes, plan.values) == ({"input_tokens": [128], "output_tokens": [32]}, [1, 4, 16, 64])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"settings": ("quant=int8_wo,zz",)}, "quant: 'zz'; the openvino backend builds"),
        ({"settings": ("num_kv_blocks=9",), "num_kv_blocks": 8}, "--num-kv-blocks, --set num_kv_blocks: "),
        ({"settings": ("deterministic=true,false",), "deterministic": True}, "--deterministic, --set"),
        ({"input_path": Path("in.jsonl"), "input_tokens": "8"}, "--input-tokens: of random prompts"),
        ({"request_rate": "1.0000001,1.0000002"}, "request-rate-1: 2 points of that name"),
        ({"request_rate": "1000000"}, "to 10000"),
        ({"concurrency": "1", "request_count": 1_000_000}, "1000001 requests in a run; expected 1000000"),
    ],
)  # fmt: skip
def test_what_cannot_be_had_is_refused(tmp_path: Path, changes: dict[str, object], words: str):
    with pytest.raises(ConfigError) as caught:
        made(tmp_path, **changes)
    assert words in caught.value.message
