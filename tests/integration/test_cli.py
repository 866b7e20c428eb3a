"""`trtb run` as a person types it: what it prints, what it leaves, and how it exits."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import commands
import pytest
import request_lines
from request_lines import chat

from trtb.build.store import EngineStore

pytestmark = pytest.mark.triton

PEAK_OF_VALIDATE = """
import resource, sys
from trtb.tools.cli import main
try:
    main()
except SystemExit as exc:
    code = exc.code
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
sys.exit(code)
"""


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    lines = [chat(f"id-{number}", f"Say {number}.", max_tokens=4) for number in range(5)]
    return request_lines.write(tmp_path / "in.jsonl", lines)


@pytest.mark.slow
def test_a_run_with_its_own_server_answers_every_line_and_leaves_no_server(engine_home, sample, tmp_path):
    done = commands.trtb(engine_home, "run", sample, "--num-kv-blocks", 60, "--deterministic", "--json")
    assert done.code == 0, done.stderr
    manifest = EngineStore(engine_home).resolve().manifest
    report = done.json
    assert (report["total"], report["completed"], report["failed"]) == (5, 5, 0)
    assert report["engine_id"] == manifest.engine_id
    records = request_lines.read(tmp_path / "in.out.jsonl")
    assert [record["custom_id"] for record in records] == [f"id-{number}" for number in range(5)]
    bodies = [record["response"]["body"] for record in records]
    assert {body["system_fingerprint"] for body in bodies} == {f"trtb-{manifest.engine_id[:16]}"}
    assert {body["model"] for body in bodies} == {manifest.reference}
    for body in bodies:
        usage = body["usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        assert 1 <= usage["completion_tokens"] <= 4
    assert sum(body["usage"]["prompt_tokens"] for body in bodies) == report["prompt_tokens"]
    assert sum(body["usage"]["completion_tokens"] for body in bodies) == report["completion_tokens"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "in.jsonl",
        "in.out.jsonl",
        "in.out.jsonl.run",
    ]
    assert not (tmp_path / "in.out.jsonl.run" / "server").exists()

    again = commands.trtb(engine_home, "run", sample)
    assert again.code == 2
    assert "this run is finished" in again.stderr
    shown = commands.trtb(engine_home, "report", tmp_path / "in.out.jsonl.run", "--json")
    assert shown.json == report


def test_exit_codes_tell_how_a_run_ended(shared_server, sample, tmp_path):
    use = ("--endpoint", shared_server.endpoint)
    home = shared_server.home
    done = commands.trtb(home, "run", sample, *use, "-o", tmp_path / "fine.jsonl")
    assert done.code == 0, done.stderr
    assert "5 = 5 completed + 0 failed" in done.stdout

    broken = tmp_path / "broken.jsonl"
    broken.write_bytes(sample.read_bytes() + b"{nonsense\n")
    refused = commands.trtb(home, "run", broken, *use)
    assert refused.code == 3
    assert "invalid_json_line" in refused.stderr
    assert refused.stdout == ""
    assert not (tmp_path / "broken.out.jsonl").exists()
    assert not (tmp_path / "broken.out.jsonl.run").exists()

    partly = commands.trtb(home, "run", broken, *use, "--on-invalid", "fail", "--json")
    assert partly.code == 1
    assert (partly.json["completed"], partly.json["failed"]) == (5, 1)
    assert request_lines.read(tmp_path / "broken.out.jsonl")[5]["error"]["code"] == "invalid_json_line"
    assert (tmp_path / "broken.out.retry.jsonl").read_bytes() == b"{nonsense\n"

    assert commands.trtb(home, "run", tmp_path / "nowhere.jsonl", *use).code == 3
    assert commands.trtb(home, "run", sample, *use, "--engine", "none").code == 5
    assert commands.trtb(home, "run", sample, *use, "--on-invalid", "maybe").code == 2
    assert commands.trtb(home, "run", sample, *use, "-o", sample).code == 2
    assert commands.trtb(home, "run", sample, *use, "--concurrency", 0).code == 2


def test_another_input_under_the_same_output_is_a_mismatch(shared_server, sample, tmp_path):
    output = tmp_path / "out.jsonl"
    use = ("--endpoint", shared_server.endpoint, "-o", output)
    assert commands.trtb(shared_server.home, "run", sample, *use).code == 0
    record_path = tmp_path / "out.jsonl.run" / "run.json"
    record = json.loads(record_path.read_text())
    record_path.write_text(json.dumps({**record, "state": "interrupted"}))
    sample.write_bytes(sample.read_bytes() + b"\n" + json.dumps(chat("more")).encode())
    done = commands.trtb(shared_server.home, "run", sample, *use, "--json")
    assert done.code == 7
    assert done.json["error"]["code"] == "run_mismatch"
    assert "input (sha256)" in done.json["error"]["message"]


def test_a_run_is_not_begun_twice_at_once(shared_server, tmp_path):
    lines = [chat(f"l-{number}", max_tokens=2000, min_tokens=2000) for number in range(4)]
    path = request_lines.write(tmp_path / "in.jsonl", lines)
    command = ("run", path, "--endpoint", shared_server.endpoint, "--grace", 0)
    first = commands.start(shared_server.home, *command)
    log = tmp_path / "in.out.jsonl.run" / "run.log"
    commands.wait_until(lambda: log.exists() and "running" in log.read_text(), 60, "the first is running")
    second = commands.trtb(shared_server.home, *command)
    first.send_signal(2)
    first.communicate(timeout=60)
    assert first.returncode == 130
    assert second.code == 7
    assert "another process is running this run" in second.stderr


@pytest.mark.slow
def test_only_the_first_lines_of_a_large_file_are_run_and_its_size_does_not_show_in_memory(
    shared_server, tmp_path
):
    path = tmp_path / "large.jsonl"
    filler = "lorem ipsum " * 330
    with path.open("w") as file:
        for number in range(50_000):
            file.write(
                json.dumps(
                    chat(f"gb-{number:07}", f"{number} {filler if number >= 20 else ''}", max_tokens=2)
                )
                + "\n"
            )
    assert path.stat().st_size > 200e6
    small = request_lines.write(tmp_path / "small.jsonl", [chat("a")])
    peaks = []
    for each in (small, path):
        child = subprocess.run(
            [sys.executable, "-c", PEAK_OF_VALIDATE, "validate", str(each), "--json"],
            env=commands.environment(shared_server.home), cwd=sys.prefix, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert child.returncode == 0, child.stderr
        peaks.append(int(child.stderr.splitlines()[-1]) * 1024)
    assert peaks[1] - peaks[0] < 100e6
    output = tmp_path / "out.jsonl"
    done = commands.trtb(
        shared_server.home,
        "run",
        path,
        "--endpoint",
        shared_server.endpoint,
        "--limit",
        20,
        "-o",
        output,
        "--json",
    )
    assert done.code == 0, done.stderr
    assert done.json["total"] == 20
    assert [record["custom_id"] for record in request_lines.read(output)] == [f"gb-{n:07}" for n in range(20)]


def test_a_killed_publication_is_done_again_to_the_same_end(shared_server, sample, tmp_path):
    """Every state that a kill between the renames can leave: the resumed run publishes the same files."""
    broken = tmp_path / "broken.jsonl"
    broken.write_bytes(sample.read_bytes() + b"{nonsense\n")
    use = ("--endpoint", shared_server.endpoint, "--on-invalid", "fail")
    assert commands.trtb(shared_server.home, "run", broken, *use).code == 1
    names = [
        "broken.out.retry.jsonl",
        "broken.out.failed.jsonl",
        "broken.out.jsonl",
    ]  # in the order of their renames
    published = {name: (tmp_path / name).read_bytes() for name in names}
    record_path = tmp_path / "broken.out.jsonl.run" / "run.json"
    running = json.dumps({**json.loads(record_path.read_text()), "state": "running"})
    for num_renamed in range(4):
        for name in names[num_renamed:]:
            (tmp_path / name).unlink()
        record_path.write_text(running)
        done = commands.trtb(shared_server.home, "run", broken, *use, "--json")
        assert done.code == 1, done.stderr
        assert done.json["resumed"] == 6
        assert {name: (tmp_path / name).read_bytes() for name in names} == published
    shutil.rmtree(tmp_path / "broken.out.jsonl.run")
