"""An acceptance with parts that are not there: each step fails as it should, and the evidence says so."""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest
from fakes.commands import FakeChild, FakeCommands
from fakes.machine import fake_gpu, fake_hardware
from fakes.manifest import fake_manifest
from fakes.triton import response
from tritonclient.grpc import service_pb2

from trtb.build.errors import (
    BuildError,
    ConfigError,
    HardwareError,
    StoreError,
    ToolchainMissingError,
    TrtbError,
)
from trtb.build.manifest import QualityReport
from trtb.build.store import EngineStore, StoredEngine
from trtb.runner.acceptance import (
    accept,
    accept_build,
    accept_evidence,
    accept_lines,
    accept_requests,
    accept_reuse,
    accept_serve,
    accept_traces,
)
from trtb.runner.acceptance.accept_commands import Commands
from trtb.runner.acceptance.accept_evidence import Redactor, StepEvidence
from trtb.runner.acceptance.accept_state import AcceptOptions, AcceptState, Served
from trtb.runner.acceptance.accept_step import NotApplicable, Step, StepFailedError, StepRunner
from trtb.runner.errors import (
    LedgerError,
    QueueFullError,
    ReconcileError,
    RunInterruptedError,
    ServerStartError,
)
from trtb.runner.launching.place import DockerPlace, EmbeddedPlace
from trtb.runner.options import RunOptions
from trtb.runner.report import Durations, FailureGroup, RunReport
from trtb.runner.transport import Chunk, EngineRequest
from trtb.runner.triton_messages import read_chunk, serialise

LOST = {"error": {"code": "server_lost", "message": "gone", "hint": "again"}}
NO_TIMES = Durations(p50_ms=None, p90_ms=None, p99_ms=None, max_ms=None)


@pytest.fixture
def state(tmp_path: Path) -> AcceptState:
    """What the steps share, with an engine and a server that are not there."""
    home, work_dir = tmp_path / "home", tmp_path / "home" / "cache" / "accept" / "1"
    work_dir.mkdir(parents=True)
    options = AcceptOptions(("trtb",), home, tmp_path / "evidence", num_requests=40)
    made = AcceptState(options, "openvino", ("int8_wo", "f16"), work_dir, FakeCommands())  # type: ignore[arg-type]
    engine = StoredEngine(home / "engines" / "tiny", fake_manifest())
    made.engines = {"int8_wo": engine}
    made.served = Served(FakeChild(), engine, "127.0.0.1:1", "http://127.0.0.1:2/metrics")  # type: ignore[arg-type]
    return made


def report_of(options: RunOptions, **fields: Any) -> RunReport:
    total = len(accept_lines.read_lines(options.input_path))
    values: dict[str, Any] = {
        "run_id": "r", "state": "finished", "output": "o", "input_sha256": "0", "engine": "tiny@3",
        "engine_id": "e", "total": total, "completed": total, "failed": 0, "remaining": 0, "resumed": 0,
        "truncated": 0, "finish_reasons": {"stop": total}, "failures": [], "attempts": total,
        "server_restarts": 0, "prompt_tokens": 9, "completion_tokens": 4, "duration_s": 1.0,
        "requests_per_s": 1.0, "output_tokens_per_s": 4.0, "max_in_flight": options.concurrency,
        "concurrency": options.concurrency, "request_latency": NO_TIMES, "ttft": NO_TIMES, "is_exact": None,
        "warnings": [],
    }  # fmt: skip
    return RunReport(**{**values, **fields})


def answering(*texts: str, reason: str = "stop", **fields: Any) -> Any:
    """Return a run that answers its lines with these texts."""

    def run(options: RunOptions) -> RunReport:
        bodies = [{"choices": [{"message": {"content": text}, "finish_reason": reason}]} for text in texts]
        output = b"".join(orjson.dumps({"response": {"body": body}}) + b"\n" for body in bodies)
        options.output.write_bytes(output)
        return report_of(options, **fields)

    return run


def failing(code: str) -> dict[str, Any]:
    return {"completed": 0, "failed": 1, "failures": [FailureGroup(code=code, count=1, samples=["a"])]}


# --- the steps' order and ends


