"""Calibration with the real checkpoint's tokenizer and chat template."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import request_lines

from trtb.build import calibration, checkpoint
from trtb.build.backends.base import BuildHost
from trtb.build.backends.openvino import OpenvinoBackend
from trtb.build.config import BuildConfig, CalibrationConfig
from trtb.build.errors import CheckpointError, ConfigError
from trtb.build.store import EngineStore
from trtb.runner.prompt import LengthLimits, PromptRenderer
from trtb.runner.schema import LineParser, Valid

VOCAB_SIZE = 49152

pytestmark = pytest.mark.triton


@pytest.fixture(scope="module")
def tokenizer_folder(engine_home: Path) -> Path:
    return EngineStore(engine_home).resolve("smollm2-135m-instruct-int8_wo").path / "tokenizer"


def test_a_request_calibrates_with_the_ids_that_it_runs_with(tokenizer_folder: Path, tmp_path: Path) -> None:
    lines = [
        request_lines.chat("a", "What is the capital of France?"),
        request_lines.chat("b", "日本語 🙂", messages=[{"role": "system", "content": "Be brief."}] * 2),
        request_lines.completion("c", prompt="Once upon a time"),
        request_lines.completion("d", prompt=[5, 6, 49151]),
    ]
    source = request_lines.write(tmp_path / "in.jsonl", lines)
    renderer = PromptRenderer(tokenizer_folder, LengthLimits(8192, 256), VOCAB_SIZE, frozenset())
    parser = LineParser(None, strict_params=False)
    expected = []
    for number, line in enumerate(source.read_bytes().splitlines(), start=1):
        parsed = parser.parse(number, line)
        assert isinstance(parsed, Valid)
        request = parsed.request
        if hasattr(request, "messages"):
            expected.append(tuple(renderer.render_chat(request)))
        else:
            expected += [tuple(renderer.render_prompt(prompt)) for prompt in request.prompts]
    told: list[tuple[str, str]] = []
    chosen = calibration.select_calibration(
        CalibrationConfig(source=str(source)), tokenizer_folder, VOCAB_SIZE, lambda *line: told.append(line)
    )
    assert sorted(chosen.token_ids) == sorted(expected)
    assert told == [("calibration", f"4 samples of in.jsonl, {chosen.num_tokens} tokens")]


def test_the_built_in_set_is_the_same_on_every_machine(tokenizer_folder: Path) -> None:
    chosen = calibration.select_calibration(
        CalibrationConfig(), tokenizer_folder, VOCAB_SIZE, lambda _step, _detail: None
    )
    assert (len(chosen.token_ids), chosen.num_tokens, chosen.num_skipped) == (128, 7036, 0)
    assert chosen.sha256.startswith("e3b929e41e40")


def test_ids_beyond_the_vocabulary_are_no_samples(tokenizer_folder: Path, tmp_path: Path) -> None:
    lines = [request_lines.completion("a", prompt="fine"), request_lines.completion("b", prompt=[49152])]
    chosen = calibration.select_calibration(
        CalibrationConfig(source=str(request_lines.write(tmp_path / "in.jsonl", lines))),
        tokenizer_folder,
        VOCAB_SIZE,
        lambda _step, _detail: None,
    )
    assert (len(chosen.token_ids), chosen.num_skipped) == (1, 1)


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no usable tokenizer"):
        calibration.select_calibration(CalibrationConfig(), tmp_path, VOCAB_SIZE, lambda _step, _detail: None)


@pytest.fixture
def own_template(tokenizer_folder: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "tokenizer"
    shutil.copytree(tokenizer_folder, folder)
    return folder


def test_what_the_chat_template_refuses_is_skipped_with_its_reason(
    own_template: Path, tmp_path: Path
) -> None:
    (own_template / "chat_template.jinja").write_text("{{ raise_exception('no users here') }}")
    source = request_lines.write(tmp_path / "in.jsonl", [request_lines.chat("a")])
    with pytest.raises(ConfigError, match="line 1: the chat template refuses the messages: no users here"):
        calibration.select_calibration(
            CalibrationConfig(source=str(source)), own_template, VOCAB_SIZE, lambda _step, _detail: None
        )


def test_without_a_chat_template_a_chat_is_its_texts(own_template: Path, tmp_path: Path) -> None:
    (own_template / "chat_template.jinja").unlink()
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    lines = [
        request_lines.chat("a", messages=messages),
        request_lines.completion("b", prompt="Be brief.\n\nHi"),
    ]
    source = request_lines.write(tmp_path / "in.jsonl", lines)
    chosen = calibration.select_calibration(
        CalibrationConfig(source=str(source)), own_template, VOCAB_SIZE, lambda _step, _detail: None
    )
    assert len(set(chosen.token_ids)) == 1


def test_a_plan_warns_of_lines_that_were_of_no_use(model_home: Path, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    good = json.dumps(request_lines.completion("a", prompt="Once upon a time"))
    source.write_text(good + "\n{\n[]\n{}\n7")
    config = BuildConfig(quant="int4_awq", calibration=CalibrationConfig(source=str(source)))
    pinned = checkpoint.resolve("smollm2-135m-instruct", model_home)
    plan = OpenvinoBackend().check(pinned, config, BuildHost(model_home))
    (warning,) = plan.warnings
    assert warning.startswith("calibration: 4 of 5 lines of no use: line 2: not JSON")
    assert warning.endswith("; 1 sample of 128 wanted")
