"""An engine becomes a Triton model repository: rendered into a folder of its own, checked, then used.

The repository in the engine's folder is the default rendering. A server that wants other settings (KV
pool, queue limit, precision) renders its own into its working folder; the engine is never changed.
"""

from __future__ import annotations

from pathlib import Path, PurePath, PurePosixPath
from typing import Final

from trtb.build.errors import ConfigError
from trtb.build.manifest import EngineManifest
from trtb.model_repo import contract, render_openvino, render_trtllm
from trtb.model_repo.deploy_config import DeployConfig
from trtb.model_repo.render_openvino import num_blocks_for_machine
from trtb.model_repo.repository_check import check, check_contract
from trtb.model_repo.tokenizer_info import write_tokenizer_info

__all__ = ["DeployConfig", "check", "num_blocks_for_machine", "render", "render_into_engine", "render_noop"]

# Where a container sees the engine that it serves: the repository inside a GPU engine's folder is for
# `docker run -v ENGINE:/engine:ro IMAGE tritonserver --model-repository=/engine/repository`
ENGINE_MOUNT: Final = PurePosixPath("/engine")


def render(
    engine_dir: Path,
    manifest: EngineManifest,
    target: Path,
    config: DeployConfig,
    engine_root: PurePath | None = None,
) -> None:
    """Render the repository of an engine into `target`, an empty or absent folder, and check it.

    Args:
        engine_dir: The stored engine; a GPU engine's files are read, for what they were built for.
        manifest: Its manifest.
        target: The repository.
        config: How it is served.
        engine_root: The engine's folder as the server will see it, where that is another path
            (tensorrt_llm: TensorRT-LLM counts a relative path from where the server was started).

    Raises:
        ConfigError: `config` asks for more than the engine was built for.
        EngineCorruptError: The engine's files are not what its manifest says.
    """
    max_batch_size = config.max_batch_size or manifest.limits.max_batch_size
    if max_batch_size > manifest.limits.max_batch_size:
        raise ConfigError(
            f"max_batch_size: {max_batch_size}; engine {manifest.reference} was built for at most "
            f"{manifest.limits.max_batch_size}",
            "build an engine with a larger --max-batch-size",
        )
    model_dir = target / contract.MODEL_NAME
    if manifest.backend == "tensorrt_llm":
        root = engine_root or engine_dir.resolve()
        render_trtllm.render_model(engine_dir, manifest, model_dir, config, max_batch_size, root)
    else:
        assert engine_root is None, "the embedded server sees what we see"
        render_openvino.render_model(engine_dir, manifest, model_dir, config, max_batch_size)
    check(target, manifest, engine_dir, engine_root)


def render_into_engine(staged: Path, manifest: EngineManifest) -> None:
    """Render the default repository into an engine's own folder, before it is committed.

    A GPU engine gets the vocabulary file of guided decoding, too.
    """
    engine_root = None
    if manifest.backend == "tensorrt_llm":
        engine_root = ENGINE_MOUNT
        write_tokenizer_info(staged, manifest.tokens.eos)
    render(staged, manifest, staged / "repository", DeployConfig(), engine_root)


def render_noop(target: Path) -> None:
    """Render a model of the same contract that answers at once with a fixed answer, for benchmarks."""
    render_openvino.render_noop_model(target / contract.MODEL_NAME)
    check_contract(target, contract.INPUTS, contract.OUTPUTS)
