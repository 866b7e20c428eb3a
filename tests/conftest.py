"""What every test stands on: a home of its own, a clean environment, and, once for all, a real engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

# before any import of transformers: it remarks on the absence of torch, and looks for a hub
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# in the background of a shell without job control SIGINT is ignored, and every child would ignore it, too
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

MODEL = "smollm2-135m-instruct"
ENGINE = "smollm2-135m-instruct-int8_wo"
OWN_PROCESS = "TRTB_TEST_OWN_PROCESS"  # set in the process of a test that has one of its own


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test reads or writes the user's own home of trtb."""
    monkeypatch.setenv("TRTB_HOME", str(tmp_path_factory.getbasetemp() / "empty-home"))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "110")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is marked so in a process of its own."""
    if pyfuncitem.get_closest_marker("own_process") is None or OWN_PROCESS in os.environ:
        return None
    environment = {**os.environ, OWN_PROCESS: "1"}
    if "engine_home" in pyfuncitem.fixturenames:  # it is not built once more
        environment["TRTB_TEST_HOME"] = str(pyfuncitem._request.getfixturevalue("engine_home"))
    # not `python -m pytest`, which would find the packages of the checkout twice
    command = [
        str(Path(sys.executable).with_name("pytest")),
        "-q",
        "-p",
        "no:cacheprovider",
        pyfuncitem.nodeid,
    ]
    done = subprocess.run(
        command, env=environment, cwd=pyfuncitem.config.rootpath, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
    return True


@pytest.fixture(scope="session")
def model_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A TRTB_HOME with the model fetched.

    TRTB_TEST_HOME names a folder that is kept between test runs.
    """
    from trtb.build import checkpoint

    kept = os.environ.get("TRTB_TEST_HOME")
    home = Path(kept) if kept else tmp_path_factory.mktemp("home")
    checkpoint.fetch(MODEL, home)
    return home


@pytest.fixture(scope="session")
def engine_home(model_home: Path) -> Path:
    """The same home, with the model's default engine built."""
    from trtb.build.config import make_config
    from trtb.build.pipeline import build_engine
    from trtb.model_repo.render import render_into_engine

    build_engine(MODEL, make_config(), model_home, deploy=render_into_engine)
    return model_home


@pytest.fixture(scope="session")
def toolchain_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A TRTB_HOME with the toolchains; a test takes them into its own by a link to `toolchains/`.

    TRTB_TEST_TOOLCHAINS names a folder that is kept between test runs, as `make test` does.
    """
    from trtb.build import toolchain

    kept = os.environ.get("TRTB_TEST_TOOLCHAINS")
    home = Path(kept) if kept else tmp_path_factory.mktemp("toolchain-home")
    for name in ("modelopt", "optimum", "perf_analyzer"):
        toolchain.install(name, home, lambda step, detail: print(f"{step}: {detail}", file=sys.stderr))
    return home


@dataclass(frozen=True)
class SharedServer:
    """A server that many tests use, deterministic and with a small KV pool."""

    home: Path
    endpoint: str
    metrics_url: str
    num_kv_blocks: int


@pytest.fixture(scope="session")
def shared_server(engine_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedServer]:
    """The default engine behind `trtb serve --deterministic`."""
    num_kv_blocks = 400
    command = [
        *(sys.executable, "-c", "from trtb.tools.cli import main; main()"),
        *("serve", "--deterministic", "--json", "--grpc-port", "0", "--metrics-port", "0"),
        *("--num-kv-blocks", str(num_kv_blocks)),
    ]
    log = tmp_path_factory.mktemp("serve") / "stderr"
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env={**os.environ, "TRTB_HOME": str(engine_home)},
            cwd=tmp_path_factory.getbasetemp(),
        )
    assert process.stdout
    lines = []
    while not (lines and lines[-1] == b"}\n") and (line := process.stdout.readline()):
        lines.append(line)
    assert lines, log.read_text()
    told = json.loads(b"".join(lines))
    yield SharedServer(engine_home, told["endpoint"], told["metrics"], num_kv_blocks)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    process.stdout.close()