def fail(error: BaseException) -> Any:
    def work(figures: dict[str, Any]) -> None:
        figures["before"] = 1
        raise error

    return work


def run_steps(*steps: Step) -> dict[str, StepEvidence]:
    runner = StepRunner(on_begin=lambda _: None, on_end=lambda _: None)
    runner.run(steps)
    return {record.name: record for record in runner.done}


@pytest.mark.parametrize(
    ("error", "code", "exit_code"),
    [
        (HardwareError("no GPU", "get one"), "machine_does_not_fit", 4),
        (BuildError("step"), "build_failed", 5),
        (ToolchainMissingError("none"), "toolchain_missing", 5),
        (StoreError("full"), "store_error", 5),
        (ServerStartError("port"), "server_start_failed", 6),
        (LedgerError("disk"), "ledger_error", 7),
        (ReconcileError("line 3"), "reconcile_failed", 70),
        (ConfigError("quant"), "config_invalid", 2),
        (QueueFullError("full"), "queue_full", 9),
        (StepFailedError("unlike"), "acceptance_failed", 9),
        (StepFailedError("trtb build: no", "do", "build_failed", 5), "build_failed", 5),
    ],
)
def test_a_failed_step_has_its_errors_code_and_exit_code(error: TrtbError, code: str, exit_code: int) -> None:
    ended = run_steps(Step("one", fail(error), 9), Step("two", lambda _: None, 9))
    one = ended["one"]
    assert (one.result, one.code, one.exit_code) == ("failed", code, exit_code)
    assert (one.reason, one.hint, one.figures) == (error.message, error.hint, {"before": 1})
    assert ended["two"].result == "passed"


def test_what_needs_a_failed_step_is_not_run_and_says_why() -> None:
    ended = run_steps(
        Step("a", fail(BuildError("x")), 5),
        Step("b", fail(AssertionError("must not run")), 5, ("a",)),
        Step("c", fail(AssertionError("must not run")), 5, ("b",)),
        Step("d", lambda _: NotApplicable("the engine does not tell"), 5),
        Step("e", lambda _: None, 5, ("d",)),
    )
    told = {name: (record.result, record.reason) for name, record in ended.items()}
    assert told["b"] == ("not_run", "needs a, which failed")
    assert told["c"] == ("not_run", "needs b, which was not run")
    assert told["d"] == ("not_applicable", "the engine does not tell")
    assert told["e"] == ("passed", "")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RunInterruptedError("stopped")])
def test_an_interrupt_ends_all_steps(error: BaseException) -> None:
    ended = run_steps(Step("a", fail(error), 5), Step("b", fail(AssertionError()), 5))
    assert (ended["a"].result, ended["a"].exit_code) == ("interrupted", 130)
    assert (ended["b"].result, ended["b"].reason) == ("not_run", "interrupted")


@pytest.mark.parametrize(
    ("begun", "ended", "results"),
    [
        ("b", None, ["passed", "interrupted", "not_run"]),
        (None, "a", ["passed", "interrupted", "not_run"]),
        (None, "c", ["passed", "passed", "passed"]),  # nothing was left to interrupt
    ],
)
def test_an_interrupt_between_two_steps_is_the_seconds(begun, ended, results) -> None:
    def interrupt_at(wanted: str | None, name: str) -> None:
        if wanted == name:
            raise KeyboardInterrupt

    runner = StepRunner(
        lambda name: interrupt_at(begun, name), lambda record: interrupt_at(ended, record.name)
    )
    runner.run([Step(name, lambda _: None, 1) for name in "abc"])
    assert [record.result for record in runner.done] == results


def test_an_error_of_a_step_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(StepFailedError("m", "h", "c", 6)))
    assert (error.message, error.hint, error.command_code, error.command_exit_code) == ("m", "h", "c", 6)


# --- the evidence


def collect(state: AcceptState, *steps: Step) -> accept_evidence.Evidence:
    return accept.collect(state, "because", steps, lambda _: None)


def on_disk(state: AcceptState) -> dict[str, Any]:
    return json.loads((state.options.evidence / "evidence.json").read_bytes())


