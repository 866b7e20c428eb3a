"""Numbers of options: what no machine has is refused before anything is begun."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from trtb.tools.cli import app


@pytest.mark.parametrize(
    "arguments",
    [
        *(f"run in.jsonl --kv-cache-gb {value}" for value in ("inf", "1e300", "nan")),
        "run in.jsonl --kv-host-cache-gb 1e300",
        "run in.jsonl --request-timeout 1e12",
        "run in.jsonl --grace inf",
        "run in.jsonl --server-wait 1e12",
        "run in.jsonl --start-timeout 1e12",
        "retry out.jsonl.run --request-timeout inf",
        "serve --kv-cache-gb 1e300",
        "sweep --point-timeout 1e12",
        "sweep --max-spread inf",
        "sweep --latency-limit inf",
        "report out.jsonl.run --cost-per-hour inf",
        "plan --gpu-hour-cost inf",
        "build --model m --max-quality-loss nan",  # has no bounds, and nothing is more
    ],
)
def test_a_number_beyond_all_is_refused_by_its_option(arguments, tmp_path, monkeypatch):
    monkeypatch.setenv("TRTB_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    option = next(part for part in arguments.split() if part.startswith("--") and part != "--model")
    done = CliRunner().invoke(app, arguments.split(), env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert option in done.stderr
    assert list(tmp_path.iterdir()) == []
