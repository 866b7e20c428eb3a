"""The GPU backend: Hugging Face folder -> TensorRT-LLM checkpoint, verified -> trtllm-build -> engine.

ModelOpt quantises in its toolchain, on a GPU or on this CPU; families that it does not export by itself go
through the scripts of NVIDIA's container. The compiler runs where `find_compiler` finds one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from trtb.build import files, kv_cache, quality
from trtb.build.backends.base import BuildHost, BuildPlan, BuiltCheckpoint, BuiltEngine
from trtb.build.calibration import calibrate_with
from trtb.build.checkpoint import PinnedCheckpoint
from trtb.build.checkpoints.hf_checkpoint import HfCheckpoint, read_hf, write_tokenizer
from trtb.build.compatibility import PRIMARY_TRTLLM
from trtb.build.config import BuildConfig, resolve_max_seq_len
from trtb.build.errors import (
    CheckpointUnsupportedError,
    ConfigError,
    HardwareError,
    ToolchainMissingError,
)
from trtb.build.manifest import EngineLimits, write_record
from trtb.build.quant_layout import check_layout
from trtb.build.quantization import (
    check_compute_capability,
    get_scheme,
    is_calibrated,
    resolve_kv_cache_dtype,
)
from trtb.build.steps import BuildSteps, step_files, steps_root
from trtb.build.toolchain import Toolchain, get_toolchain
from trtb.build.trtllm.modelopt_request import peak_host_bytes
from trtb.build.trtllm.trtllm_checkpoint import CheckpointReport, verify_checkpoint
from trtb.build.trtllm.trtllm_compile import CompileRecord, compile_command, compile_engine
from trtb.build.trtllm.trtllm_compiler import Compiler, find_compiler
from trtb.build.trtllm.trtllm_options import TrtllmOptions
from trtb.build.trtllm.trtllm_quantise import (
    CHECKPOINT_FOLDER,
    TOOLCHAIN_FAMILIES,
    ContainerRoad,
    Road,
    ToolchainRoad,
    needs_container,
    quantise,
    read_export,
)
from trtb.build.trtllm.trtllm_rules import CompileTarget, resolve_options
from trtb.build.trtllm.trtllm_tensors import CheckpointOptions

if TYPE_CHECKING:
    from trtb.build.calibration import CalibrationSet

TOOLCHAIN = "modelopt"
ENGINE_FOLDER = "engine"

_REPORT_FILE = "report.json"
_COMPILE_FILE = "compile.json"


@dataclass(slots=True)
class TensorrtLlmBackend:
    """Builds engines for Triton's tensorrtllm backend on NVIDIA GPUs."""

    name: Literal["tensorrt_llm"] = "tensorrt_llm"
    _compiler: Compiler | None = field(default=None, init=False)  # found by check, used by build
    _road: Road | None = field(default=None, init=False)

    def check(self, pinned: PinnedCheckpoint, config: BuildConfig, host: BuildHost) -> BuildPlan:
        """Refuse what cannot be built; see EngineBackend."""
        source = _read(pinned)
        scheme = get_scheme(self.name, config.quant)
        dtype = _resolve_dtype(config, source)
        kv_cache_dtype = resolve_kv_cache_dtype(scheme, config.kv_cache_dtype, dtype)
        toolchain = _find_toolchain(source, config, host)
        compiler = None if host.stop_after else _find_compiler(host)
        by_container = needs_container(source, config.quantise_with, compiler)
        sm = compiler.sm if compiler else None
        group_size = check_layout(
            scheme,
            source.model,
            source.intermediate_size,
            source.linears(),
            group_size=config.group_size,
            tp_size=config.tp_size,
            pp_size=config.pp_size,
            sm=sm,
            needs_kernels=compiler is not None,
        )
        remarks = check_compute_capability(scheme, sm, kv_cache_dtype) if sm is not None else ()
        max_seq_len = resolve_max_seq_len(config, source.model.max_position_embeddings)
        target = CompileTarget(
            quant=scheme.name,
            kv_cache_dtype=kv_cache_dtype,
            architecture=source.config["architectures"][0],
            max_seq_len=max_seq_len,
            tp_size=config.tp_size,
            pp_size=config.pp_size,
            sm=sm,
            num_gpus=len(compiler.gpus) if compiler and compiler.gpus else 1,
        )
        resolved = resolve_options(
            target,
            config.trtllm,
            max_batch_size=config.max_batch_size,
            max_num_tokens=config.max_num_tokens,
        )
        options = resolved.options
        config = config.model_copy(
            update={
                "group_size": group_size,
                "dtype": dtype,
                "kv_cache_dtype": kv_cache_dtype,
                "max_seq_len": max_seq_len,
                "max_batch_size": options.max_batch_size,
                "max_num_tokens": options.max_num_tokens,
                "quantise_with": "container" if by_container else "toolchain",
            }
        )
        calibration = None
        if is_calibrated(scheme, kv_cache_dtype):
            write = partial(write_tokenizer, source)
            calibration = calibrate_with(write, config.calibration, source.model.vocab_size)
        road = _road(source, config, calibration, toolchain, compiler)
        self._compiler = compiler
        self._road = road
        return BuildPlan(
            config=config,
            model=source.model,
            toolchain=road.versions | (compiler.versions if compiler else {}),
            compute_capability=f"sm_{sm}" if sm else "any",
            # compiling holds the checkpoint about twice
            peak_host_bytes=max(peak_host_bytes(source, dtype), 2 * source.weight_bytes),
            calibration=calibration,
            gpu=compiler.gpus[0] if compiler and compiler.gpus else None,
            container=compiler.image if compiler else None,
            backend_options=json.loads(options.model_dump_json()),
            commands=_commands(road, compiler, options, host.home),
            notes=tuple(f"{name}: {why}" for name, why in resolved.reasons.items()),
            warnings=(*remarks, *resolved.warnings, *(calibration.warnings if calibration else ())),
        )

    def build_checkpoint(
        self, pinned: PinnedCheckpoint, plan: BuildPlan, steps: BuildSteps
    ) -> BuiltCheckpoint:
        """Quantise, verify and measure; nothing is compiled.

        Raises:
            CheckpointError: A weight is not a number.
            QuantizationError: The files are not what they should be, or worse than the scheme explains.
            BuildError: A step failed.
        """
        assert self._road is not None
        quantised = _quantise(pinned, self._road, steps)
        report = _verify(_read(pinned), plan, quantised, steps)
        export = read_export(quantised)
        measured = export.quality if export else None
        if measured:
            quality.check_report(measured, get_scheme(self.name, plan.config.quant))
        return BuiltCheckpoint(
            path=quantised / CHECKPOINT_FOLDER,
            quality=measured,
            report={
                **json.loads(report.model_dump_json()),
                "export": json.loads(export.model_dump_json()) if export else None,
            },
        )

    def build(
        self, pinned: PinnedCheckpoint, plan: BuildPlan, staging: Path, steps: BuildSteps
    ) -> BuiltEngine:
        """Fill `staging` with the engine's files; see EngineBackend."""
        source = _read(pinned)
        assert self._compiler is not None
        checkpoint = self.build_checkpoint(pinned, plan, steps)
        compiled = _compile(self._compiler, plan, checkpoint.path.parent, steps)
        record = CompileRecord.model_validate_json((compiled / _COMPILE_FILE).read_bytes())
        for path in sorted((compiled / ENGINE_FOLDER).rglob("*")):
            target = staging / path.relative_to(compiled)
            if path.is_dir():
                target.mkdir(parents=True)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                files.link_or_copy(path, target)
        steps.say("tokenizer", "writing tokenizer.json")
        write_tokenizer(source, staging / "tokenizer")
        return BuiltEngine(
            model=plan.model,
            tokens=source.tokens,
            limits=_limits(plan, record),
            quality=checkpoint.quality,
            checkpoint_report=checkpoint.report,
            peak_host_bytes=record.peak_host_bytes,
        )


