"""The comparison with `vllm run-batch`: the files, the command, and what it refuses to count."""

from __future__ import annotations

import collections
import sys
from pathlib import Path
from types import SimpleNamespace

import orjson
import pytest

from trtb.tools.bench import __main__ as command
from trtb.tools.bench import peers
from trtb.tools.bench.children import BenchmarkError

SHAPE = peers.Shape(12, 4, 30, 5, 8, 1, 1)
# a command with vLLM's arguments that answers each line with so many tokens
STAND_IN = """#!{python}
import json, sys
arguments = dict(zip(sys.argv[2::2], sys.argv[3::2]))
assert sys.argv[1] == "run-batch" and arguments["--served-model-name"] == "peer", sys.argv
with open(arguments["-i"]) as lines, open(arguments["-o"], "w") as output:
    for line in lines:
        request = json.loads(line)
        usage = {{"completion_tokens": request["body"]["max_tokens"] - {missing}}}
        answer = {{"custom_id": request["custom_id"], "response": {{"body": {{"usage": usage}}}}}}
        output.write(json.dumps(answer) + chr(10))
sys.exit({status})
"""


def _bench(folder: Path, *, missing: int = 0, status: int = 0) -> peers.PeerBench:
    path = folder / "vllm"
    path.write_text(STAND_IN.format(python=sys.executable, missing=missing, status=status))
    path.chmod(0o755)
    engine = SimpleNamespace(manifest=SimpleNamespace(engine_id="e"))
    return peers.PeerBench(folder, engine, peers.Peer(path, folder / "model"))  # type: ignore[arg-type]


def test_a_file_has_its_prefixes_shuffled_and_every_answer_as_long(tmp_path):
    path = tmp_path / "b.jsonl"
    peers.write_shape(path, SHAPE)
    bodies = [orjson.loads(line)["body"] for line in path.read_bytes().splitlines()]
    systems = collections.Counter(body["messages"][0]["content"] for body in bodies)
    assert sorted(systems.values()) == [3, 3, 3, 3]
    assert all(body["min_tokens"] == body["max_tokens"] == 8 for body in bodies)
    assert len({body["messages"][1]["content"] for body in bodies}) == 12
    first = path.read_bytes()
    peers.write_shape(path, SHAPE)
    assert path.read_bytes() == first


def test_the_peer_answers_a_file(tmp_path):
    found = _bench(tmp_path).theirs("B", SHAPE, 0)
    assert found["num_tokens"] == 96
    assert found["wall_s"] > 0


def test_answers_that_are_too_short_do_not_count(tmp_path):
    with pytest.raises(BenchmarkError, match="84 tokens in 12 answers; expected 96 in 12"):
        _bench(tmp_path, missing=1).theirs("B", SHAPE, 0)


def test_a_peer_that_fails_is_told(tmp_path):
    with pytest.raises(BenchmarkError, match="ended with status 3"):
        _bench(tmp_path, status=3).theirs("B", SHAPE, 0)


def test_peers_needs_to_be_told_of_a_peer(capsys):
    with pytest.raises(SystemExit):
        command.main(["peers"])
    assert "expected --vllm COMMAND and --vllm-model FOLDER" in capsys.readouterr().err
