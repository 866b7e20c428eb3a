"""The benchmarks' own arithmetic, and that both sides of each are given the same to do."""

from __future__ import annotations

import ast
import sys
import types
from pathlib import Path
from types import SimpleNamespace

import orjson
import pytest

from trtb.build.backends import direct
from trtb.model_repo import contract
from trtb.runner.ledger import read_rows
from trtb.runner.plain import read_plain
from trtb.runner.transport import EngineRequest
from trtb.runner.triton_messages import serialise
from trtb.tools.bench import __main__ as command
from trtb.tools.bench import bare_streams, ledger, quantization
from trtb.tools.bench.children import BenchmarkError, peak_rss_bytes, run_child
from trtb.tools.bench.request_file import write_requests
from trtb.tools.bench.targets import Outcome, Target, describe_machine, interleave, median_ratio

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("measured", "is_bound", "verdict"),
    [
        (0.99, False, "reached"),
        (0.96, False, "held"),
        (0.90, False, "missed"),
        (0.90, True, "reached"),
        (0.96, True, "held"),
        (1.10, True, "missed"),
    ],
)
def test_a_verdict_says_which_mark_is_met(measured, is_bound, verdict):
    hold, reach = (1.0, 0.95) if is_bound else (0.95, 0.98)
    assert Target("x", measured, hold, reach, is_bound).verdict == verdict


def test_the_first_target_of_an_outcome_is_its_ratio():
    outcome = Outcome("x", [Target("a", 2.5, 1, 2), Target("b", 7, 1, 2)], {"rate": 3})
    assert outcome.to_json()["ratio"] == 2.5
    assert outcome.to_json()["rate"] == 3
    assert [target["verdict"] for target in outcome.to_json()["targets"]] == ["reached", "reached"]


def test_sides_run_by_turns_and_neither_always_first():
    order: list[str] = []
    found = interleave({"a": lambda n: order.append(f"a{n}"), "b": lambda n: order.append(f"b{n}")}, 3)
    assert order == ["a0", "b0", "b1", "a1", "a2", "b2"]
    assert {name: len(values) for name, values in found.items()} == {"a": 3, "b": 3}


def test_a_ratio_is_taken_within_rounds():
    assert median_ratio([10.0, 1.0, 3.0], [10.0, 1.0, 1.0]) == 1.0


def test_the_machine_is_described():
    assert describe_machine()["num_cores"] >= 1
    assert isinstance(describe_machine()["flags"], list)


def test_request_files_of_different_seeds_share_no_prompt(tmp_path):
    prompts = set()
    for seed in (1, 2):
        write_requests(tmp_path / "r.jsonl", 50, model="m", seed=seed)
        for data in (tmp_path / "r.jsonl").read_bytes().splitlines():
            line = read_plain(data, frozenset({"m"}))
            assert line is not None
            prompts.add(line.body.messages[-1].content)
    assert len(prompts) == 100


def test_the_bare_side_sends_what_a_run_sends():
    from tritonclient.grpc import service_pb2

    ids = [5, 6, 7]
    manifest = SimpleNamespace(tokens=SimpleNamespace(end=2, pad=3))
    bare = bare_streams.message_of("r", ids, 16, manifest)
    request = EngineRequest("r", ids, max_tokens=16, end_id=2, pad_id=3, top_k=1)
    ours = service_pb2.ModelInferRequest.FromString(serialise(request))

    def tensors(message):
        names = [(tensor.name, tensor.datatype, tuple(tensor.shape)) for tensor in message.inputs]
        return dict(zip(names, message.raw_input_contents, strict=True))

    assert tensors(bare) == tensors(ours)
    assert (bare.id, bare.model_name) == (ours.id, ours.model_name) == ("r", contract.MODEL_NAME)
    assert list(bare.outputs) == list(ours.outputs)
    assert bare.parameters == ours.parameters


