"""Where an engine's server runs: embedded, in the image that we are in, or in a container of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from trtb.build import compatibility
from trtb.build.errors import ConfigError, HardwareError
from trtb.build.manifest import EngineManifest
from trtb.build.planning.preflight_engine import OPENVINO_RUNTIME, world_size
from trtb.runner.errors import ServerStartError
from trtb.runner.launching.devices import Group
from trtb.runner.launching.launch import Choice, Launch
from trtb.runner.launching.launch_docker import DockerLaunch, docker
from trtb.runner.launching.launch_embedded import Embedded
from trtb.runner.launching.launch_image import (
    BACKEND,
    BINARY,
    RELEASE_VARIABLE,
    Image,
    ImageLaunch,
    read_image,
    versions_of_release,
)


@dataclass(frozen=True, slots=True)
class EmbeddedPlace:
    """This Python's own tritonserver and OpenVINO."""

    @property
    def runtime(self) -> Mapping[str, str]:
        """Return the versions that would load the engine."""
        return compatibility.installed_versions(OPENVINO_RUNTIME)

    def launch(self, engine_dir: Path, manifest: EngineManifest, devices: Group) -> Launch:  # noqa: ARG002
        """Return the launch of one server."""
        return Embedded()


@dataclass(frozen=True, slots=True)
class ImagePlace:
    """NVIDIA's image, which this process is in."""

    image: Image

    @property
    def runtime(self) -> Mapping[str, str]:
        """Return the versions that would load the engine."""
        return self.image.versions

    def launch(self, engine_dir: Path, manifest: EngineManifest, devices: Group) -> Launch:  # noqa: ARG002
        """Return the launch of one server on those GPUs."""
        return ImageLaunch(self.image, world_size(manifest), devices)


@dataclass(frozen=True, slots=True)
class DockerPlace:
    """A container of NVIDIA's image, which docker starts."""

    image: str
    runtime: Mapping[str, str]  # the versions that would load the engine

    def launch(self, engine_dir: Path, manifest: EngineManifest, devices: Group) -> Launch:
        """Return the launch of one server on those GPUs."""
        return DockerLaunch(self.image, engine_dir, world_size(manifest), devices)


Place = EmbeddedPlace | ImagePlace | DockerPlace


def choose_place(choice: Choice, manifest: EngineManifest, *, root: Path = Path("/")) -> Place:
    """Return where to serve an engine; "auto" takes the image that we are in, else a container.

    Raises:
        ConfigError: The choice is not one for this backend.
        HardwareError: Nowhere here; what was looked for where is told.
    """
    if manifest.backend == "openvino":
        if choice not in ("auto", "embedded"):
            raise _not_for(manifest, choice, "embedded")
        return EmbeddedPlace()
    if choice == "embedded":
        raise _not_for(manifest, choice, "image or docker")
    ways: dict[str, Callable[[], Place | str]] = {
        "image": lambda: _find_here(root),
        "docker": lambda: _find_by_docker(manifest),
    }
    missing: list[str] = []
    for way in ways.values() if choice == "auto" else (ways[choice],):
        found = way()
        if not isinstance(found, str):
            return found
        missing.append(found)
    image = image_of(manifest)
    raise HardwareError(
        f"engine {manifest.reference}: built with {built_with(manifest)}; "
        f"nothing here serves it: {'; '.join(missing)}",
        f"run trtb inside {image}, or where docker can start it" if image else "build it again here",
    )


def image_of(manifest: EngineManifest) -> str | None:
    """Return the image that serves an engine: the one that built it, or another of the same release."""
    if manifest.container is not None:
        return manifest.container
    release = compatibility.get_release(_version(manifest))
    return release.image if release else None


def built_with(manifest: EngineManifest) -> str:
    """Return what built an engine, in a few words."""
    tensorrt = manifest.toolchain.get("tensorrt", "unknown")
    version = _version(manifest) or "unknown"
    return f"TensorRT-LLM {version}, TensorRT {tensorrt} for {manifest.compute_capability}"


def _find_here(root: Path) -> ImagePlace | str:
    """Return the image that we are in, or what is missing."""
    for path in (BINARY, BACKEND):
        if not (root / path).is_file():
            return f"{root / path}: not found"
    if shutil.which("mpirun") is None:
        return "mpirun: no such command on the PATH"
    return ImagePlace(read_image(root))


def _find_by_docker(manifest: EngineManifest) -> DockerPlace | str:
    """Return the image that docker would start, or what is missing."""
    image = image_of(manifest)
    if image is None:
        return f"docker: no image is known with TensorRT-LLM {_version(manifest) or 'unknown'}"
    try:
        docker("version", "--format", "{{.Server.Version}}")
    except ServerStartError as exc:
        return exc.message
    try:
        told = docker("image", "inspect", "--format", "{{json .Config.Env}}", image)
    except ServerStartError:
        return f"docker: the image {image} is not on this machine (docker pull {image})"
    return DockerPlace(image, _versions_of_image(image, told, manifest))


def _versions_of_image(image: str, environment: str, manifest: EngineManifest) -> dict[str, str]:
    """Return what an image has, by what it says of itself, or by its tag; by the manifest that names it."""
    try:
        variables = json.loads(environment) or []
    except ValueError:
        variables = []
    container = next(
        (
            str(entry).partition("=")[2]
            for entry in variables
            if str(entry).startswith(f"{RELEASE_VARIABLE}=")
        ),
        "",
    )
    if versions := versions_of_release(container):
        return versions
    if release := compatibility.get_release_of_image(image):
        return {"tensorrt_llm": release.version, "tensorrt": release.tensorrt}
    return dict(manifest.toolchain) if image == manifest.container else {}


def _version(manifest: EngineManifest) -> str:
    return next(
        (version for name, version in manifest.toolchain.items() if name.replace("-", "_") == "tensorrt_llm"),
        "",
    )


def _not_for(manifest: EngineManifest, choice: str, expected: str) -> ConfigError:
    return ConfigError(
        f"launch: {choice}, and {manifest.reference} is of {manifest.backend}; expected auto or {expected}",
        "leave --launch out",
    )
