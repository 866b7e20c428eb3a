"""Workers: a result or an error of ours, whatever the script does, and no process left behind."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import commands
import psutil
import pytest

from trtb.build import child_process, worker
from trtb.build.errors import (
    BuildError,
    CheckpointUnsupportedError,
    ConfigError,
    InsufficientMemoryError,
    ToolchainMissingError,
    TrtbError,
)

PREAMBLE = f"""
import json, os, signal, sys, time
sys.path.insert(0, {str(worker.WORKERS)!r})
REPLY = sys.argv[2]
def reply(value):
    with open(REPLY, "w") as file:
        json.dump(value, file)
OK = {{"ok": True, "result": {{"answer": 42}}, "versions": {{}}, "peak_rss_bytes": 1}}
"""


class Talk:
    """What a worker said."""

    def __init__(self) -> None:
        self.log = io.StringIO()
        self.told: list[tuple[str, str]] = []

    def hear(self, step: str, detail: str) -> None:
        self.told.append((step, detail))


def run(
    tmp_path: Path, code: str, talk: Talk | None = None, silence_limit_s: float = 60
) -> worker.WorkerReply:
    talk = talk or Talk()
    script = tmp_path / "script.py"
    script.write_text(PREAMBLE + textwrap.dedent(code))
    return worker.run_worker(
        Path(sys.executable),
        script,
        {"question": [1, 2]},
        log=talk.log,
        on_progress=talk.hear,
        work=tmp_path / "work",
        silence_limit_s=silence_limit_s,
    )


def test_a_worker_reads_its_request_tells_its_progress_and_its_result_comes_back(tmp_path: Path) -> None:
    talk = Talk()
    reply = run(
        tmp_path,
        """
        import protocol
        def main(request, progress):
            progress("load", "weights é\\n")
            print("a library's print")
            os.write(2, b"half a line")
            progress("save", "x" * 10_000)
            return {"sum": sum(request["question"])}
        protocol.run(main)
        """,
        talk,
    )
    assert reply["result"] == {"sum": 3}
    assert reply["versions"]["pydantic"]
    assert 1e6 < reply["peak_rss_bytes"] < 1e9
    assert talk.told == [("load", "weights é\n"), ("save", "x" * 300)]
    assert talk.log.getvalue().splitlines() == ["a library's print", "half a line"]


def test_garbage_before_a_reply_goes_to_the_log_and_costs_no_more_than_its_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "MAX_LOG_CHARS", 100_000)
    talk = Talk()
    reply = run(
        tmp_path,
        r"""
        os.write(1, b'\xff\xfe{"step"\n{}\n[]\n{"step": 1, "detail": 2, "more": 3}\n')
        for _ in range(4):
            os.write(2, (b"x" * 99 + b"\n") * 10_000)
        os.write(1, b"y" * 1_000_000)
        print('\n{"step": "a", "detail": "b"}', flush=True)
        reply(OK)
        """,
        talk,
    )
    assert reply["result"] == {"answer": 42}
    assert talk.told == [("a", "b")]
    lines = talk.log.getvalue().splitlines()
    assert lines[1:4] == ["{}", "[]", '{"step": 1, "detail": 2, "more": 3}']
    assert lines[-1] == "(the rest of what this worker printed is left out)"
    assert len(talk.log.getvalue()) < 200_000


@pytest.mark.parametrize(
    ("number", "told"),
    [(signal.SIGKILL, "most likely by the kernel because memory ran out"), (signal.SIGSEGV, "")],
)
def test_a_worker_that_dies_says_how_and_its_last_lines(tmp_path: Path, number: int, told: str) -> None:
    with pytest.raises(BuildError, match="without a reply") as caught:
        run(tmp_path, f"print('the last word', flush=True); os.kill(os.getpid(), {int(number)})")
    assert signal.Signals(number).name in caught.value.message
    assert told in caught.value.message
    assert "  the last word" in caught.value.message
    assert ("memory" in caught.value.hint) == (number == signal.SIGKILL)


def test_a_worker_that_ends_without_a_reply_is_an_error_even_at_status_0(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"ended with status 0 without a reply.*\n  \(it printed nothing\)"):
        run(tmp_path, "")


@pytest.mark.parametrize(
    "text",
    [
        '{"ok": true, "result": {"an',
        '{"ok": true, "result": {}}',
        '{"ok": false, "error": {"kind": "odd", "message": ""}}',
        '{"ok": true, "result": {}, "versions": {}, "peak_rss_bytes": 1, "more": 1}',
        "[]",
        "",
    ],
)
def test_half_a_reply_is_an_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(BuildError, match="with a reply that is none"):
        run(tmp_path, f"open(REPLY, 'w').write({text!r})")


def test_the_reply_of_an_earlier_worker_is_not_taken(tmp_path: Path) -> None:
    run(tmp_path, "reply(OK)")
    with pytest.raises(BuildError, match="without a reply"):
        run(tmp_path, "sys.exit(3)")


def test_a_worker_that_hangs_after_its_reply_is_ended_and_its_reply_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_process, "GRACE_S", 0.1)
    code = """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        reply({**OK, "result": {"pid": os.getpid()}})
        while True:
            print("still here", flush=True)
            time.sleep(0.01)
        """
    assert not psutil.pid_exists(run(tmp_path, code)["result"]["pid"])


def test_a_silent_worker_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "GRACE_S", 0.1)
    with pytest.raises(BuildError, match="said nothing for too long"):
        run(tmp_path, "time.sleep(60)", silence_limit_s=0.5)


def test_what_a_worker_has_forked_off_ends_with_it(tmp_path: Path) -> None:
    code = """
        pid = os.fork()
        if pid == 0:
            time.sleep(60)
        reply({**OK, "result": {"pid": pid}})
        """
    pid = run(tmp_path, code)["result"]["pid"]
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(
    ("statement", "kind", "message"),
    [
        ("raise protocol.UnsupportedError('no gpt2', 'try llama')", CheckpointUnsupportedError, "no gpt2"),
        ("raise protocol.InvalidError('no config.json')", ConfigError, "no config.json"),
        ("raise protocol.WorkerError('odd')", BuildError, "odd"),
        (
            "raise NotImplementedError('tp 2')",
            CheckpointUnsupportedError,
            r"NotImplementedError: tp 2 \(script.py:",
        ),
        ("raise MemoryError", InsufficientMemoryError, "MemoryError: no message"),
        (
            'raise RuntimeError("[enforce] DefaultCPUAllocator: can\'t allocate memory")',
            InsufficientMemoryError,
            "",
        ),
        ("raise type('OutOfMemoryError', (RuntimeError,), {})('CUDA')", InsufficientMemoryError, "CUDA"),
        ("raise ValueError('two\\nlines')", BuildError, r"ValueError: two lines \(script.py:\d+, main\)"),
        ("sys.exit('a library gave up')", BuildError, "SystemExit: a library gave up"),
        ("return {'figure': object()}", BuildError, "TypeError"),
        ("import openvino_telemetry", BuildError, "openvino_telemetry"),
    ],
)
def test_what_a_script_raises_becomes_an_error_of_ours(
    tmp_path: Path, statement: str, kind: type[TrtbError], message: str
) -> None:
    talk = Talk()
    code = f"""
        import protocol
        def main(request, progress):
            {statement}
        protocol.run(main)
        """
    with pytest.raises(TrtbError, match=rf"script\.py: .*{message}") as caught:
        run(tmp_path, code, talk)
    assert type(caught.value) is kind
    assert "Traceback" in talk.log.getvalue()


@pytest.mark.parametrize(
    ("statement", "hint"),
    [
        ("raise OSError(28, 'No space left on device')", "the disk is full: free space below TRTB_HOME"),
        ("raise RuntimeError('I/O error: No space left on device (os error 28)')", "the disk is full"),
        ("raise ValueError('x')", "trtb toolchain verify"),
        ("raise NotImplementedError('x')", "choose another checkpoint"),
        ("raise protocol.InvalidError('x')", "correct what the message names"),
    ],
)
def test_every_error_has_a_next_step(tmp_path: Path, statement: str, hint: str) -> None:
    code = f"""
        import protocol
        def main(request, progress):
            {statement}
        protocol.run(main)
        """
    with pytest.raises(TrtbError) as caught:
        run(tmp_path, code)
    assert hint in caught.value.hint


def test_a_failure_names_the_log(tmp_path: Path) -> None:
    talk = Talk()
    with (tmp_path / "build.log").open("w") as log:
        talk.log = log  # type: ignore[assignment]
        with pytest.raises(BuildError) as caught:
            run(tmp_path, "", talk)
    assert caught.value.hint.startswith(f"read {tmp_path}/build.log, then: ")


def test_a_hint_of_the_worker_is_kept(tmp_path: Path) -> None:
    code = 'reply({"ok": False, "error": {"kind": "invalid", "message": "m", "hint": "h"}})'
    with pytest.raises(ConfigError) as caught:
        run(tmp_path, code)
    assert (caught.value.message, caught.value.hint) == ("script.py: m", "h")


def test_a_worker_sees_no_network_no_foreign_packages_and_writes_where_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "foreign"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    code = """
        import tempfile, protocol
        reply({**OK, "result": {"env": dict(os.environ), "path": sys.path, "tmp": tempfile.gettempdir(),
                                "cwd": os.getcwd()}})
        """
    seen = run(tmp_path, code)["result"]
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY"):
        assert seen["env"][name] == "1"
    assert int(seen["env"]["OMP_NUM_THREADS"]) == worker.num_usable_cores()
    assert str(tmp_path / "foreign") not in seen["path"]
    work = tmp_path / "work"
    assert (seen["cwd"], seen["tmp"]) == (str(work), str(work / "tmp"))
    # a script that is called as a library would hide it, were its folder the first
    assert seen["path"][-1] == str(worker.WORKERS)
    assert seen["path"].count(str(worker.WORKERS)) == 1


def test_a_container_s_quota_bounds_the_threads(tmp_path: Path) -> None:
    num_cores = len(os.sched_getaffinity(0))
    assert worker.num_usable_cores(tmp_path) == num_cores
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert worker.num_usable_cores(tmp_path) == 1
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert worker.num_usable_cores(tmp_path) == num_cores


def test_a_python_that_is_gone_is_a_toolchain_to_install(tmp_path: Path) -> None:
    with pytest.raises(ToolchainMissingError, match="not found"):
        worker.run_worker(
            tmp_path / "python", tmp_path / "x.py", {}, log=io.StringIO(), on_progress=print, work=tmp_path
        )


STARTER = """
import io, sys
from pathlib import Path
from trtb.build.worker import run_worker
folder = Path(sys.argv[1])
run_worker(Path(sys.executable), folder / "script.py", {}, log=io.StringIO(), on_progress=print, work=folder)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_whatever_ends_us_ends_the_worker_and_what_it_forked(tmp_path: Path, number: int) -> None:
    (tmp_path / "script.py").write_text(
        "import json, os, time\n"
        "child = os.fork()\n"
        "if child:\n"
        "    open('part', 'w').write(json.dumps([os.getpid(), child]))\n"
        "    os.rename('part', 'pids')\n"
        "time.sleep(120)\n"
    )
    pids = tmp_path / "pids"
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, str(tmp_path)], cwd=tmp_path, stderr=subprocess.DEVNULL
    )
    commands.wait_until(pids.exists, 30, "the worker runs")
    family = [psutil.Process(pid) for pid in json.loads(pids.read_text())]
    starter.send_signal(number)
    starter.wait(30)
    _, alive = psutil.wait_procs(family, timeout=20)
    assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]
