"""What a plan or a preflight is about: a model or an engine, and the devices for it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trtb.build.backends import choose_backend
from trtb.build.errors import ConfigError, HardwareError
from trtb.build.files import trtb_home
from trtb.build.manifest import EngineManifest
from trtb.build.planning.gpu_catalogue import get_gpu
from trtb.build.planning.plan import Plan, PlanOptions, Workload
from trtb.build.planning.plan_alternatives import alternatives
from trtb.build.planning.plan_cpu import plan_cpu
from trtb.build.planning.plan_gpu import plan_gpu
from trtb.build.planning.plan_memory import Sizes
from trtb.build.planning.plan_sources import is_name, read_sizes, to_build_spec, write_tokenizer_of
from trtb.build.planning.preflight_gpu import GpuDevice, devices_named, devices_of
from trtb.build.probe.hardware_info import HardwareInfo
from trtb.build.quantization import get_scheme
from trtb.build.store import EngineStore, StoredEngine


@dataclass(frozen=True, slots=True)
class Subject:
    """A model that could be built, or an engine that is."""

    spec: str
    sizes: Sizes
    stored: StoredEngine | None

    @classmethod
    def choose(cls, model: str | None, engine: str | None) -> Subject:
        """Return what the options name.

        Raises:
            ConfigError: They name both or neither.
            CheckpointError: There is no such model, or the engine's is gone.
            StoreError: There is no such engine.
        """
        if (model is None) == (engine is None):
            raise ConfigError(
                "model, engine: expected one of them", "trtb plan --model ./config.json, or --engine NAME"
            )
        home = trtb_home()
        if model is not None:
            return cls(model, read_sizes(model, home), None)
        stored = EngineStore(home).resolve(engine)
        pin = stored.manifest.checkpoint
        spec = f"{pin.name}@{pin.revision}"
        return cls(spec, read_sizes(spec, home), stored)

    @property
    def reference(self) -> str | None:
        """Return the engine's reference."""
        return self.stored.manifest.reference if self.stored else None

    @property
    def build_spec(self) -> str:
        """Return what `trtb build --model` takes for it."""
        return to_build_spec(self.spec)

    @property
    def pinned_name(self) -> str:
        """Return what the checkpoint is pinned as: the name given, or that of the path."""
        return self.spec if is_name(self.spec) else self.sizes.name

    def read_workload(self, path: Path, default_max_tokens: int) -> Workload:
        """Count a file's tokens with the engine's tokenizer, or with the model's.

        Raises:
            ConfigError: The model has no tokenizer.
            InputFileError: The file cannot be read, or has no request to count.
        """
        from trtb.runner.workload import read_workload

        model = self.sizes.shape
        if self.stored is not None:
            tokens = self.stored.manifest.tokens
            return read_workload(path, self.stored.path / "tokenizer", model, tokens, default_max_tokens)
        with tempfile.TemporaryDirectory(prefix="trtb-plan-") as folder:
            tokenizer = Path(folder) / "tokenizer"
            tokens = write_tokenizer_of(self.spec, trtb_home(), tokenizer)
            return read_workload(path, tokenizer, model, tokens, default_max_tokens)

    def make_plan(
        self,
        options: PlanOptions,
        workload: Workload | None,
        target: Target,
        quant: str,
    ) -> Plan:
        """Return the plan of this model or engine for a target.

        Raises:
            ConfigError: The backend has no such quantisation, or an option is impossible for the model.
        """
        manifest = self.stored.manifest if self.stored else None
        scheme = get_scheme(target.backend, manifest.quant if manifest else quant)
        if target.backend == "openvino":
            limits = manifest.limits if manifest else None
            return plan_cpu(self.sizes, scheme, target.hardware.host, options, workload, limits=limits)
        if manifest:
            _check_built_for(manifest, target)
            options = _fixed_by(manifest, options)
        host = None if target.is_elsewhere else target.hardware.host.memory.available_bytes
        return plan_gpu(self.sizes, scheme, target.devices, options, workload, host_bytes=host)

    def alternatives(
        self, plan: Plan, options: PlanOptions, workload: Workload | None, target: Target
    ) -> list[str]:
        """Return what would fit where a plan on GPUs does not."""
        if plan.fits or plan.backend == "openvino" or self.stored is not None:
            return []  # an engine is what it is: another GPU or scheme is another build
        scheme = get_scheme(plan.backend, plan.quant)
        return alternatives(self.sizes, scheme, target.devices, options, workload)


@dataclass(frozen=True, slots=True)
class Target:
    """Where an engine is to run: this machine, or GPUs that were named."""

    backend: str
    why: str
    hardware: HardwareInfo
    devices: Sequence[GpuDevice]
    is_elsewhere: bool

    @classmethod
    def choose(
        cls, hardware: HardwareInfo, backend: str, gpu: str | None, num_gpus: int, stored: StoredEngine | None
    ) -> Target:
        """Return the target that the options mean.

        Raises:
            ConfigError: There is no such backend or GPU, or the two do not go together.
        """
        built_for = stored.manifest.backend if stored else None
        if gpu is not None:
            if "openvino" in (backend, built_for):
                raise ConfigError(
                    f"gpu: {gpu!r}; the openvino backend runs on the CPU",
                    "leave out --gpu, or use tensorrt_llm",
                )
            named = devices_named(get_gpu(gpu), num_gpus)
            return cls("tensorrt_llm", f"{gpu} was named", hardware, named, is_elsewhere=True)
        if built_for is not None:
            if backend not in ("auto", built_for):
                raise ConfigError(f"backend: {backend!r}; the engine was built for {built_for}")
            chosen, why = str(built_for), "the engine was built for it"
        elif backend == "tensorrt_llm":
            chosen, why = backend, "chosen by name"  # a plan is possible where a build is not
        else:
            chosen, why = choose_backend(backend)
        return cls(chosen, why, hardware, devices_of(hardware), is_elsewhere=False)


def _check_built_for(manifest: EngineManifest, target: Target) -> None:
    """Refuse a GPU on which the engine's plans do not load.

    Raises:
        HardwareError: Its compute capability is another one than that of the GPU that compiled.
    """
    wrong = [each for each in target.devices if f"sm_{each.sm}" != manifest.compute_capability]
    if target.devices and len(wrong) == len(target.devices):
        raise HardwareError(
            f"engine {manifest.reference}: compiled for {manifest.compute_capability}; "
            f"{wrong[0].name} is sm_{wrong[0].sm}",
            "build the checkpoint on that GPU, and plan it with --model",
        )


def _fixed_by(manifest: EngineManifest, options: PlanOptions) -> PlanOptions:
    """Return the options with what an engine was built with.

    Raises:
        ConfigError: Another value was asked for.
    """
    config, limits = manifest.build_config, manifest.limits
    built: dict[str, Any] = {
        "group_size": config.get("group_size"),
        "tp_size": config.get("tp_size"),
        "pp_size": config.get("pp_size"),
        "max_seq_len": limits.max_seq_len,
        "max_batch_size": limits.max_batch_size,
        "max_num_tokens": limits.max_num_tokens,
        "kv_cache_dtype": config.get("kv_cache_dtype"),
    }
    built = {name: value for name, value in built.items() if value is not None}
    unset = PlanOptions()
    for name, value in built.items():
        asked = getattr(options, name)
        if asked not in (getattr(unset, name), value):
            raise ConfigError(
                f"{name}: {asked!r}; engine {manifest.reference} was built with {value!r}",
                f"leave --{name.replace('_', '-')} out, or plan the checkpoint with --model",
            )
    return replace(options, **built)