def test_the_evidence_is_on_disk_after_each_step_and_a_kill_would_leave_it_interrupted(state) -> None:
    seen = []
    made = collect(
        state,
        Step("a", lambda figures: figures.update(speed=1.5), 4),
        Step("b", lambda _: seen.append(on_disk(state)), 4),
    )
    assert [(each["verdict"], each["exit_code"], len(each["steps"])) for each in seen] == [
        ("interrupted", 130, 1)
    ]
    assert (made.verdict, made.exit_code, made.failed_step) == ("passed", 0, None)
    assert on_disk(state) == made.model_dump()
    text = (state.options.evidence / "evidence.txt").read_text()
    assert text.startswith("trtb acceptance: passed (exit code 0)\n")
    assert "a: passed" in text
    assert "speed" in text
    assert state.commands.is_closed


def test_the_first_failed_step_gives_the_verdict(state) -> None:
    made = collect(state, Step("a", fail(ServerStartError("x")), 1), Step("b", fail(ReconcileError("y")), 1))
    assert (made.verdict, made.exit_code, made.failed_step) == ("failed", 6, "a")
    assert "failed at a (exit code 6)" in (state.options.evidence / "evidence.txt").read_text()


def test_a_failures_reason_and_next_step_are_the_last_lines(state) -> None:
    made = collect(
        state,
        Step("a", fail(BuildError("no room", "make some")), 5),
        *(Step(name, fail(AssertionError()), 5, ("a",)) for name in ("b", "c", "d")),
    )
    words = [line.split(maxsplit=1) for line in accept_evidence.to_text(made).splitlines()[-3:]]
    assert " ".join(words[0]) == "trtb acceptance: failed at a (exit code 5)"
    assert words[1:] == [["reason", "no room"], ["next", "make some"]]


def test_an_interrupt_leaves_partial_evidence(state) -> None:
    made = collect(state, Step("a", lambda _: None, 1), Step("b", fail(KeyboardInterrupt()), 1))
    assert (made.verdict, made.exit_code, made.failed_step) == ("interrupted", 130, "b")
    assert on_disk(state)["verdict"] == "interrupted"


@pytest.mark.own_process
def test_sigterm_is_taken_as_a_ctrl_c_also_after_a_run_has_put_the_default_back(state) -> None:
    def run_and_terminate(_: dict[str, Any]) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        made = collect(
            state,
            Step("a", lambda _: signal.signal(signal.SIGTERM, signal.SIG_IGN) and None, 1),
            Step("b", run_and_terminate, 1),
        )
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (made.verdict, made.failed_step) == ("interrupted", "b")


def test_a_bug_is_in_the_evidence_and_not_hidden(state) -> None:
    with pytest.raises(ZeroDivisionError):
        collect(state, Step("a", fail(ZeroDivisionError("none")), 1), Step("b", lambda _: None, 1))
    told = on_disk(state)
    assert (told["verdict"], told["exit_code"], told["failed_step"]) == ("failed", 70, "a")
    assert state.commands.is_closed


@pytest.mark.parametrize("include_paths", [False, True])
def test_paths_stay_out_of_the_evidence_unless_asked_for(state, include_paths) -> None:
    object.__setattr__(state.options, "include_paths", include_paths)
    folder = state.options.home / "engines" / "x"
    collect(state, Step("a", fail(BuildError(f"{folder}/build.log: step", f"see {state.work_dir}")), 1))
    text = "".join(path.read_text() for path in state.options.evidence.iterdir())
    assert (str(state.options.home) in text) is include_paths
    assert ("<trtb home>/engines/x/build.log: step" in text) is not include_paths


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("/srv/trtb/engines/a is full", "<trtb home>/engines/a is full"),
        ("/srv/trtbx is full", "<path> is full"),
        ("open '/data/alice/in.jsonl' failed", "open '<path>' failed"),
        ("see ~/notes.txt", "see <path>"),
        ("/dev/shm: 64 MB; /usr/bin/python3", "/dev/shm: 64 MB; /usr/bin/python3"),
        ("http://127.0.0.1:8002/metrics", "http://127.0.0.1:8002/metrics"),
        ("nvcr.io/nvidia/tritonserver:26.07-py3", "nvcr.io/nvidia/tritonserver:26.07-py3"),
        ("Debian GNU/Linux 12, 3 / 4", "Debian GNU/Linux 12, 3 / 4"),
        ("node-7 and node-71 at node-7:8001", "<host> and node-71 at <host>:8001"),
    ],
)
def test_a_text_is_cleaned_of_paths_and_the_machines_name(text: str, cleaned: str) -> None:
    redact = Redactor({"trtb home": Path("/srv/trtb"), "here": Path("/")}, host="node-7")
    assert redact.clean({"k": [text, 1, None]}) == {"k": [cleaned, 1, None]}


