"""The embedded tritonserver: the one in this Python's nvidia-pytriton, with this Python as its backend's."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath

from trtb.runner.errors import ServerStartError
from trtb.runner.launching.launch import Listening, ServerConfig, StartPlan, server_options


@dataclass(frozen=True, slots=True)
class Embedded:
    """Runs the copy of tritonserver that came with our dependencies; it has the python backend alone."""

    @property
    def engine_root(self) -> PurePath | None:
        """Return None: the server sees what we see."""
        return None

    def plan(self, config: ServerConfig, listening: Listening) -> StartPlan:
        """Return what would be executed.

        Raises:
            ServerStartError: nvidia-pytriton is not installed, or this Python's shared library is missing.
        """
        install = find_install()
        argv = [
            str(install.binary),
            f"--backend-directory={config.work_dir / 'backends'}",
            "--allow-gpu-metrics=false",
            "--pinned-memory-pool-byte-size=0",
            *server_options(config.repository, listening, config.exit_timeout_s),
        ]
        return StartPlan(tuple(argv), _environment(install, config.work_dir))

    def lay_out(self, config: ServerConfig) -> None:
        """Lay out the python backend with the stub of this Python beside it, as links into the wheel."""
        install = find_install()
        backends = config.work_dir / "backends"
        shutil.rmtree(backends, ignore_errors=True)
        python = backends / "python"
        python.mkdir(parents=True)
        for source in install.python_backend.iterdir():
            if source.is_file():
                (python / source.name).symlink_to(source)
        (python / install.stub.name).symlink_to(install.stub)
        (config.work_dir / "tmp").mkdir(exist_ok=True)


@dataclass(frozen=True, slots=True)
class TritonInstall:
    """The parts of the nvidia-pytriton wheel that are used."""

    binary: Path
    python_backend: Path
    stub: Path
    libraries: Path


def find_install() -> TritonInstall:
    """Find tritonserver in the nvidia-pytriton distribution, without importing that.

    Raises:
        ServerStartError: It is not installed, or this Python's shared library is missing.
    """
    spec = importlib.util.find_spec("pytriton")
    if spec is None or not spec.submodule_search_locations:
        raise ServerStartError("nvidia-pytriton is not installed", "pip install 'trtb' in this environment")
    package = Path(next(iter(spec.submodule_search_locations)))
    root = package / "tritonserver"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    install = TritonInstall(
        binary=root / "bin" / "tritonserver",
        python_backend=root / "backends" / "python",
        stub=root / "python_backend_stubs" / version / "triton_python_backend_stub",
        libraries=package.parent / "nvidia_pytriton.libs",
    )
    for path in (install.binary, install.stub):
        if not path.is_file():
            found = importlib.metadata.version("nvidia-pytriton")
            raise ServerStartError(f"nvidia-pytriton {found} has no {path.name} for Python {version}")
    return install


def libpython_dir() -> Path | None:
    """Return the folder of this Python's shared library, or None where the system's loader knows it.

    Raises:
        ServerStartError: There is none; the server's python backend is linked against it.
    """
    name = sysconfig.get_config_var("INSTSONAME") or ""
    folder = sysconfig.get_config_var("LIBDIR") or ""
    if ".so" in name and Path(folder, name).is_file():
        return Path(folder)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    for candidate in system_library_dirs():
        if (candidate / f"libpython{version}.so.1.0").is_file():
            return candidate
    raise ServerStartError(
        f"libpython{version}.so.1.0 is not on this machine; Triton's python backend needs it",
        f"Debian, Ubuntu: apt-get install libpython{version}",
    )


def system_library_dirs() -> Iterator[Path]:
    """Yield the usual folders of shared libraries."""
    multiarch = sysconfig.get_config_var("MULTIARCH") or "x86_64-linux-gnu"
    yield from (Path(f"/usr/lib/{multiarch}"), Path("/usr/lib64"), Path("/usr/lib"), Path("/usr/local/lib"))


def _environment(install: TritonInstall, work_dir: Path) -> dict[str, str]:
    """Return what the server's environment has over ours: this Python first on PATH, nothing phones home.

    Its temporary files go where the server works, and end with that folder.

    The embedded interpreter takes its packages from the `python3` it finds on PATH, not from PYTHONPATH.
    """
    libraries = [str(install.libraries)]
    if (folder := libpython_dir()) is not None:
        libraries.append(str(folder))
    if inherited := os.environ.get("LD_LIBRARY_PATH"):
        libraries.append(inherited)
    path = os.environ.get("PATH", os.defpath)
    return {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{path}",
        "LD_LIBRARY_PATH": os.pathsep.join(libraries),
        "TMPDIR": str(work_dir.resolve() / "tmp"),
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
