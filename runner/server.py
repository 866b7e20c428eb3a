"""tritonserver as an object: start it on loopback, watch it, stop it, leave nothing behind.

Readiness is not asked for: a server whose engine process has died still reads as ready. What counts is
one generated token (`TritonTransport.probe`), and, for a server of our own, its processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import importlib.util
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from trtb.model_repo import contract
from trtb.runner.errors import ServerStartError

LOG_TAIL_LINES = 15
SHM = Path("/dev/shm")
SHM_PREFIX = "trtb_"
RESTRICTED = "model-repository,shared-memory,trace,logging"
# Started through this, a process dies with the one that started it; exec keeps the setting. The check of
# the parent closes the gap between fork and prctl.
DIE_WITH_PARENT = (
    "import ctypes,os,sys; ctypes.CDLL(None).prctl(1, 9); "
    "os.getppid() == int(sys.argv[1]) or sys.exit(1); os.execv(sys.argv[2], sys.argv[2:])"
)
# The engine's own process is the server's child, and does not always notice that the server is gone: its
# interpreter lock may be held in a step that does not return. This guard kills the whole group when the
# pipe from its starter closes without a word, which is what a kill -9 of the starter does.
GUARD = (
    "import os,sys,contextlib\n"
    "if not os.read(0, 1):\n"
    "    with contextlib.suppress(ProcessLookupError): os.killpg(int(sys.argv[1]), 9)"
)


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Where a server works and listens. Ports of 0 are chosen among the free ones."""

    repository: Path
    work_dir: Path  # backend folder and log; made anew at each start
    log_path: Path
    host: str = "127.0.0.1"
    grpc_port: int = 0
    metrics_port: int = 0
    http_port: int | None = None  # None: no HTTP
    exit_timeout_s: int = 30


class TritonServer:
    """The embedded tritonserver; start, watch and stop it from one thread, the one that stays to the end."""

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._stubs: list[psutil.Process] = []
        self._shm_prefix = ""
        self._ports = (config.grpc_port, config.metrics_port)
        self._log_offset = 0
        self.endpoint = ""
        self.metrics_url = ""

    @property
    def pid(self) -> int | None:
        """Return the process id of the running server."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start the process; it is not ready yet.

        Raises:
            ServerStartError: Something that the server needs is missing from this machine.
        """
        config = self._config
        sweep_shared_memory()
        install = find_install()
        backends = _make_backend_dir(install, config.work_dir)
        self._shm_prefix = f"{SHM_PREFIX}{os.getpid()}_{secrets.token_hex(3)}_"
        grpc_port, metrics_port = (port or free_port(config.host) for port in self._ports)
        self._ports = (grpc_port, metrics_port)  # a server that is started again is found where it was
        command = [
            str(install.binary),
            f"--model-repository={config.repository}",
            f"--backend-directory={backends}",
            "--model-control-mode=explicit",
            f"--load-model={contract.MODEL_NAME}",
            "--disable-auto-complete-config",
            "--allow-gpu-metrics=false",
            "--pinned-memory-pool-byte-size=0",
            f"--grpc-address={config.host}",
            f"--grpc-port={grpc_port}",
            f"--metrics-address={config.host}",
            f"--metrics-port={metrics_port}",
            f"--exit-timeout-secs={config.exit_timeout_s}",
            "--log-format=ISO8601",
            f"--backend-config=python,shm-region-prefix-name={self._shm_prefix}",
            # nobody may load models or read logs through this server: the key is told to no one
            f"--grpc-restricted-protocol={RESTRICTED}:admin-key={secrets.token_hex(16)}",
        ]
        if config.http_port is None:
            command.append("--allow-http=false")
        else:
            command += [f"--http-address={config.host}", f"--http-port={config.http_port}"]
        launcher = [sys.executable, "-I", "-S", "-c", DIE_WITH_PARENT, str(os.getpid())]
        config.log_path.parent.mkdir(parents=True, exist_ok=True)
        with config.log_path.open("ab") as log:
            self._log_offset = log.tell()
            self._process = subprocess.Popen(
                launcher + command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment(install, config.work_dir),
                start_new_session=True,  # a Ctrl-C in the terminal is the client's to handle
            )
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", GUARD, str(self._process.pid)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        self._stubs = []
        self.endpoint = f"{config.host}:{grpc_port}"
        self.metrics_url = f"http://{config.host}:{metrics_port}/metrics"

    def note_ready(self) -> None:
        """Remember the engine's processes, which from now on must stay alive."""
        assert self._process
        with contextlib.suppress(psutil.NoSuchProcess):
            self._stubs = psutil.Process(self._process.pid).children(recursive=True)

    def fault(self) -> str | None:
        """Say what is wrong with the server's processes, or None."""
        if self._process is None:
            return "the server is not running"
        status = self._process.poll()
        if status is not None:
            return f"the server ended with status {status}"
        for stub in self._stubs:
            with contextlib.suppress(psutil.NoSuchProcess):
                if stub.is_running() and stub.status() != psutil.STATUS_ZOMBIE:
                    continue
            return f"the engine process {stub.pid} ended"
        return None

    def start_error(self, reason: str) -> ServerStartError:
        """Return an error with the end of the server's log."""
        return ServerStartError(
            f"the inference server did not start: {reason}\n{self.log_tail()}",
            f"the whole log: {self._config.log_path}",
        )

    def log_tail(self) -> str:
        """Return the last lines that this start wrote to the log."""
        with contextlib.suppress(FileNotFoundError), self._config.log_path.open("rb") as log:
            log.seek(self._log_offset)
            lines = log.read().decode(errors="replace").splitlines()
            return "\n".join(f"  {line}" for line in lines[-LOG_TAIL_LINES:])
        return ""

    async def stop(self, *, graceful: bool = True) -> None:
        """End the server within its bound, the engine's processes with it, and sweep what they left.

        Args:
            graceful: Let it finish requests in flight; otherwise it is killed at once.
        """
        process, self._process = self._process, None
        if process is None:
            return
        stubs = self._stubs or _children(process.pid)
        if graceful and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            await _wait(process, self._config.exit_timeout_s + 5)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        await _wait(process, 10)
        for stub in stubs:
            with contextlib.suppress(psutil.NoSuchProcess):
                stub.kill()
        psutil.wait_procs(stubs, timeout=5)
        if self._guard is not None:
            self._guard.communicate(b"q")  # all is ended: there is nothing to guard
        for path in SHM.glob(f"{self._shm_prefix}*"):
            path.unlink(missing_ok=True)
        shutil.rmtree(self._config.work_dir / "backends", ignore_errors=True)


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