# --- what is accepted


def test_the_steps_are_in_an_order_that_their_needs_allow(state) -> None:
    steps = accept.steps_of(state)
    names = [step.name for step in steps]
    assert len(set(names)) == len(names)
    assert all(set(step.needs) <= set(names[:index]) for index, step in enumerate(steps))
    assert (names[0], names[-1]) == ("machine", "cleanup")
    assert {"build_int8_wo", "build_f16", "smoke_int8_wo", "smoke_f16", "kv_reuse", "cancel"} <= set(names)
    assert names.index("shutdown_f16") < names.index("deploy_int8_wo")  # one server at a time
    assert names.index("shutdown_int8_wo") < names.index("requests")
    assert all(step.exit_code for step in steps)


@pytest.mark.parametrize("quants", [("int8_wo",), ("int8_wo", "int8_wo"), ("int8_wo", "int3")])
def test_two_quantisations_of_the_backend_are_asked_for(state, quants) -> None:
    object.__setattr__(state.options, "quants", quants)
    with pytest.raises(ConfigError, match="quant"):
        accept.check_quants(state.options, "openvino")


def test_the_engines_are_apart_and_checkpoints_are_not(tmp_path) -> None:
    home, base = tmp_path / "cache" / "own", tmp_path
    for _ in range(2):
        accept.lay_out_home(home, base)
    assert (home / "models").resolve() == base / "models"
    assert (home / "toolchains").resolve() == base / "toolchains"
    assert not (home / "engines").exists()


# --- the machine and the builds


def test_the_machine_is_told_without_whose_it_is(state, monkeypatch) -> None:
    gpu = fake_gpu("H100", serial="S3R14L", uuid="GPU-1234", pci_bus_id="0000:07:00.0", vbios="96.00")
    monkeypatch.setattr("trtb.build.hardware.probe", lambda _: fake_hardware(gpu))
    figures: dict[str, Any] = {}
    accept_build.find_machine(state, figures)
    assert figures["gpus"][0]["compute_capability"] == "9.0"
    assert state.versions["driver"] == "590.44.01"
    assert state.versions["cuda"] == "13.1"
    assert {"trtb", "python", "openvino", "kernel"} <= state.versions.keys()
    told = json.dumps(figures)
    assert not any(secret in told for secret in ("S3R14L", "GPU-1234", "07:00"))


def test_a_machine_that_does_not_fit_ends_the_preflight_with_its_findings(state) -> None:
    state.backend, state.machine = "tensorrt_llm", fake_hardware()
    figures: dict[str, Any] = {}
    with pytest.raises(HardwareError):
        accept_build.check_preflight(state, figures)
    assert ("blocks", "gpu_driver_missing") in {
        (each["severity"], each["code"]) for each in figures["findings"]
    }


def test_a_checkpoint_that_cannot_be_fetched_fails_as_the_command_says(state) -> None:
    state.commands.children = [StepFailedError("trtb models fetch: no", "h", "checkpoint_invalid", 5)]
    ended = run_steps(
        Step("checkpoint", lambda figures: accept_build.fetch_checkpoint(state, figures), 5),
    )["checkpoint"]
    assert (ended.code, ended.exit_code) == ("checkpoint_invalid", 5)
    assert state.commands.started[0][:4] == ("models", "fetch", "smollm2-135m-instruct", "--format")


