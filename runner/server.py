"""tritonserver as an object: start it, watch it, stop it, leave nothing behind.

Readiness is not asked for: a server whose engine process has died still reads as ready. What counts is
one generated token (`TritonTransport.probe`), and, for a server of our own, its processes. Where it runs
is its launch's business; what was started is one group of processes here, and perhaps a container.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from trtb.build.child_process import DIE_WITH_PARENT, GUARD
from trtb.runner.errors import ServerStartError
from trtb.runner.launching.drain import wait_drained
from trtb.runner.launching.launch import SHM_PREFIX, Launch, Listening, ServerConfig, StartPlan, shm_prefix_of
from trtb.runner.launching.launch_embedded import Embedded
from trtb.runner.launching.start_causes import explain

__all__ = ["ServerConfig", "TritonServer", "free_port", "sweep_shared_memory"]

LOG_TAIL_LINES = 15
MAX_EXPLAINED_BYTES = 1 << 20  # of a log, its end
KILL_GRACE_S = 5.0  # for MPI to remove what it keeps outside our folders
END_ALSO_TIMEOUT_S = 60.0
SHM = Path("/dev/shm")


class TritonServer:
    """A tritonserver of ours; start, watch and stop it from one thread, the one that stays to the end."""

    def __init__(self, config: ServerConfig, launch: Launch | None = None) -> None:
        self._config = config
        self._launch = Embedded() if launch is None else launch
        self._plan: StartPlan | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._stubs: list[psutil.Process] = []
        self._shm_prefix = ""
        self._ports = (config.grpc_port, config.metrics_port)
        self._log_offsets: dict[Path, int] = {}
        self.endpoint = ""
        self.metrics_url = ""

    @property
    def pid(self) -> int | None:
        """Return the process id of the running server, or of what started it."""
        return self._process.pid if self._process else None

    def plan(self) -> StartPlan:
        """Return what a start would execute; the ports are chosen now, and kept.

        Raises:
            ServerStartError: Something that the server needs is missing from this machine.
        """
        config = self._config
        grpc_port, metrics_port = (port or free_port(config.host) for port in self._ports)
        self._ports = (grpc_port, metrics_port)  # a server that is started again is found where it was
        self._shm_prefix = shm_prefix_of(os.getpid())
        self.endpoint = f"{config.host}:{grpc_port}"
        self.metrics_url = f"http://{config.host}:{metrics_port}/metrics"
        listening = Listening(config.host, grpc_port, metrics_port, config.http_port, self._shm_prefix)
        return self._launch.plan(config, listening)

    def start(self) -> None:
        """Start the process; it is not ready yet.

        Raises:
            ServerStartError: Something that the server needs is missing from this machine.
        """
        config = self._config
        sweep_shared_memory()
        self._plan = plan = self.plan()
        self._launch.lay_out(config)
        environment = {name: value for name, value in os.environ.items() if name not in plan.unset}
        environment.update(plan.environment)
        program = shutil.which(plan.argv[0], path=environment.get("PATH"))
        if program is None:
            raise ServerStartError(f"{plan.argv[0]}: no such command on the PATH")
        launcher = [sys.executable, "-I", "-S", "-c", DIE_WITH_PARENT, str(os.getpid())]
        config.log_path.parent.mkdir(parents=True, exist_ok=True)
        self._log_offsets = {path: _size(path) for path in (config.log_path, *plan.logs)}
        with config.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*launcher, str(Path(program).absolute()), *plan.argv[1:]],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,  # a Ctrl-C in the terminal is the client's to handle
            )
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", GUARD, str(self._process.pid), *plan.end_also],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        self._stubs = []

    def note_ready(self) -> None:
        """Remember the engine's processes, which from now on must stay alive."""
        assert self._process
        with contextlib.suppress(psutil.NoSuchProcess):
            self._stubs = psutil.Process(self._process.pid).children(recursive=True)

    def processes(self) -> list[psutil.Process]:
        """Return the processes that compute: none before it is ready, or where they are not our children."""
        if self._process is None or self._plan is None or self._plan.end_also or not self._stubs:
            return []
        with contextlib.suppress(psutil.NoSuchProcess):
            return [psutil.Process(self._process.pid), *self._stubs]
        return []

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
        """Return an error that says why a start failed: its known cause, or the end of the log."""
        where = f"the whole log: {self._config.log_path}"
        if self._plan is not None and self._plan.logs:
            where += f"; the ranks': {self._config.ranks_dir}"
        if cause := explain(self.log_text()):
            return ServerStartError(
                f"the inference server did not start: {cause.what} ({reason})", f"{cause.next_step}; {where}"
            )
        return ServerStartError(f"the inference server did not start: {reason}\n{self.log_tail()}", where)

    def log_text(self) -> str:
        """Return what this start wrote to its logs, the ranks' first; of a long one, the end."""
        paths = [*(self._plan.logs if self._plan else ()), self._config.log_path]
        return "\n".join(_read_end(path, self._log_offsets.get(path, 0)) for path in paths)

    def log_tail(self) -> str:
        """Return the last lines that this start wrote: of each log that has any, the leader's first."""
        paths = [*(self._plan.logs if self._plan else ()), self._config.log_path]
        texts = {path: _read_end(path, self._log_offsets.get(path, 0)).splitlines() for path in paths}
        told = [(path, lines[-LOG_TAIL_LINES:]) for path, lines in texts.items() if lines]
        blocks = [[f"  {path.name}:"] * (len(told) > 1) + [f"  {line}" for line in end] for path, end in told]
        return "\n".join(line for block in blocks for line in block)

    async def stop(self, *, graceful: bool = True) -> None:
        """End the server within its bound, the engine's processes with it, and sweep what they left.

        Args:
            graceful: Let it finish requests in flight; otherwise it is killed at once.
        """
        process, self._process = self._process, None
        if process is None:
            return
        assert self._plan
        stubs = self._stubs or _children(process.pid)
        if graceful and process.poll() is None:
            await self._drain(process, self._plan.drain)
        if self._plan.end_also:
            await _run(self._plan.end_also, END_ALSO_TIMEOUT_S)
        if self._plan.logs and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            await _wait(process, KILL_GRACE_S)
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
        for name in ("backends", "tmp"):
            shutil.rmtree(self._config.work_dir / name, ignore_errors=True)

    async def _drain(self, process: subprocess.Popen[bytes], drain: Sequence[str]) -> None:
        timeout_s = self._config.exit_timeout_s + 5
        if not drain:
            process.send_signal(signal.SIGTERM)
            await wait_drained(process, self.metrics_url, timeout_s)
            return
        with contextlib.suppress(OSError), _quiet(drain) as command:
            await wait_drained(command, self.metrics_url, timeout_s)
            command.kill()


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


def _children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _read_end(path: Path, offset: int) -> str:
    with contextlib.suppress(FileNotFoundError), path.open("rb") as log:
        log.seek(max(offset, _size(path) - MAX_EXPLAINED_BYTES))
        return log.read().decode(errors="replace")
    return ""


def _quiet(command: Sequence[str]) -> subprocess.Popen[bytes]:
    null = subprocess.DEVNULL
    return subprocess.Popen(command, stdin=null, stdout=null, stderr=null)


async def _run(command: Sequence[str], timeout_s: float) -> None:
    """Run a command for what it does; one that is not there, fails or takes too long is given up."""
    with contextlib.suppress(OSError), _quiet(command) as process:
        await _wait(process, timeout_s)
        process.kill()


async def _wait(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    """Wait for a process without blocking the event loop; returns when the time is up, too."""
    deadline = time.monotonic() + timeout_s
    while process.poll() is None and time.monotonic() < deadline:  # noqa: ASYNC110 (no event to await)
        await asyncio.sleep(0.05)