def test_the_direct_side_sets_the_properties_that_the_served_model_sets(monkeypatch):
    """The model's module needs the library, so its function is taken out of its source."""
    source = (ROOT / "model_repo/templates/openvino/1/openvino_requests.py").read_text()
    (function,) = (
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name == "device_properties"
    )
    kind = SimpleNamespace(get_type_name=lambda: "bf16")
    fake = types.ModuleType("openvino")
    fake.Core = lambda: SimpleNamespace(get_property=lambda device, name: kind)
    served: dict[str, object] = {"ov": fake}
    exec(compile(ast.Module([function], []), "model", "exec"), served)
    monkeypatch.setitem(sys.modules, "openvino", fake)
    for deterministic in (False, True):
        expected = served["device_properties"](deterministic=deterministic)
        assert direct.device_properties(deterministic=deterministic) == expected


def test_the_ledger_side_writes_every_row(tmp_path):
    assert ledger.write_rows(tmp_path / "l.db", 100, keep=True) > 0
    rows = list(read_rows(tmp_path / "l.db"))
    assert [row.line for row in rows] == list(range(1, 101))
    assert 900 < len(rows[0].record) < 1300


def test_a_child_that_fails_tells_its_last_words(tmp_path):
    with pytest.raises(BenchmarkError, match=r"No module named trtb\.nothing"):
        run_child("trtb.nothing", {}, tmp_path)


def test_the_peak_of_memory_is_that_of_this_program():
    assert 1e6 < peak_rss_bytes() < 1e11


def test_without_an_engine_the_prerequisite_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TRTB_HOME", str(tmp_path))
    assert command.main(["client", "--quick"]) == 5
    assert "make demo" in capsys.readouterr().err


def test_figures_of_several_engines_are_a_table(capsys):
    rows = [{"quant": "f16", "size_mb": 269.0}, {"quant": "int4_awq", "size_mb": 84.9}]
    command.show(Outcome("quantization", [Target("x", 1.0, 1, 1)], {"engines": rows}))
    assert capsys.readouterr().out.splitlines()[-3:] == [
        "       quant  size_mb",
        "         f16      269",
        "    int4_awq     84.9",
    ]


def test_each_engine_is_driven_with_the_same_prompts_in_a_round_and_others_in_the_next(tmp_path, monkeypatch):
    tasks: list[tuple[str, list[object]]] = []

    def child(module, task, folder):
        tasks.append((task["engine_dir"], task["prompts"]))
        assert not {str(prompt) for prompt in task["prompts"]} & {str(prompt) for prompt in task["warm_up"]}
        return {"num_tokens": 10, "duration_s": 2.0}

    monkeypatch.setattr(quantization, "run_child", child)
    monkeypatch.setattr(quantization, "read_prompts", lambda path, engine_dir: path.read_text().splitlines())
    limits = SimpleNamespace(max_num_tokens=512, max_batch_size=8)
    manifest = SimpleNamespace(limits=limits, tokens=SimpleNamespace(eos=[2]))
    engines = {name: SimpleNamespace(path=tmp_path / name, manifest=manifest) for name in ("f16", "fp8")}
    found = quantization.measure_speeds(engines, tmp_path, quantization.Size(3, 8, 2))
    assert found == {"f16": [5.0, 5.0], "fp8": [5.0, 5.0]}
    assert [Path(name).name for name, _ in tasks] == ["f16", "fp8", "fp8", "f16"]
    assert tasks[0][1] == tasks[1][1] != tasks[2][1] == tasks[3][1]


def test_an_unknown_name_is_a_wrong_option(capsys):
    with pytest.raises(SystemExit) as caught:
        command.main(["nothing"])
    assert caught.value.code == 2
    assert "engine_ceiling" in capsys.readouterr().err


def test_a_missed_target_is_told_and_does_not_fail(tmp_path, monkeypatch, capsys):
    figures = {"name": "validate", "ratio": 0.1, "hold": 0.4, "reach": 0.6}
    monkeypatch.setattr(command.validate, "measure", lambda quick: dict(figures))
    assert command.main(["validate", "--json", str(tmp_path / "b.json")]) == 0
    assert "missed" in capsys.readouterr().out
    written = orjson.loads((tmp_path / "b.json").read_bytes())
    assert written["benchmarks"]["validate"]["ratio"] == 0.1
    assert "flags" in written["machine"]