def test_a_built_engine_is_read_back_and_told_with_its_quality(state, tmp_path) -> None:
    quality = QualityReport(base="f16", num_tokens=9, perplexity=2.0, base_perplexity=1.9, top1_agreement=0.9)
    store = EngineStore(state.options.home)
    with store.stage() as staged:
        (staged / "weights.bin").write_bytes(b"w" * 100)
        stored = store.commit(staged, fake_manifest(quality=quality, toolchain={"openvino": "2026"}))
    state.started_at = "2026-06-01"
    state.commands.children = [FakeChild(printed={"engine_id": stored.manifest.engine_id})]
    figures: dict[str, Any] = {}
    accept_build.build_engine(state, "f16", figures)
    assert figures["quality"]["perplexity"] == 2.0
    assert (figures["was_there"], figures["num_files"], figures["size_bytes"]) == (True, 1, 100)
    assert state.engines["f16"].manifest == stored.manifest
    assert state.versions["openvino"] == "2026"


# --- with a server


def test_a_server_that_serves_another_engine_fails_the_deploy(state) -> None:
    told = {"endpoint": "127.0.0.1:1", "metrics": "http://127.0.0.1:2/metrics", "engine_id": "f" * 64}
    state.commands.children = [FakeChild(printed=told)]
    with pytest.raises(StepFailedError, match="serves engine ffff"):
        accept_serve.deploy(state, "int8_wo", {})


def test_a_server_that_ends_at_once_fails_the_deploy(state) -> None:
    state.commands.children = [FakeChild(code=6, printed=LOST)]
    with pytest.raises(StepFailedError) as caught:
        accept_serve.deploy(state, "int8_wo", {})
    assert caught.value.command_exit_code == 6


def test_the_version_of_triton_is_read_from_its_log(tmp_path) -> None:
    log = tmp_path / "server.ranks" / "rank0.log"
    log.parent.mkdir()
    (tmp_path / "server.log").write_text("nothing\n")
    log.write_text("| server_id       | triton |\n| server_version  | 2.60.0 |\n")
    assert accept_serve.find_triton_version(tmp_path) == "2.60.0"
    assert accept_serve.find_triton_version(tmp_path / "none") is None


@pytest.mark.parametrize(("text", "reason"), [("  ", "stop"), ("Paris.", "tool_calls")])
def test_an_answer_that_is_none_fails_the_smoke_test(state, text, reason) -> None:
    state.run = answering(text, reason=reason)
    with pytest.raises(StepFailedError) as caught:
        accept_serve.smoke(state, "int8_wo", {})
    assert "Paris" not in caught.value.message


def test_a_request_that_fails_is_told_by_its_code(state) -> None:
    state.run = answering(**failing("engine_error"))
    with pytest.raises(StepFailedError, match="0 of 1 requests completed \\(1 engine_error\\)"):
        accept_serve.smoke(state, "int8_wo", {})


@pytest.mark.parametrize(
    ("texts", "passes"), [(("a", "a", "a"), True), (("b", "a", "a"), True), (("a", "a", "b"), False)]
)
def test_equal_requests_have_equal_answers_once_the_prompt_is_known(state, texts, passes) -> None:
    state.run = answering(*texts)
    figures: dict[str, Any] = {}
    if passes:
        accept_serve.determinism(state, figures)
    else:
        with pytest.raises(StepFailedError, match="two answers"):
            accept_serve.determinism(state, figures)
    assert figures["is_equal"] is passes


def cancelling(first_code: str | None, times_out_below_s: float = 10.0) -> Any:
    def run(options: RunOptions) -> RunReport:
        is_long = options.input_path.name.startswith("cancel")
        if is_long and first_code and options.request_timeout_s < times_out_below_s:
            return report_of(options, **failing(first_code))
        return report_of(options)

    return run


@pytest.mark.parametrize(
    ("code", "below_s", "active", "timeout_s", "message"),
    [
        ("timeout", 10.0, 0.0, 2.0, None),
        ("timeout", 10.0, None, 2.0, None),  # the server does not tell
        ("timeout", 1.0, 0.0, 0.5, None),  # a fast engine
        (None, 10.0, 0.0, 0.1, "ended as completed; expected timeout"),
        ("engine_error", 10.0, 0.0, 2.0, "ended as engine_error"),
        ("timeout", 10.0, 1.0, 2.0, "1 requests in flight"),
    ],
)
def test_a_cancelled_request_leaves_the_server(
    state, monkeypatch, code, below_s, active, timeout_s, message
) -> None:
    monkeypatch.setattr(accept_serve, "read_active", lambda _: active)
    monkeypatch.setattr(accept_serve, "IDLE_TIMEOUT_S", -1.0)
    state.run = cancelling(code, below_s)
    figures: dict[str, Any] = {}
    if message is None:
        accept_serve.cancel(state, figures)
        assert (figures["active_after"], figures["ended_as"]) == (active, "timeout")
    else:
        with pytest.raises(StepFailedError, match=message):
            accept_serve.cancel(state, figures)
    assert figures["timeout_s"] == timeout_s


