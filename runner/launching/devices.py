"""Which GPUs a server gets: those asked for, cut into groups, or those here that suit best. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from trtb.build.errors import ConfigError
from trtb.build.manifest import EngineManifest
from trtb.build.planning.preflight_engine import world_size
from trtb.build.probe.hardware_info import GpuInfo, HardwareInfo

Group = tuple[str, ...]  # GPUs by the driver's numbers, one for each rank of a server
_NUMBER: Final = re.compile(r"\d{1,3}")


def parse_devices(text: str) -> tuple[Group, ...]:
    """Return the groups of GPUs that a person typed.

    >>> parse_devices("0,1;2,3")
    (('0', '1'), ('2', '3'))

    Raises:
        ConfigError: It is no such list, or names a GPU twice.
    """
    groups = tuple(tuple(part.strip() for part in group.split(",")) for group in text.split(";"))
    devices = [device for group in groups for device in group]
    if wrong := [device for device in devices if not _NUMBER.fullmatch(device)]:
        raise ConfigError(
            f"device_ids: {wrong[0]!r} in {text!r}; expected numbers of GPUs, such as 0,1 or 0,1;2,3",
            "nvidia-smi lists them; of GPUs in MIG mode choose a slice with CUDA_VISIBLE_DEVICES",
        )
    if twice := sorted({device for device in devices if devices.count(device) > 1}):
        raise ConfigError(
            f"device_ids: GPU {twice[0]} twice in {text!r}; expected each at most once",
            "two servers on one GPU would each take its memory",
        )
    return groups


def read_devices(given: object) -> tuple[str, ...]:
    """Return the groups that a person typed or a job file holds, as a text or as lists; one text each.

    >>> read_devices([0, 1]), read_devices([[0, 1], [2, 3]]), read_devices("0;1"), read_devices([])
    (('0,1',), ('0,1', '2,3'), ('0', '1'), ())

    Raises:
        ConfigError: It is no such list, or names a GPU twice.
    """
    text = given
    if isinstance(given, list):
        is_flat = all(isinstance(entry, int) for entry in given)
        text = ("," if is_flat else ";").join(_joined(entry) for entry in given)
    if not isinstance(text, str):
        text = str(text)
    return tuple(",".join(group) for group in parse_devices(text)) if text.strip() else ()


def _joined(entry: object) -> str:
    return ",".join(map(str, entry)) if isinstance(entry, list) else str(entry)


def group_devices(groups: Sequence[Group], manifest: EngineManifest) -> tuple[Group, ...]:
    """Return one group for each server of an engine; a single list is cut into as many as it makes.

    Raises:
        ConfigError: The engine is not one for GPUs, or a group has not one for each of its ranks.
    """
    if not groups:
        return ()
    if manifest.backend != "tensorrt_llm":
        raise ConfigError(
            f"device_ids: engine {manifest.reference} runs on the CPU",
            "leave it out: --device-ids is of GPUs",
        )
    size = world_size(manifest)
    given = groups
    if len(groups) == 1:
        flat = groups[0]
        given = [flat[start : start + size] for start in range(0, len(flat), size)]
    for group in given:
        if len(group) != size:
            raise ConfigError(
                f"device_ids: {shown(groups)}; engine {manifest.reference} has {size} "
                f"{'ranks' if size > 1 else 'rank'}: expected {size} GPUs for each server",
                "separate the servers' groups with ;",
            )
    return tuple(tuple(group) for group in given)


def parse_groups(texts: Sequence[str]) -> tuple[Group, ...]:
    """Return the groups that `parse_devices` has checked and that were kept as texts, one each."""
    return tuple(tuple(text.split(",")) for text in texts)


def shown(groups: Sequence[Group]) -> str:
    """Return groups as they are typed.

    >>> shown([("0", "1"), ("2", "3")])
    '0,1;2,3'
    """
    return ";".join(",".join(group) for group in groups)


def with_devices(hardware: HardwareInfo, group: Group) -> HardwareInfo:
    """Return the machine as a server would see it that gets those GPUs alone."""
    return hardware.model_copy(
        update={"gpus": tuple(gpu for gpu in hardware.gpus if str(gpu.index) in group)}
    )


def visible(hardware: HardwareInfo) -> HardwareInfo:
    """Return the machine as CUDA sees it: without the GPUs that CUDA_VISIBLE_DEVICES hides.

    A variable that names slices, or anything else that is no number and no UUID of a GPU, is CUDA's to read.
    """
    told = hardware.host.cuda_visible_devices
    names = [name.strip() for name in told.split(",")] if told else []
    if not names or any(not (_NUMBER.fullmatch(name) or name.startswith("GPU-")) for name in names):
        return hardware
    gpus = tuple(gpu for gpu in hardware.gpus if any(_is_named(gpu, name) for name in names))
    return hardware.model_copy(update={"gpus": gpus})


def choose_devices(hardware: HardwareInfo, manifest: EngineManifest) -> Group:
    """Return as many equal GPUs of an engine's kind as it has ranks, those with the most free memory.

    Empty where there are too few, or where slices are the devices: CUDA then takes what it sees.
    """
    size = world_size(manifest)
    kinds: dict[str | None, list[GpuInfo]] = {}
    for gpu in hardware.gpus:
        is_usable = gpu.compute_mode != "prohibited" and gpu.mig_mode != "enabled"
        if is_usable and f"sm_{gpu.sm}" == manifest.compute_capability:
            kinds.setdefault(gpu.name, []).append(gpu)
    fitting = [kind for kind in kinds.values() if len(kind) >= size]
    if not fitting:
        return ()
    chosen = max((sorted(kind, key=_free, reverse=True)[:size] for kind in fitting), key=_least_free)
    return tuple(str(gpu.index) for gpu in sorted(chosen, key=lambda gpu: gpu.index))


def _least_free(gpus: Sequence[GpuInfo]) -> int:
    return min(_free(gpu) for gpu in gpus)


def _free(gpu: GpuInfo) -> int:
    return gpu.memory_free_bytes or gpu.memory_total_bytes or 0


def _is_named(gpu: GpuInfo, name: str) -> bool:
    return name == str(gpu.index) or (name.startswith("GPU-") and (gpu.uuid or "").startswith(name))