def _read(pinned: PinnedCheckpoint) -> HfCheckpoint:
    if pinned.pin.format != "hf":
        raise CheckpointUnsupportedError(
            f"{pinned.path}: a GGUF file; the tensorrt_llm backend builds Hugging Face folders",
            f"trtb models fetch {pinned.pin.name} --format hf, or give the folder of the same model",
        )
    return read_hf(pinned.path)


def _resolve_dtype(config: BuildConfig, source: HfCheckpoint) -> Literal["bf16", "f16"]:
    """Return the type of what is not quantised: the checkpoint's own, or bf16 of one in float32."""
    asked = {"bf16": "bf16", "f16": "f16"}.get(config.quant)
    if asked and config.dtype not in ("auto", asked):
        raise ConfigError(
            f"dtype: {config.dtype!r}; --quant {config.quant} means weights in {asked}",
            f"leave --dtype out, or use --quant {config.dtype}",
        )
    if config.dtype != "auto":
        return config.dtype
    chosen = asked or ("f16" if source.dtype == "f16" else "bf16")
    return cast("Literal['bf16', 'f16']", chosen)


def _find_toolchain(source: HfCheckpoint, config: BuildConfig, host: BuildHost) -> Toolchain | None:
    """Return the toolchain that quantises; None where the container's scripts may have to."""
    if config.quantise_with == "container" or source.config["model_type"] not in TOOLCHAIN_FAMILIES:
        return None
    try:
        return get_toolchain(TOOLCHAIN, host.home)
    except ToolchainMissingError:
        if host.is_dry_run:  # what would be run is known without it
            return None
        raise