def test_a_sweep_tells_three_points_and_fails_where_fewer_are_in_flight(state) -> None:
    state.run = lambda options: report_of(options)
    figures: dict[str, Any] = {}
    accept_serve.sweep(state, figures)
    assert [(each["concurrency"], each["num_requests"]) for each in figures["points"]] == [
        (1, 8), (8, 32), (32, 40)
    ]  # fmt: skip
    state.run = lambda options: report_of(options, max_in_flight=min(options.concurrency, 7))
    with pytest.raises(StepFailedError, match="concurrency 8: at most 7"):
        accept_serve.sweep(state, figures)
    assert len(figures["points"]) == 2


@pytest.mark.parametrize("code", [0, 1])
def test_a_server_must_end_well(state, code) -> None:
    child = state.served.child
    child.code = code
    if code:
        with pytest.raises(StepFailedError):
            accept_serve.shut_down(state, {})
    else:
        accept_serve.shut_down(state, {})
    assert child.sent
    assert state.served is None


# --- KV blocks


def counted(reused: int | None, new: int | None, prefill_ms: float = 1.0) -> Chunk:
    first_token_ns = 1 + round(prefill_ms * 1e6)
    return Chunk([1], True, arrival_ns=1, first_token_ns=first_token_ns, reused_blocks=reused, new_blocks=new)


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ([counted(0, 16), counted(16, 1), counted(16, 1)], None),  # as NVIDIA's own tests expect it
        ([counted(0, 16), counted(15, 2), counted(16, 1)], None),
        ([counted(1, 15), counted(16, 1)], "the first of equal prompts reused 1"),
        ([counted(0, 16), counted(14, 2)], "reused 14 blocks; expected at least 15"),
        ([counted(0, 16), counted(16, 1), counted(0, 16)], "reused 0 blocks"),
        ([counted(0, 16), counted(None, None)], "reused None"),
        ([counted(0, 16), counted(16, 16)], "given 16 new blocks"),
    ],
)
def test_where_the_engine_counts_its_counts_decide(state, told, message) -> None:
    state.ask = lambda _endpoint, _requests: told
    if message is None:
        assert accept_reuse.kv_reuse(state, {}) is None
    else:
        with pytest.raises(StepFailedError, match=message):
            accept_reuse.kv_reuse(state, {})


@pytest.mark.parametrize(
    ("times", "reason"),
    [
        ((100.0, 90.0, 5.0, 7.0), None),
        ((100.0, 90.0, 80.0, 70.0), "30%"),
        ((0.0, 1.0, 1.0, 1.0), "no times"),
    ],
)
def test_where_it_does_not_the_times_are_marked_as_derived(state, times, reason) -> None:
    state.ask = lambda _endpoint, requests: [counted(None, None, ms) for ms in times[: len(requests)]]
    figures: dict[str, Any] = {}
    outcome = accept_reuse.kv_reuse(state, figures)
    assert figures["seen_by"] == "derived from prefill times"
    assert (outcome is None) is (reason is None)
    assert reason is None or reason in outcome.reason


def test_the_prompt_has_whole_blocks_and_no_special_token() -> None:
    ids = accept_reuse.unlike_prompt(fake_manifest())
    assert len(ids) == 504
    assert not {1, 2, 0} & set(ids)
    blocks = [tuple(ids[start : start + 32]) for start in range(0, len(ids), 32)]
    assert len(set(blocks)) == len(blocks)


