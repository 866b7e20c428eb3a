"""`trtb build`: a checkpoint becomes an engine in the store."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from trtb.tools.console import JsonFlag, command, put, put_json
from trtb.tools.models import say_step

if TYPE_CHECKING:
    from trtb.build.backends.base import BuiltCheckpoint
    from trtb.build.config import BuildConfig
    from trtb.build.prepare import PreparedBuild
    from trtb.build.store import StoredEngine

_SCHEME = "Scheme"
_LIMITS = "Limits"
_CALIBRATION = "Calibration"
_HOST = "This build"


@command
def build(
    model: Annotated[
        str,
        typer.Option(
            "--model", help="A pinned name, a .gguf file, a Hugging Face folder, hf:org/name@commit."
        ),
    ],
    quant: Annotated[
        str,
        typer.Option(
            help="int8_wo, fp8, int4_awq, nvfp4 ...: README, Quantisations.", rich_help_panel=_SCHEME
        ),
    ] = "int8_wo",
    group_size: Annotated[
        int | None,
        typer.Option(
            help="Group of a scheme that has groups; must divide the model's widths.",
            rich_help_panel=_SCHEME,
        ),
    ] = None,
    dtype: Annotated[
        str,
        typer.Option(help="Of what is not quantised: auto, bf16 or f16 (GPU).", rich_help_panel=_SCHEME),
    ] = "auto",
    kv_cache_dtype: Annotated[
        str, typer.Option(help="auto, or fp8 or int8 (GPU).", rich_help_panel=_SCHEME)
    ] = "auto",
    tp_size: Annotated[
        int, typer.Option(help="GPUs that share each layer (tensor parallel).", rich_help_panel=_SCHEME)
    ] = 1,
    pp_size: Annotated[
        int, typer.Option(help="GPUs that share the layers (pipeline parallel).", rich_help_panel=_SCHEME)
    ] = 1,
    max_quality_loss: Annotated[
        float | None,
        typer.Option(
            help="Refuse an engine whose perplexity rises by more: 0.05 is 5 %.", rich_help_panel=_SCHEME
        ),
    ] = None,
    max_seq_len: Annotated[
        int | None,
        typer.Option(
            help="Prompt and answer together, in tokens; default: the model's, at most 8192.",
            rich_help_panel=_LIMITS,
        ),
    ] = None,
    max_batch_size: Annotated[
        int | None,
        typer.Option(
            help="Most requests in flight; default 128 on a CPU, 512 on a GPU.", rich_help_panel=_LIMITS
        ),
    ] = None,
    max_num_tokens: Annotated[
        int | None,
        typer.Option(
            help="Most tokens computed in one step; default 512 on a CPU, 8192 on a GPU.",
            rich_help_panel=_LIMITS,
        ),
    ] = None,
    calibration: Annotated[
        str | None,
        typer.Option(
            help="JSONL of requests (the batch file itself is best) or text; default: a built-in set.",
            rich_help_panel=_CALIBRATION,
        ),
    ] = None,
    calibration_samples: Annotated[
        int, typer.Option(help="How many samples are drawn.", rich_help_panel=_CALIBRATION)
    ] = 128,
    calibration_tokens: Annotated[
        int, typer.Option(help="Most tokens of one sample.", rich_help_panel=_CALIBRATION)
    ] = 512,
    calibration_seed: Annotated[
        int, typer.Option(help="Seed of the draw.", rich_help_panel=_CALIBRATION)
    ] = 1234,
    name: Annotated[
        str | None, typer.Option(help="The engine's name; default MODEL-QUANT.", rich_help_panel=_HOST)
    ] = None,
    backend: Annotated[
        str, typer.Option(help="auto, openvino (CPU) or tensorrt_llm (GPU).", rich_help_panel=_HOST)
    ] = "auto",
    compile_with: Annotated[
        str,
        typer.Option(
            help="Where trtllm-build runs: auto, path or docker (the pinned image).", rich_help_panel=_HOST
        ),
    ] = "auto",
    quantise_with: Annotated[
        str,
        typer.Option(
            help="For a GPU: auto, toolchain (ModelOpt) or container (NVIDIA's scripts).",
            rich_help_panel=_HOST,
        ),
    ] = "auto",
    trtllm_option: Annotated[
        list[str] | None,
        typer.Option(help="NAME=VALUE: one more option of trtllm-build; repeatable.", rich_help_panel=_HOST),
    ] = None,
    stop_after: Annotated[
        str | None,
        typer.Option(
            help="checkpoint: quantise and verify, do not compile; the same command goes on from there.",
            rich_help_panel=_HOST,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check all, print what would be done.", rich_help_panel=_HOST)
    ] = False,
    keep_steps: Annotated[
        bool,
        typer.Option(
            "--keep-steps",
            help="Keep the finished steps for other builds of this checkpoint (trtb engines prune).",
            rich_help_panel=_HOST,
        ),
    ] = False,
    allow_remote_code: Annotated[
        bool,
        typer.Option(
            help="Accept a checkpoint whose config names code of its own (auto_map).", rich_help_panel=_HOST
        ),
    ] = False,
    check_memory: Annotated[
        bool,
        typer.Option(help="Refuse before any work where the memory is too small.", rich_help_panel=_HOST),
    ] = True,
    as_json: JsonFlag = False,
) -> None:
    """Build an engine from a pinned checkpoint: quantise, compile, measure, verify, store, deploy.

    Example: trtb build --model smollm2-135m-instruct --quant int8_wo
    """
    from trtb.build.backends.base import BuildHost
    from trtb.build.config import make_config
    from trtb.build.files import trtb_home
    from trtb.build.pipeline import build_checkpoint, build_prepared, check_quality_bound
    from trtb.build.prepare import prepare_build
    from trtb.model_repo.render import render_into_engine

    check_quality_bound(max_quality_loss)
    config = make_config(
        quant=quant,
        group_size=group_size,
        dtype=dtype,
        kv_cache_dtype=kv_cache_dtype,
        tp_size=tp_size,
        pp_size=pp_size,
        max_seq_len=max_seq_len,
        max_batch_size=max_batch_size,
        max_num_tokens=max_num_tokens,
        calibration={
            "source": calibration,
            "num_samples": calibration_samples,
            "max_tokens": calibration_tokens,
            "seed": calibration_seed,
        },
        quantise_with=quantise_with,
        trtllm=_parse_options(trtllm_option or []),
    )
    host = BuildHost(
        trtb_home(),
        cast(
            "Literal['auto', 'path', 'docker']",
            _one_of("compile-with", compile_with, "auto", "path", "docker"),
        ),
        cast("Literal['checkpoint'] | None", stop_after and _one_of("stop-after", stop_after, "checkpoint")),
        is_dry_run=dry_run,
    )
    prepared = prepare_build(
        model,
        config,
        host,
        name=name,
        backend=backend,
        progress=say_step,
        allow_remote_code=allow_remote_code,
    )
    if dry_run:
        _put_plan(prepared, config, as_json)
    elif host.stop_after:
        built = build_checkpoint(prepared, check_memory=check_memory, max_quality_loss=max_quality_loss)
        _put_checkpoint(built, as_json)
    else:
        stored = build_prepared(
            prepared,
            check_memory=check_memory,
            max_quality_loss=max_quality_loss,
            keep_steps=keep_steps,
            deploy=render_into_engine,
        )
        _put_engine(stored, as_json)


def _put_checkpoint(built: BuiltCheckpoint, as_json: bool) -> None:
    quality = built.quality
    if as_json:
        put_json(
            {
                "schema_version": 1,
                "checkpoint": built.path,
                "quality": quality.model_dump() if quality else None,
                "report": built.report,
            }
        )
        return
    put(f"checkpoint  {built.path}")
    if quality:
        put(
            f"quality     perplexity {quality.perplexity:.3f} against {quality.base_perplexity:.3f} of "
            f"{quality.base}; same top choice at {quality.top1_agreement:.1%} of {quality.num_tokens} tokens"
        )


def _put_engine(stored: StoredEngine, as_json: bool) -> None:
    if as_json:
        put_json({"path": stored.path, **stored.manifest.model_dump()})
    else:
        put(f"{stored.manifest.reference}  {stored.manifest.engine_id[:12]}  {stored.path}")


def _put_plan(prepared: PreparedBuild, config: BuildConfig, as_json: bool) -> None:
    plan = prepared.plan
    if as_json:
        put_json(
            {
                "schema_version": 1,
                "engine_id": prepared.engine_id,
                "backend": prepared.backend.name,
                "config": plan.config.model_dump(),
                "toolchain": plan.toolchain,
                "compute_capability": plan.compute_capability,
                "container": plan.container,
                "peak_host_bytes": plan.peak_host_bytes,
                "commands": [list(line) for line in plan.commands],
            }
        )
        return
    put(f"engine      {prepared.name}  {prepared.engine_id[:12]}")
    put(f"backend     {prepared.backend.name}, {plan.compute_capability}, quant {config.quant}")
    put(f"config      {plan.config.model_dump_json()}")
    put("toolchain   " + ", ".join(f"{name} {version}" for name, version in plan.toolchain.items()))
    put(f"memory      about {plan.peak_host_bytes / (1 << 30):.1f} GiB of the host at its peak")
    for line in plan.commands:
        put(shlex.join(line))


def _one_of(option: str, value: str, *allowed: str) -> str:
    from trtb.build.errors import ConfigError

    if value not in allowed:
        raise ConfigError(f"{option}: {value!r}; expected {' or '.join(allowed)}")
    return value


def _parse_options(pairs: list[str]) -> dict[str, Any]:
    """Split NAME=VALUE; the backend knows the names and the types."""
    from trtb.build.errors import ConfigError

    options: dict[str, Any] = {}
    for pair in pairs:
        name, is_given, value = pair.partition("=")
        if not is_given or not name:
            raise ConfigError(f"trtllm-option: {pair!r}; expected NAME=VALUE, as in multiple_profiles=enable")
        name = name.lstrip("-").replace("-", "_")
        if name in options:
            raise ConfigError(f"trtllm-option: {name} is given twice; expected one value")
        options[name] = value
    return options
