"""With no route to any network everything works, nothing but loopback is opened, and nothing phones home."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import request_lines
from request_lines import chat

pytestmark = [pytest.mark.triton, pytest.mark.slow]

ISOLATED = ("unshare", "--user", "--map-root-user", "--net", "sh", "-c")
SCRIPT = """
set -e
ip link set lo up 2>/dev/null || python3 -c '
import fcntl, socket, struct
request = struct.pack("16sh", b"lo", 0x1 | 0x40)  # up, running
fcntl.ioctl(socket.socket(), 0x8914, request)'
trtb() { "$PYTHON" -c 'from trtb.tools.cli import main; main()' "$@"; }
trtb models verify smollm2-135m-instruct
trtb build --model smollm2-135m-instruct
trtb validate "$INPUT"
trtb run "$INPUT" -o "$OUTPUT" --num-kv-blocks 60
trtb report "$OUTPUT.run" --json
"""


def test_build_validate_and_run_need_no_network(engine_home: Path, tmp_path: Path):
    probe = subprocess.run([*ISOLATED, "true"], capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        pytest.skip(f"network namespaces are not permitted here: {probe.stderr.strip()}")
    home, fresh = tmp_path / "trtb-home", tmp_path / "home"
    fresh.mkdir()
    shutil.copytree(engine_home / "models", home / "models")
    requests = request_lines.write(tmp_path / "in.jsonl", [chat(f"id-{i}", max_tokens=3) for i in range(3)])
    output = tmp_path / "out.jsonl"
    environment = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("HF_", "XDG_", "TRANSFORMERS_"))
    }
    environment |= {
        "HOME": str(fresh),
        "TRTB_HOME": str(home),
        "PYTHON": sys.executable,
        "INPUT": str(requests),
        "OUTPUT": str(output),
    }
    done = subprocess.run(
        [*ISOLATED, SCRIPT], capture_output=True, text=True, env=environment, cwd=sys.prefix, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert [record["error"] for record in request_lines.read(output)] == [None] * 3
    left = [str(path.relative_to(fresh)) for path in fresh.rglob("*") if path.is_file()]
    assert left == []  # telemetry leaves its files in the home folder


def test_the_isolation_is_one(tmp_path: Path):
    """The test above proves something only if a connection outwards fails there."""
    code = "import socket; socket.create_connection(('192.0.2.1', 80), timeout=2)"
    done = subprocess.run(
        [*ISOLATED, f'"{sys.executable}" -c "{code}"'], capture_output=True, text=True, check=False
    )
    if "unshare" in done.stderr:
        pytest.skip(f"network namespaces are not permitted here: {done.stderr.strip()}")
    assert "unreachable" in done.stderr