def test_the_client_reads_the_counts_that_it_asked_for() -> None:
    asked = EngineRequest("r", [5, 6], max_tokens=1, end_id=2, pad_id=2, block_counts=True)
    wanted = service_pb2.ModelInferRequest.FromString(serialise(asked)).outputs
    message = response("r", [7]).infer_response
    for number, name in enumerate(("alloc_new", "reused", "alloc_total"), start=300):
        message.outputs.add(name=f"kv_cache_{name}_blocks", datatype="INT32", shape=(1, 1))
        message.raw_output_contents.append(number.to_bytes(4, "little"))
    chunk = read_chunk(message)
    assert (chunk.new_blocks, chunk.reused_blocks, chunk.total_blocks) == (300, 301, 302)
    assert {tensor.name for tensor in message.outputs} <= {tensor.name for tensor in wanted}
    assert read_chunk(response("r", [7]).infer_response).new_blocks is None


# --- kills


def run_requests(state: AcceptState, monkeypatch: pytest.MonkeyPatch, *children: FakeChild) -> dict[str, Any]:
    rows = iter([10, 10, 22, 22])  # seen, then kept, of the killed and of the stopped run
    monkeypatch.setattr(accept_requests, "count_rows", lambda _: next(rows))
    monkeypatch.setattr(accept_requests, "wait_gone", lambda _folders, _timeout_s: [])
    state.commands.children = list(children)
    figures: dict[str, Any] = {}
    accept_requests.requests(state, figures)
    return figures


def final(state: AcceptState, **fields: Any) -> FakeChild:
    path = accept_requests.requests_path(state)
    accept_lines.write_lines(path, accept_lines.topic_lines("accept", 40))
    options = state.run_options(path)
    report = report_of(options, **{"resumed": 22, **fields})
    return FakeChild(code=1 if report.failed else 0, printed=report.model_dump(mode="json"))


def test_a_run_is_killed_then_stopped_then_done(state, monkeypatch) -> None:
    killed, stopped = FakeChild(code=-9), FakeChild(code=130)
    figures = run_requests(state, monkeypatch, killed, stopped, final(state))
    assert ([each.name for each in killed.sent], [each.name for each in stopped.sent]) == (
        ["SIGKILL"], ["SIGINT"],
    )  # fmt: skip
    assert (figures["kept_by_kill"], figures["kept_by_interrupt"], figures["completed"]) == (10, 22, 40)
    assert len({arguments[:4] for arguments in state.commands.started}) == 1  # the same file and output


@pytest.mark.parametrize(
    ("stopped", "fields", "message", "exit_code"),
    [
        (0, {}, "expected 130", None),
        (130, {"completed": 39, "failed": 1}, "1 of 40 requests failed", None),
        (130, {"resumed": 21}, "resumed with 21 results; expected 22", None),
    ],
)
def test_a_run_that_ends_otherwise_fails(state, monkeypatch, stopped, fields, message, exit_code) -> None:
    with pytest.raises(StepFailedError, match=message):
        run_requests(state, monkeypatch, FakeChild(code=-9), FakeChild(code=stopped), final(state, **fields))


def test_a_run_that_loses_its_server_fails_with_the_commands_exit_code(state, monkeypatch) -> None:
    with pytest.raises(StepFailedError) as caught:
        run_requests(
            state, monkeypatch, FakeChild(code=-9), FakeChild(code=130), FakeChild(code=6, printed=LOST)
        )
    assert caught.value.command_exit_code == 6


def test_what_a_killed_run_leaves_running_is_named(state, monkeypatch) -> None:
    monkeypatch.setattr(accept_requests, "count_rows", lambda _: 10)
    monkeypatch.setattr(accept_requests, "wait_gone", lambda _folders, _timeout_s: ["tritonserver 7"])
    state.commands.children = [FakeChild(code=-9)]
    with pytest.raises(StepFailedError, match="tritonserver 7"):
        accept_requests.requests(state, {})


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (["a", "b", "c"], None),
        (["a", "b"], "1 lines are missing, such as c"),
        (["a", "b", "b", "c"], "1 lines are there twice, such as b"),
        (["a", "c", "b"], "output line 2 is c; expected b"),
        (["a", "b", "c", "d"], "4 lines; expected 3"),
    ],
)
def test_lines_are_held_against_the_input(found, message) -> None:
    if message is None:
        accept_requests.check_lines(["a", "b", "c"], found)
    else:
        with pytest.raises(ReconcileError, match=message):
            accept_requests.check_lines(["a", "b", "c"], found)