def _find_compiler(host: BuildHost) -> Compiler:
    try:
        return find_compiler(host.compile_with)
    except (ToolchainMissingError, HardwareError) as exc:
        if host.is_dry_run:
            return Compiler(None, PRIMARY_TRTLLM.image)
        hint = f"{exc.hint}; or --stop-after checkpoint, which needs no compiler and no GPU"
        raise type(exc)(exc.message, hint) from exc


def _checkpoint_options(config: BuildConfig) -> CheckpointOptions:
    assert config.dtype != "auto"
    return CheckpointOptions(
        scheme=get_scheme("tensorrt_llm", config.quant),
        dtype=config.dtype,
        kv_cache_dtype=config.kv_cache_dtype,
        group_size=config.group_size,
        tp_size=config.tp_size,
        pp_size=config.pp_size,
    )


def _road(
    source: HfCheckpoint,
    config: BuildConfig,
    calibration: CalibrationSet | None,
    toolchain: Toolchain | None,
    compiler: Compiler | None,
) -> Road:
    options = _checkpoint_options(config)
    if config.quantise_with == "container":
        assert compiler is not None
        assert compiler.image is not None
        return ContainerRoad(source, options, calibration, config.calibration, compiler.image)
    return ToolchainRoad(source, options, calibration, toolchain)


def _quantise(pinned: PinnedCheckpoint, road: Road, steps: BuildSteps) -> Path:
    """Return the step that holds the checkpoint and how it was made."""
    inputs = {
        "checkpoint": [[entry.path, entry.sha256] for entry in pinned.pin.files],
        "versions": road.versions,
        **road.inputs(),
    }
    return steps.run("quantise", inputs, lambda folder: quantise(road, folder, steps))


def _verify(source: HfCheckpoint, plan: BuildPlan, quantised: Path, steps: BuildSteps) -> CheckpointReport:
    def produce(folder: Path) -> None:
        report = verify_checkpoint(
            quantised / CHECKPOINT_FOLDER, source, _checkpoint_options(plan.config), steps.say
        )
        write_record(folder / _REPORT_FILE, report)

    folder = steps.run("verify", {"quantised": step_files(quantised)}, produce)
    return CheckpointReport.model_validate_json((folder / _REPORT_FILE).read_bytes())


def _compile(compiler: Compiler, plan: BuildPlan, quantised: Path, steps: BuildSteps) -> Path:
    options = TrtllmOptions.model_validate_json(json.dumps(plan.backend_options))

    def produce(folder: Path) -> None:
        (folder / ENGINE_FOLDER).mkdir()
        record = compile_engine(
            compiler,
            options,
            quantised / CHECKPOINT_FOLDER,
            folder / ENGINE_FOLDER,
            log=steps.log,
            say=steps.say,
        )
        write_record(folder / _COMPILE_FILE, record)

    inputs = {
        "quantised": step_files(quantised),
        "options": plan.backend_options,
        "versions": compiler.versions,
        "image": compiler.image,
        "gpus": [gpu.model_dump() for gpu in compiler.gpus],
    }
    return steps.run("compile", inputs, produce)


def _commands(
    road: Road, compiler: Compiler | None, options: TrtllmOptions, home: Path
) -> tuple[tuple[str, ...], ...]:
    if compiler is None:
        return (road.command(),)
    steps = steps_root(home)  # the folders' hashes are known when the step before is done
    checkpoint = steps / "quantise-HASH" / CHECKPOINT_FOLDER
    compile_line = compile_command(compiler, options, checkpoint, steps / "compile-HASH" / ENGINE_FOLDER)
    return (road.command(), tuple(compile_line))


def _limits(plan: BuildPlan, record: CompileRecord) -> EngineLimits:
    """Return what the engine was built for, which the compiler may have lowered."""
    options = TrtllmOptions.model_validate_json(json.dumps(plan.backend_options))
    lowered = {each.option: each.built for each in record.engine.adjustments}
    model, config = plan.model, plan.config
    return EngineLimits(
        max_seq_len=int(lowered.get("max_seq_len", options.max_seq_len)),
        max_batch_size=int(lowered.get("max_batch_size", options.max_batch_size)),
        max_num_tokens=int(lowered.get("max_num_tokens", options.max_num_tokens)),
        tokens_per_block=options.tokens_per_block,
        kv_bytes_per_token=kv_cache.num_bytes_per_token(  # of one rank
            -(-model.num_layers // config.pp_size),
            max(1, model.num_kv_heads // config.tp_size),
            model.head_dim,
            config.kv_cache_dtype,
        ),
    )
