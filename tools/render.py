"""`trtb engines render`: an engine's Triton model repository, for a server that trtb does not start."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated

import typer

from trtb.tools.console import JsonFlag, command, put, put_json
from trtb.tools.deploy_options import TrtllmParameterOption

if TYPE_CHECKING:
    from trtb.build.store import StoredEngine
    from trtb.model_repo.render import DeployConfig


@command
def render(
    engine: Annotated[str, typer.Argument(help="NAME, NAME@VERSION, or an engine id.")],
    output: Annotated[Path, typer.Option(help="The folder to make; it must not be there.")],
    engine_root: Annotated[
        Path | None,
        typer.Option(help="The engine's folder as the server will see it, where that is another path."),
    ] = None,
    ensemble: Annotated[
        Path | None,
        typer.Option(
            help="NVIDIA's inflight_batcher_llm folder (/app/all_models in its image): adds the text models."
        ),
    ] = None,
    trtllm_parameter: TrtllmParameterOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Write an engine's Triton model repository into a folder, checked as a whole.

    Example: trtb engines render smollm2-135m-instruct-int8_wo --output ./repository
    """
    from trtb.build.errors import ConfigError
    from trtb.build.files import trtb_home
    from trtb.build.store import EngineStore
    from trtb.model_repo.deploy_config import DeployConfig
    from trtb.model_repo.trtllm_parameters import parse_pairs, parse_parameters

    stored = EngineStore(trtb_home()).resolve(engine)
    if output.exists() or output.is_symlink():
        raise ConfigError(f"output: {output}: there already; expected a folder to make", "choose another")
    if ensemble is not None and stored.manifest.backend != "tensorrt_llm":
        raise ConfigError(
            f"ensemble: {stored.manifest.reference} is of the {stored.manifest.backend} backend; "
            "expected a tensorrt_llm engine, which NVIDIA's text models are made for"
        )
    config = DeployConfig(trtllm=parse_parameters(parse_pairs(trtllm_parameter or [])))
    models = _render(stored, output, config, engine_root, ensemble)
    if as_json:
        put_json({"schema_version": 1, "repository": output.resolve(), "models": models})
    else:
        put(f"{output}: {', '.join(models)}")


def _render(
    stored: StoredEngine, output: Path, config: DeployConfig, engine_root: Path | None, templates: Path | None
) -> list[str]:
    """Render beside the output and rename: it is whole, or it is not there."""
    import tempfile

    from trtb.build.errors import ConfigError
    from trtb.build.files import sync_rename
    from trtb.model_repo import render as repositories
    from trtb.model_repo.render_ensemble import EnsembleConfig, render_ensemble

    root = PurePosixPath(engine_root or stored.path)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}.") as name:
            staged = Path(name) / "repository"
            repositories.render(stored.path, stored.manifest, staged, config, root)
            if templates is not None:
                render_ensemble(templates, staged, stored.manifest, EnsembleConfig(), root)
            sync_rename(staged, output)
    except OSError as exc:
        raise ConfigError(f"output: {output}: {exc.strerror or exc}; expected a place to write to") from exc
    return sorted(path.name for path in output.iterdir())