def test_no_ledger_has_no_rows(tmp_path) -> None:
    assert accept_requests.count_rows(tmp_path / "ledger.db") == 0
    assert not (tmp_path / "ledger.db").exists()


# --- traces


def test_what_is_left_behind_is_named(state, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr("trtb.runner.server.SHM", tmp_path)
    monkeypatch.setattr(accept_traces, "wait_gone", lambda _folders, _timeout_s: [])
    state.commands.started.append(())
    others = tmp_path / f"trtb_{os.getpid()}_abc"
    others.touch()
    accept_traces.clean_up(state, {})
    (tmp_path / f"trtb_{FakeChild.pid}_abc_region").touch()
    figures: dict[str, Any] = {}
    with pytest.raises(StepFailedError, match=f"trtb_{FakeChild.pid}_abc_region; expected nothing"):
        accept_traces.clean_up(state, figures)
    assert figures["num_shared_memory_left"] == 1


@pytest.fixture
def silent_docker(monkeypatch, tmp_path) -> None:
    """A docker client whose engine is not running, and nothing of ours that is left."""
    client = tmp_path / "bin" / "docker"
    client.parent.mkdir()
    client.write_text("#!/bin/sh\necho 'Cannot connect to the Docker daemon' >&2\nexit 1\n")
    client.chmod(0o755)
    monkeypatch.setenv("PATH", f"{client.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr("trtb.runner.server.SHM", tmp_path)
    monkeypatch.setattr(accept_traces, "wait_gone", lambda _folders, _timeout_s: [])


@pytest.mark.usefixtures("silent_docker")
@pytest.mark.parametrize("backend", ["openvino", "tensorrt_llm"])
def test_where_nothing_went_through_docker_it_need_not_answer(state, backend) -> None:
    state.backend = backend
    figures: dict[str, Any] = {}
    accept_traces.clean_up(state, figures)
    assert figures["num_containers_left"] == 0


@pytest.mark.usefixtures("silent_docker")
@pytest.mark.parametrize("place", [DockerPlace("image", {}), EmbeddedPlace()])
def test_what_went_through_docker_is_asked_of_it(state, monkeypatch, place) -> None:
    monkeypatch.setattr(accept_serve, "choose_place", lambda _choice, _manifest: place)
    state.commands.children = [FakeChild(code=6, printed=LOST)]
    with pytest.raises(StepFailedError):
        accept_serve.deploy(state, "int8_wo", {})
    if isinstance(place, DockerPlace):
        with pytest.raises(ServerStartError, match="Cannot connect"):
            accept_traces.clean_up(state, {})
    else:
        accept_traces.clean_up(state, {})


# --- real children


@pytest.fixture
def commands(tmp_path: Path) -> Any:
    """Commands that run a line of Python each."""
    made = Commands((sys.executable, "-I", "-S", "-c"), tmp_path, tmp_path)
    yield made
    made.close()


def test_a_command_gives_what_it_printed(commands, tmp_path) -> None:
    code = "import os; print('{\"home\": \"' + os.environ['TRTB_HOME'] + '\"}')"
    assert commands.run("x", code, timeout_s=30) == {"home": str(tmp_path)}


def test_a_failed_command_gives_its_own_error_or_the_end_of_its_log(commands) -> None:
    error = '{"error": {"code": "build_failed", "message": "no room", "hint": "make some"}}'
    with pytest.raises(StepFailedError, match="trtb build: no room") as caught:
        commands.run("build", f"print('{error}'); raise SystemExit(5)", timeout_s=30)
    assert (caught.value.command_code, caught.value.command_exit_code) == ("build_failed", 5)
    with pytest.raises(StepFailedError, match="ended with status 3\n  last words") as caught:
        commands.run("x", "import sys; print('last words', file=sys.stderr); sys.exit(3)", timeout_s=30)
    assert caught.value.command_exit_code is None


def test_what_still_runs_is_ended(commands) -> None:
    child = commands.start("x", "import time; print('{}', flush=True); time.sleep(60)")
    child.wait_until(lambda: child.told() == {}, 30, "it speaks")
    commands.close()
    assert child.poll() is not None
