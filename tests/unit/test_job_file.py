"""Job files: read strictly, with lines; flags win; a run's own job file says the run again."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from fakes.manifest import fake_manifest
from hypothesis import given
from hypothesis import strategies as st

from trtb.build.errors import ConfigError, EngineNotFoundError
from trtb.build.manifest import EngineManifest
from trtb.build.store import EngineStore, StoredEngine
from trtb.runner.job_file import Job, read_job_file, to_yaml
from trtb.runner.options import RunOptions
from trtb.runner.run_folder import RunRecord
from trtb.tools.run_options import Typed, choose_options

DEFAULTS: dict[str, Any] = {
    option.name: option.default
    for option in fields(RunOptions)
    if option.name not in ("engine_dir", "manifest")
} | {"input_path": None, "output": None, "engine": None}


@pytest.fixture
def store(tmp_path: Path) -> EngineStore:
    return EngineStore(tmp_path / "home")


def commit(store: EngineStore, name: str, **changes: Any) -> StoredEngine:
    manifest = fake_manifest(**{"name": name, "engine_id": name.encode().hex().ljust(64, "0"), **changes})
    with store.stage() as staged:
        (staged / "model.bin").write_text(name)
        return store.commit(staged, manifest)


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read_job_file(write(tmp_path, text))
    assert caught.value.exit_code == 2
    return caught.value.message


def choose(store: EngineStore, config: Path | None, **typed: Any) -> RunOptions:
    return choose_options(Typed(DEFAULTS | typed, frozenset(typed)), config, store)


def make_record(options: RunOptions) -> RunRecord:
    return RunRecord(
        run_id="r",
        state="finished",
        input_path=str(options.input_path.resolve()),
        input_sha256="0" * 64,
        input_bytes=1,
        total=1,
        engine_id=options.manifest.engine_id,
        engine=options.manifest.reference,
        settings=options.settings(),
        job=options.job(),
        versions={},
        host="h",
        created_at="",
        created_s=0,
        updated_at="",
    )


def test_every_key_sets_its_option(tmp_path: Path) -> None:
    text = """
    schema_version: 1
    input: {path: in.jsonl, limit: 5, on_invalid: fail, model_aliases: [a, b], strict_params: true,
            max_line_bytes: 1000}
    inference: {engine: e@1, batch_size: 7, default_max_tokens: 9, deterministic: true, num_kv_blocks: 40,
                kv_cache_dtype: int8, kv_cache_gb: 0.5, kv_host_cache_gb: 8, kv_reuse: true,
                kv_retention: false,
                endpoints: ["127.0.0.1:8001"], device_ids: "0,1;2,3", launch: docker,
                model_path: m, max_seq_len: 512,
                trtllm_parameters: {enable_kv_cache_reuse: false, kv_cache_free_gpu_mem_fraction: 0.5}}
    scheduler: {timeout_ms: 1500, retry_times: 0, grace_ms: 0, server_wait_ms: 2000, start_timeout_ms: 4000,
                queue_size: 32, order: prefix, dedup: false, canary: 3, max_failure_rate: 0.25}
    output: {path: /o/out.jsonl, follow: f.jsonl, overwrite: true}
    cache: {enabled: true, capacity_gb: 2.5, eviction_policy: lru, sync_interval_ms: 250, ttl_hours: 12}
    monitoring: {enabled: false}
    """
    job = read_job_file(write(tmp_path, text))
    assert job.options == {
        "input_path": tmp_path / "in.jsonl",
        "limit": 5,
        "on_invalid": "fail",
        "model_aliases": ("a", "b"),
        "strict_params": True,
        "max_line_bytes": 1000,
        "engine": "e@1",
        "concurrency": 7,
        "default_max_tokens": 9,
        "deterministic": True,
        "num_kv_blocks": 40,
        "kv_cache_dtype": "int8",
        "kv_cache_gb": 0.5,
        "kv_host_cache_gb": 8,
        "kv_reuse": True,
        "kv_retention": False,
        "trtllm_parameters": ("enable_kv_cache_reuse=false", "kv_cache_free_gpu_mem_fraction=0.5"),
        "device_ids": ("0,1", "2,3"),
        "launch": "docker",
        "endpoints": ("127.0.0.1:8001",),
        "queue_size": 32,
        "order": "prefix",
        "dedup": False,
        "canary": 3,
        "max_failure_rate": 0.25,
        "request_timeout_s": 1.5,
        "max_attempts": 1,
        "grace_s": 0,
        "server_wait_s": 2.0,
        "start_timeout_s": 4.0,
        "output": Path("/o/out.jsonl"),
        "follow": tmp_path / "f.jsonl",
        "overwrite": True,
        "cache": True,
        "cache_capacity_gb": 2.5,
        "cache_ttl_hours": 12,
        "cache_sync_interval_s": 0.25,
    }
    assert (job.model_path, job.max_seq_len) == ("m", 512)
    assert job.options.keys() == DEFAULTS.keys(), "an option of the run has no key"


@pytest.mark.parametrize("text", ["", "# nothing\n", "input:\ncache:\n", "scheduler: {timeout_ms: null}\n"])
def test_what_is_absent_or_null_sets_nothing(tmp_path: Path, text: str) -> None:
    assert read_job_file(write(tmp_path, text)).options == {}


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("input:\n  path: a\n  limt: 3\n", 3, "input.limt: unknown key; the nearest known one is limit"),
        ("\ninferense: {}\n", 2, "inferense: unknown key; the nearest known one is inference"),
        ("inference:\n  concurrency: 3\n", 2, "the nearest known one is inference.batch_size"),
        ("batch_size: 3\n", 1, "the nearest known one is inference.batch_size"),
        ("output:\n  zzz: 3\n", 2, "expected one of path, follow, overwrite"),
        ("scheduler:\n  timeout_ms: '300'\n", 2, "scheduler.timeout_ms: '300'; expected a valid number"),
        ("scheduler:\n  retry_times: true\n", 2, "scheduler.retry_times: true; expected"),
        ("input:\n  on_invalid: skip\n", 2, "'refuse' or 'fail'"),
        ("inference:\n  endpoints:\n  - a:1\n  - 3\n", 4, "inference.endpoints.1: 3; expected"),
        ("- a\n", 1, "the file: a list; expected keys with values"),
        ("cache: 3\n", 1, "cache: 3; expected keys with values"),
        ("cache:\n  enabled: 0\n", 2, "cache.enabled: 0; expected"),
        ("cache:\n  capacity_gb: 0\n", 2, "cache.capacity_gb: 0; expected"),
        ("cache:\n  eviction_policy: fifo\n", 2, "cache.eviction_policy: 'fifo'; expected 'lru'"),
        ("cache:\n  sync_interval_ms: -1\n", 2, "cache.sync_interval_ms: -1; expected"),
        ("cache:\n  ttl_hours: .inf\n", 2, "cache.ttl_hours: inf; expected"),
        ("cache:\n  ttl_hours: 1000001\n", 2, "cache.ttl_hours: 1000001; expected"),
        ("inference:\n  kv_cache_gb: 1000001\n", 2, "inference.kv_cache_gb: 1000001; expected"),
        ("inference:\n  kv_host_cache_gb: 1.0e+300\n", 2, "inference.kv_host_cache_gb: 1e+300; expected"),
        ("scheduler:\n  grace_ms: 1.0e+12\n", 2, "scheduler.grace_ms: 1000000000000.0; expected"),
        ("cache:\n  capacity_gb: 4001\n", 2, "cache.capacity_gb: 4001; expected"),
        ("cache:\n  sync_interval_ms: 3600001\n", 2, "cache.sync_interval_ms: 3600001; expected"),
        ("schema_version: 2\n", 1, "schema_version: 2; expected 1"),
    ],
)
def test_a_fault_is_told_with_its_line(tmp_path: Path, text: str, line: int, words: str) -> None:
    message = refusal(tmp_path, text)
    assert f"job.yaml:{line}: " in message
    assert words in message


@pytest.mark.parametrize(
    ("section", "key", "value", "expected"),
    [
        ("monitoring", "enabled", "true", "false"),
    ],
)
def test_a_key_of_a_later_version_is_refused_not_ignored(
    tmp_path: Path, section: str, key: str, value: str, expected: str
) -> None:
    message = refusal(tmp_path, f"{section}:\n  {key}: {value}\n")
    assert f"job.yaml:2: {section}.{key}: " in message
    assert f"expected {expected}, for " in message


def test_every_fault_is_told_at_once_in_the_order_of_lines(tmp_path: Path) -> None:
    message = refusal(tmp_path, "scheduler:\n  order: sideways\n  retries: 2\ncache:\n  enabled: 0\n")
    assert [int(number) for number in re.findall(r"job\.yaml:(\d+): ", message)] == [2, 3, 5]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("input: {path: a}\noutput: {}\ninput: {}\n", "job.yaml:3: input: is in line 1 already"),
        ("input:\n  path: a\n  path: a\n", "job.yaml:3: input.path: is in line 2 already"),
        ("input: [\n", "not YAML"),
        ("a: 1\n---\nb: 2\n", "not YAML"),
        ("a: !!python/object/apply:os.getcwd []\n", "not YAML"),
        ("a: 2026-99-99\n", "not YAML"),
        ("a: \x01\n", "not YAML"),
        ("[" * 5000, "not YAML"),
    ],
)
def test_what_is_no_plain_yaml_is_refused(tmp_path: Path, text: str, words: str) -> None:
    assert words in refusal(tmp_path, text)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_job_file(tmp_path / "absent.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"input: {path: \xe9}\n")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_job_file(tmp_path / "latin.yaml")


@given(text=st.text(alphabet="abc:-[]{}&*!|>'\"#%@,? \n\t0.1~<\x00é", max_size=60))
def test_any_text_is_read_or_refused(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(text, encoding="utf-8")
    try:
        read_job_file(path)
    except ConfigError as exc:
        assert str(path) in exc.message


def test_what_is_typed_wins_over_the_file_and_that_over_defaults(tmp_path: Path, store: EngineStore) -> None:
    commit(store, "a")
    config = write(tmp_path, "input: {path: in.jsonl}\ninference: {batch_size: 3, default_max_tokens: 8}\n")
    options = choose(store, config, concurrency=64)
    assert (options.concurrency, options.default_max_tokens, options.max_attempts) == (64, 8, 3)
    assert options.input_path == tmp_path / "in.jsonl"
    assert options.output == tmp_path / "in.out.jsonl"


def test_an_input_must_be_named_somewhere(tmp_path: Path, store: EngineStore) -> None:
    with pytest.raises(ConfigError, match="INPUT_PATH"):
        choose(store, write(tmp_path, "output: {path: o.jsonl}\n"))


def test_deterministic_and_an_endpoint_contradict_each_other_wherever_they_stand(
    tmp_path: Path, store: EngineStore
) -> None:
    config = write(tmp_path, "inference: {deterministic: true}\n")
    with pytest.raises(ConfigError, match="--deterministic"):
        choose(store, config, input_path=tmp_path / "i", endpoints=("h:1",))


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("[]", ()),
        ("3", ("3",)),
        ("[0, 1]", ("0,1",)),
        ("[[0, 1], [2, 3]]", ("0,1", "2,3")),
        ("0;1", ("0", "1")),
    ],
)
def test_gpus_may_stand_as_text_or_as_lists(tmp_path: Path, text: str, read: tuple[str, ...]) -> None:
    job = read_job_file(write(tmp_path, f"inference: {{device_ids: {text}}}"))
    assert job.options == {"device_ids": read}


def test_gpus_that_are_none_are_refused_with_their_line(tmp_path: Path) -> None:
    message = refusal(tmp_path, "inference:\n  batch_size: 3\n  device_ids: [0, x]\n")
    assert "job.yaml:3: inference.device_ids: 'x'" in message


def test_gpus_of_the_job_file_are_cut_into_servers_and_are_not_for_servers_of_others(
    tmp_path: Path, store: EngineStore
) -> None:
    commit(
        store,
        "gpu",
        backend="tensorrt_llm",
        compute_capability="sm_90",
        build_config={"tp_size": 2, "pp_size": 1},
    )
    path = write(tmp_path, "input: {path: in.jsonl}\ninference: {device_ids: [0, 1, 2, 3]}\n")
    assert choose(store, path).device_ids == ("0,1", "2,3")
    assert choose(store, path, start_timeout_s=None).start_timeout_s == 300
    with pytest.raises(ConfigError, match="has 2 ranks"):
        choose(store, path, device_ids=("0",))
    with pytest.raises(ConfigError, match="--endpoint names one that is running"):
        choose(store, path, endpoints=("h:1",))
    commit(store, "cpu")
    with pytest.raises(ConfigError, match="runs on the CPU"):
        choose(store, path, engine="cpu")


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ({"num_kv_blocks": 40, "kv_cache_gb": 1.0}, "they are the same pool"),
        ({"kv_host_cache_gb": 1.0}, "KV cache is in host memory as it is"),
        ({"kv_reuse": False, "order": "prefix"}, "--order: prefix, and --no-kv-reuse"),
        ({"kv_reuse": False, "endpoints": ("h:1",)}, "--no-kv-reuse: the KV cache is the server's own"),
        ({"kv_cache_gb": 1.0, "endpoints": ("h:1",)}, "--kv-cache-gb: the KV cache is the server's own"),
        ({"kv_cache_dtype": "int8", "deterministic": True}, "with 8 bits answers depend on company"),
        ({"kv_cache_dtype": "int8", "endpoints": ("h:1",)}, "--kv-cache-dtype: the KV cache is the"),
        ({"kv_cache_gb": 0.001}, "is 0 blocks of 32 tokens"),
    ],
)
def test_what_is_asked_of_the_kv_cache_is_checked_before_anything_starts(
    tmp_path: Path, store: EngineStore, typed: dict[str, Any], said: str
) -> None:
    commit(store, "cpu")
    with pytest.raises(ConfigError) as caught:
        choose(store, None, input_path=tmp_path / "in.jsonl", **typed)
    assert said in caught.value.message
    assert caught.value.hint


def test_the_result_cache_is_refused_without_dedup_also_of_a_job_file(
    tmp_path: Path, store: EngineStore
) -> None:
    commit(store, "cpu")
    values = {name: value for name, value in DEFAULTS.items() if name not in ("cache", "dedup")}
    config = write(tmp_path, "input: {path: in.jsonl}\ncache: {enabled: true}\n")
    typed = Typed({**values, "cache": False, "dedup": False}, frozenset({"dedup"}))
    with pytest.raises(ConfigError, match="--cache: with --no-dedup"):
        choose_options(typed, config, store)
    config = write(tmp_path, "input: {path: in.jsonl}\ncache: {enabled: true}\nscheduler: {dedup: false}\n")
    typed = Typed({**values, "cache": False, "dedup": None}, frozenset())
    with pytest.raises(ConfigError, match="--cache: with --no-dedup"):
        choose_options(typed, config, store)


def test_a_pool_by_its_size_is_the_pool_of_the_plan_too(tmp_path: Path, store: EngineStore) -> None:
    commit(store, "cpu")
    options = choose(store, None, input_path=tmp_path / "in.jsonl", kv_cache_gb=0.1)
    assert (options.num_kv_blocks, options.num_blocks_asked) == (None, 10**8 // (46_080 * 32))


def test_a_parameter_of_the_gpu_server_is_checked_where_it_stands(tmp_path: Path) -> None:
    text = "inference:\n  trtllm_parameters:\n    {}\n    decoding_mode: top_k\n"
    message = refusal(tmp_path, text.format("kv_cache_free_gpu_memory_fraction: 0.5"))
    assert "job.yaml:3: inference.trtllm_parameters: parameter kv_cache_free_gpu_memory_fraction" in message
    assert "did you mean kv_cache_free_gpu_mem_fraction?" in message
    message = refusal(tmp_path, text.format("max_beam_width: true"))
    assert "job.yaml:3: inference.trtllm_parameters: parameter max_beam_width: 'true'" in message
    assert read_job_file(write(tmp_path, text.format("max_beam_width: 1"))).options == {
        "trtllm_parameters": ("max_beam_width=1", "decoding_mode=top_k")
    }


@pytest.mark.parametrize(
    ("pairs", "endpoints", "said"),
    [
        (("cuda_graph_mode=true",), (), "a@1 is an engine of the openvino backend"),
        (("cuda_graph_mode=true",), ("h:1",), "--endpoint names one that is running"),
        (("cuda_graph_mode",), (), "expected NAME=VALUE"),
        (("cuda_graph_mode=true", "cuda_graph_mode=false"), (), "cuda_graph_mode: given twice"),
        (("cuda_graph_mode=maybe",), (), "expected true or false"),
    ],
)
def test_parameters_of_the_gpu_server_that_cannot_be_used_are_refused(
    tmp_path: Path, store: EngineStore, pairs: tuple[str, ...], endpoints: tuple[str, ...], said: str
) -> None:
    commit(store, "a")
    with pytest.raises(ConfigError) as caught:
        choose(store, None, input_path=tmp_path / "i", trtllm_parameters=pairs, endpoints=endpoints)
    assert said in caught.value.message


def test_parameters_of_the_gpu_server_reach_a_run_of_a_gpu_engine(tmp_path: Path, store: EngineStore) -> None:
    commit(store, "a", backend="tensorrt_llm")
    options = choose(store, None, input_path=tmp_path / "i", trtllm_parameters=("cuda_graph_mode=true",))
    assert options.trtllm_parameters == ("cuda_graph_mode=true",)
    assert options.capabilities().guided
    pairs = ("guided_decoding_backend=off",)
    off = choose(store, None, input_path=tmp_path / "i", trtllm_parameters=pairs)
    assert not off.capabilities().guided


def test_a_model_finds_its_engine(tmp_path: Path, store: EngineStore) -> None:
    engine = commit(store, "a")
    model = engine.manifest.checkpoint.name
    config = write(tmp_path, f"inference: {{model_path: {model}}}\n")
    assert choose(store, config, input_path=tmp_path / "i").manifest.reference == "a@1"


def test_a_model_with_several_engines_needs_the_engine_named(tmp_path: Path, store: EngineStore) -> None:
    model = commit(store, "a").manifest.checkpoint.name
    commit(store, "b")
    config = write(tmp_path, f"inference: {{model_path: {model}}}\n")
    with pytest.raises(EngineNotFoundError, match="several engines"):
        choose(store, config, input_path=tmp_path / "i")
    assert choose(store, config, input_path=tmp_path / "i", engine="b").manifest.name == "b"


def test_an_engine_of_another_model_or_length_is_refused(tmp_path: Path, store: EngineStore) -> None:
    commit(store, "a")
    with pytest.raises(ConfigError, match="model_path"):
        choose(
            store, write(tmp_path, "inference: {engine: a, model_path: other}\n"), input_path=tmp_path / "i"
        )
    with pytest.raises(ConfigError, match="max_seq_len: 77"):
        choose(store, write(tmp_path, "inference: {max_seq_len: 77}\n"), input_path=tmp_path / "i")


def sampled_options(manifest: EngineManifest) -> st.SearchStrategy[RunOptions]:
    seconds = st.integers(1, 10**7).map(lambda ms: ms / 1e3)
    names = st.lists(st.text(alphabet="abc*: -#'\"é", min_size=1), max_size=3).map(tuple)
    return st.builds(
        RunOptions,
        input_path=st.just(Path("/d/in put.jsonl")),
        output=st.just(Path("/d/out.jsonl")),
        engine_dir=st.just(Path("/e")),
        manifest=st.just(manifest),
        endpoints=names,
        concurrency=st.integers(1, 9999),
        request_timeout_s=seconds,
        max_attempts=st.integers(1, 9),
        server_wait_s=seconds,
        start_timeout_s=st.floats(1, 900),
        grace_s=seconds,
        on_invalid=st.sampled_from(["refuse", "fail"]),
        model_aliases=names,
        strict_params=st.booleans(),
        default_max_tokens=st.integers(1, 9999),
        max_line_bytes=st.integers(1, 1 << 40),
        limit=st.none() | st.integers(1, 9999),
        deterministic=st.booleans(),
        num_kv_blocks=st.none() | st.integers(2, 9999),
        kv_cache_dtype=st.sampled_from(["auto", "int8"]),
        kv_cache_gb=st.none() | st.floats(0.001, 1e3),
        kv_host_cache_gb=st.none() | st.floats(0, 1e3),
        kv_reuse=st.none() | st.booleans(),
        kv_retention=st.booleans(),
        trtllm_parameters=st.sampled_from([(), ("gpu_device_ids=0,1;2,3", "cuda_graph_mode=true")]),
        cache=st.booleans(),
        cache_capacity_gb=st.floats(0.001, 4000),
        cache_ttl_hours=st.none() | st.floats(0.001, 1e4),
        cache_sync_interval_s=st.integers(1, 3_600_000).map(lambda ms: ms / 1e3),
    )


@given(data=st.data())
def test_the_job_file_of_a_run_says_its_options_again(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    options = data.draw(sampled_options(fake_manifest()))
    path = tmp_path_factory.getbasetemp() / "written.yaml"
    path.write_bytes(to_yaml(make_record(options)))
    job = read_job_file(path)
    assert job.options.pop("engine") == options.manifest.reference
    for name, value in job.options.items():
        kept = getattr(options, name)
        assert value == (pytest.approx(kept, abs=1e-8) if isinstance(kept, float) else kept)
    left_out = {name for name in DEFAULTS if name not in job.options and name != "engine"}
    assert all(getattr(options, name) == DEFAULTS[name] for name in left_out)


def test_a_repeated_run_neither_follows_nor_replaces_what_it_repeats(tmp_path: Path) -> None:
    options = RunOptions(
        Path("i"), Path("o"), Path("e"), fake_manifest(), follow=Path("f.jsonl"), overwrite=True
    )
    written = yaml.safe_load(to_yaml(make_record(options)))
    assert written["output"].keys() == {"path"}
    assert Path(written["input"]["path"]).is_absolute()
    Job.model_validate(written)
