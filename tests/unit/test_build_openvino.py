"""What the CPU backend refuses before any work, and what it takes over from a build that ended early."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fakes.gguf_file import write_tiny
from fakes.hf_folder import write_folder

from trtb.build.backends import openvino
from trtb.build.backends.openvino_nncf import compress_weights
from trtb.build.backends.openvino_runtime import score_texts
from trtb.build.config import make_config
from trtb.build.errors import BuildError, ConfigError, QuantizationError, ToolchainMissingError
from trtb.build.pipeline import build_engine
from trtb.build.quantization import SCHEMES
from trtb.build.store import EngineStore


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


def test_a_hugging_face_folder_without_the_exporter_says_how_to_get_it(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "tiny-hf")
    told: list[str] = []
    with pytest.raises(ToolchainMissingError) as caught:
        build_engine(
            str(folder),
            make_config(),
            tmp_path / "home",
            backend="openvino",
            progress=lambda step, _detail: told.append(step),
        )
    assert (caught.value.exit_code, caught.value.hint) == (5, "trtb toolchain install optimum")
    assert told == ["backend", "checkpoint"]
    assert not EngineStore(tmp_path / "home").list()


@pytest.mark.parametrize(
    "options",
    [
        {"tp_size": 2},
        {"pp_size": 2},
        {"dtype": "bf16"},
        {"kv_cache_dtype": "fp8"},
        {"trtllm": {"gemm_plugin": "auto"}},
    ],
)
def test_options_of_the_other_backend_are_refused(tiny: Path, tmp_path: Path, options: Any) -> None:
    (name,) = options
    with pytest.raises(ConfigError, match=f"{name}: .* openvino backend has no such choice"):
        build_engine(str(tiny), make_config(**options), tmp_path, backend="openvino")


def test_a_build_that_ended_early_goes_on_after_its_last_step(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: object) -> None:
        raise RuntimeError("the power went out")

    with monkeypatch.context() as patch:
        patch.setattr(openvino, "compress_weights", fail)
        with pytest.raises(BuildError, match="the power went out"):
            build_engine(str(tiny), make_config(quant="fp8", group_size=32), tmp_path, backend="openvino")
    built = build_engine(str(tiny), make_config(quant="fp8", group_size=32), tmp_path, backend="openvino")
    assert {step.name: step.is_reused for step in built.manifest.steps} == {
        "convert": True,
        "score": True,
        "quantise": False,
    }
    fresh = build_engine(
        str(tiny), make_config(quant="fp8", group_size=32), tmp_path / "fresh", backend="openvino"
    )
    assert fresh.manifest.engine_id == built.manifest.engine_id
    assert fresh.manifest.quality == built.manifest.quality
    assert not [path for path in (tmp_path / "engines" / ".steps").iterdir() if path.is_dir()]


def test_every_scheme_of_the_table_can_be_built(tiny: Path, tmp_path: Path) -> None:
    """A sound weight file of each; what they cost in quality is measured on a real model elsewhere."""
    base = build_engine(str(tiny), make_config(quant="f16"), tmp_path, backend="openvino")
    ids = [list(range(3, 60))]
    for scheme in SCHEMES:
        if scheme.backend != "openvino" or scheme.name == "f16":
            continue
        target = tmp_path / scheme.name
        target.mkdir()
        group_size = min(scheme.group_size, 32) if scheme.group_size else None
        compress_weights(base.path, target, scheme.name, group_size, ids)
        assert score_texts(target, ids).perplexity < 1000
        assert (target / "openvino_model.bin").stat().st_size > 0


def test_what_nncf_cannot_do_is_an_error_of_ours(tiny: Path, tmp_path: Path) -> None:
    base = build_engine(str(tiny), make_config(quant="f16"), tmp_path, backend="openvino")
    with pytest.raises(QuantizationError, match="nvfp4: nncf refused: ValidationError"):
        compress_weights(base.path, tmp_path, "nvfp4", 48, [])
