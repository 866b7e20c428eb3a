"""`trtb accept` on a machine without a GPU: the form and the steps that a GPU host would go through."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
from pathlib import Path
from typing import Any

import commands
import pytest

from trtb.runner.acceptance import accept_lines
from trtb.runner.acceptance.accept_evidence import Evidence

pytestmark = [pytest.mark.triton, pytest.mark.slow, pytest.mark.timeout(900)]

NUM_REQUESTS = 40
ENGINE = "smollm2-135m-instruct-int8_wo"


@pytest.fixture(scope="module")
def home(engine_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with the default engine and its checkpoint: another engine there would be no test's default."""
    made = tmp_path_factory.mktemp("accept-home")
    shutil.copytree(engine_home / "models", made / "models", copy_function=os.link)
    shutil.copytree(engine_home / "engines" / ENGINE, made / "engines" / ENGINE)
    return made


def work_of(home: Path) -> set[Path]:
    """Return the folders of acceptances and servers."""
    return {path for kind in ("accept", "serve") for path in home.glob(f"cache/{kind}/*")}


def read_evidence(folder: Path) -> Any:
    return json.loads((folder / "evidence.json").read_bytes())


def test_the_whole_road_passes_and_its_evidence_can_be_sent(home, tmp_path):
    before = work_of(home)
    done = commands.trtb(
        home, "accept", "--backend", "openvino", "--num-requests", NUM_REQUESTS, "--evidence",
        tmp_path / "evidence", "--engine-home", home, "--json", timeout_s=800,
    )  # fmt: skip
    assert done.code == 0, done.stderr
    assert sorted(path.name for path in (tmp_path / "evidence").iterdir()) == [
        "evidence.json",
        "evidence.txt",
    ]
    assert read_evidence(tmp_path / "evidence") == done.json
    evidence = Evidence.model_validate(done.json)
    assert (evidence.verdict, evidence.failed_step, evidence.quants) == ("passed", None, ["int8_wo", "f16"])
    results = {step.name: step.result for step in evidence.steps}
    reuse = evidence.step("kv_reuse")
    assert results.pop("kv_reuse") == ("not_applicable" if reuse.reason else "passed")
    assert set(results.values()) == {"passed"}
    assert len(results) == 17

    figures = {step.name: step.figures for step in evidence.steps}
    assert reuse.figures["seen_by"] == "derived from prefill times"
    assert len(reuse.figures["requests"]) == 4
    assert (figures["build_int8_wo"]["was_there"], figures["build_f16"]["was_there"]) == (True, False)
    assert figures["build_f16"]["quality"]["top1_agreement"] == 1
    assert figures["cancel"]["ended_as"] == "timeout"
    assert figures["cancel"]["active_after"] == 0
    assert [point["concurrency"] for point in figures["sweep"]["points"]] == [1, 8, 32]
    requests = figures["requests"]
    assert 0 < requests["kept_by_kill"] < requests["kept_by_interrupt"] == requests["resumed"] < NUM_REQUESTS
    assert requests["completed"] == figures["reconciliation"]["num_output_lines"] == NUM_REQUESTS
    assert {"trtb", "python", "tritonserver", "openvino", "openvino-genai"} <= evidence.versions.keys()

    text = "".join(path.read_text() for path in (tmp_path / "evidence").iterdir())
    prompts = [value for name, value in vars(accept_lines).items() if name.endswith("_TEXT")]
    assert len(prompts) == 4
    told = [secret for secret in (*prompts, "Question ", str(home), str(Path.home())) if secret in text]
    assert not told
    assert f" {platform.node()} " not in text
    assert work_of(home) <= before  # what it worked with is gone


def test_a_step_that_fails_is_named_and_the_others_say_why_they_were_not_run(home, tmp_path):
    done = commands.trtb(
        home, "accept", "--backend", "openvino", "--model", "no-such-model", "--evidence",
        tmp_path / "evidence", "--engine-home", home,
    )  # fmt: skip
    assert done.code == 5
    verdict, reason, following = done.stdout.splitlines()[-3:]
    assert verdict == "trtb acceptance: failed at checkpoint (exit code 5)"
    assert "trtb models verify: model 'no-such-model': not found" in reason
    assert "trtb models list" in following
    evidence = Evidence.model_validate(read_evidence(tmp_path / "evidence"))
    assert (evidence.verdict, evidence.failed_step, evidence.exit_code) == ("failed", "checkpoint", 5)
    results = {step.name: (step.result, step.reason) for step in evidence.steps}
    assert results["build_f16"] == ("not_run", "needs checkpoint, which failed")
    assert results["requests"] == ("not_run", "needs smoke_int8_wo, which was not run")
    assert results["cleanup"] == ("passed", "")


def test_an_interrupt_leaves_partial_evidence_and_no_process(home, tmp_path):
    folder = tmp_path / "evidence"
    process = commands.start(
        home, "accept", "--backend", "openvino", "--evidence", folder, "--engine-home", home
    )
    commands.wait_until(
        lambda: (folder / "evidence.json").exists() and len(read_evidence(folder)["steps"]) == 3,
        120,
        "a build",
    )
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 130, stderr
    evidence = Evidence.model_validate(read_evidence(folder))
    assert (evidence.verdict, evidence.exit_code) == ("interrupted", 130)
    assert [step.result for step in evidence.steps[:3]] == ["passed"] * 3
    assert evidence.steps[-1].reason == "interrupted"
    assert evidence.step(evidence.failed_step or "").result == "interrupted"
    (work_dir,) = (home / "cache" / "accept").glob(str(process.pid))
    assert not commands_of(work_dir)
    shutil.rmtree(work_dir)


def commands_of(folder: Path) -> list[str]:
    """Return the processes that work in a folder."""
    import psutil

    found = []
    for process in psutil.process_iter(["name"]):
        try:
            if Path(process.cwd()) == folder:
                found.append(process.info["name"])
        except psutil.Error:
            continue
    return found


@pytest.mark.parametrize("quants", ["int8_wo", "int8_wo,int8_wo", "int8_wo,int3"])
def test_wrong_options_are_refused_before_anything_is_done(home, tmp_path, quants):
    done = commands.trtb(
        home, "accept", "--backend", "openvino", "--quants", quants, "--evidence", tmp_path / "evidence"
    )
    assert done.code == 2
    assert not (tmp_path / "evidence").exists()