def free_port(host: str) -> int:
    """Return a port that is free now."""
    with socket.socket() as probe:
        try:
            probe.bind((host, 0))
        except OSError as exc:
            raise ServerStartError(f"{host}: {exc.strerror}; expected an address of this machine") from exc
        return int(probe.getsockname()[1])


def sweep_shared_memory() -> None:
    """Remove the shared-memory files of servers whose client is gone."""
    for path in SHM.glob(f"{SHM_PREFIX}*_*"):
        owner = path.name.removeprefix(SHM_PREFIX).split("_")[0]
        if owner.isdigit() and not psutil.pid_exists(int(owner)):
            with contextlib.suppress(OSError):
                path.unlink()


def _make_backend_dir(install: TritonInstall, work_dir: Path) -> Path:
    """Lay out the python backend with the stub of this Python beside it, as links into the wheel."""
    backends = work_dir / "backends"
    shutil.rmtree(backends, ignore_errors=True)
    python = backends / "python"
    python.mkdir(parents=True)
    for source in install.python_backend.iterdir():
        if source.is_file():
            (python / source.name).symlink_to(source)
    (python / install.stub.name).symlink_to(install.stub)
    return backends


def _environment(install: TritonInstall, work_dir: Path) -> dict[str, str]:
    """Return the server's environment: this Python first on PATH, nothing that phones home.

    Its temporary files go where the server works, and end with that folder.

    The embedded interpreter takes its packages from the `python3` it finds on PATH, not from PYTHONPATH.
    """
    libraries = [str(install.libraries)]
    if (folder := libpython_dir()) is not None:
        libraries.append(str(folder))
    if inherited := os.environ.get("LD_LIBRARY_PATH"):
        libraries.append(inherited)
    path = os.environ.get("PATH", os.defpath)
    temporary = work_dir.resolve() / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{path}",
        "LD_LIBRARY_PATH": os.pathsep.join(libraries),
        "TMPDIR": str(temporary),
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }


def _children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


async def _wait(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    """Wait for a process without blocking the event loop; returns when the time is up, too."""
    deadline = time.monotonic() + timeout_s
    while process.poll() is None and time.monotonic() < deadline:  # noqa: ASYNC110 (no event to await)
        await asyncio.sleep(0.05)
