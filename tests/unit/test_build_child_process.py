"""A program that is run to its end, whatever it does on the way."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from trtb.build import child_process
from trtb.build.child_process import ProcessEnd, run_program


def run(code: str, folder: Path, **options: Any) -> tuple[ProcessEnd, list[str]]:
    lines: list[str] = []
    given = {"on_line": lines.append, "silence_limit_s": 20.0, **options}
    return run_program([sys.executable, "-S", "-c", code], work_dir=folder, **given), lines


def is_running(pid: int) -> bool:
    """Return whether a process does anything; what nobody has waited for yet does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_each_line_is_handed_on_and_the_end_is_told(tmp_path: Path) -> None:
    end, lines = run("import os; print('one'); print('two', end='', flush=True); os._exit(3)", tmp_path)
    assert lines == ["one", "two"]
    assert (end.status, end.how, end.tail) == (3, "ended with status 3", ("one", "two"))
    assert end.peak_rss_bytes > 1 << 20
    assert not end.is_silenced


def test_it_works_in_its_folder_and_environment_and_errors_are_output(tmp_path: Path) -> None:
    code = "import os, sys; sys.stderr.write(os.getcwd() + os.environ['WORD'] + str('HOME' in os.environ))"
    _, lines = run(code, tmp_path, environment={"WORD": "-word-", "PATH": os.environ["PATH"]})
    assert lines == [f"{tmp_path}-word-False"]


def test_a_signal_is_named(tmp_path: Path) -> None:
    end, _ = run("import os; os.kill(os.getpid(), 9)", tmp_path)
    assert (end.status, end.how) == (-9, "was ended by signal 9 (SIGKILL)")


def test_bars_of_progress_garbage_and_endless_lines_do_no_harm(tmp_path: Path) -> None:
    code = (
        "import os; os.write(1, b'10%\\r20%\\r\\n\\xff\\xfe\\n'); "
        "[os.write(1, b'x' * 9999) for _ in range(50)]"
    )
    end, lines = run(code, tmp_path)
    assert lines[:3] == ["10%", "20%", "��"]
    assert sum(map(len, lines[3:])) == 50 * 9999
    assert max(map(len, lines)) <= 2 * child_process.MAX_LINE_BYTES
    assert end.status == 0


def test_only_the_end_of_a_long_output_is_kept(tmp_path: Path) -> None:
    end, lines = run("for n in range(5000): print(n)", tmp_path)
    assert len(lines) == 5000
    assert end.tail == tuple(str(number) for number in range(5000 - child_process.TAIL_LINES, 5000))


def test_a_closed_output_is_not_the_end(tmp_path: Path) -> None:
    end, _ = run("import os, time; os.close(1); os.close(2); time.sleep(0.2); os._exit(5)", tmp_path)
    assert end.status == 5


def test_what_it_leaves_behind_is_ended_with_it(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys\n"
        "print(subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(60)']).pid, flush=True)"
    )
    end, lines = run(code, tmp_path)  # the child holds the output open
    assert end.status == 0
    assert not is_running(int(lines[0]))


def test_too_long_a_silence_ends_it(tmp_path: Path) -> None:
    end, lines = run("import time; print('word', flush=True); time.sleep(60)", tmp_path, silence_limit_s=0.3)
    assert end.is_silenced
    assert lines == ["word"]


def test_one_that_does_not_want_to_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "GRACE_S", 0.2)
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
    end, _ = run(code, tmp_path, silence_limit_s=0.5)
    assert (end.status, end.is_silenced) == (-9, True)


def test_an_error_of_ours_ends_it_and_runs_what_ends_the_rest(tmp_path: Path) -> None:
    pids: list[int] = []

    def refuse(line: str) -> None:
        pids.append(int(line))
        raise KeyboardInterrupt

    code = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    with pytest.raises(KeyboardInterrupt):
        run(code, tmp_path, on_line=refuse, end_also=["touch", str(tmp_path / "ended")])
    assert not is_running(pids[0])
    assert (tmp_path / "ended").exists()


def test_what_is_no_program_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no-such-program: no such program"):
        run_program(["no-such-program"], work_dir=tmp_path, on_line=print, silence_limit_s=1.0)
