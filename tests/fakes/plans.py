"""Plans of small files, made by the real planner, and their run on a fake server."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fakes.lines import fake_renderer_source
from fakes.transport import FakeServer
from fakes.work import Work

from trtb.runner.admission import Admission
from trtb.runner.scheduling.schedule_planner import Planner, PlanOptions
from trtb.runner.source import Refused

TEXT = "List three colours."


def request(name: str, text: str = TEXT, **body: Any) -> dict[str, Any]:
    """Return a greedy chat request."""
    message = {"role": "user", "content": text}
    body = {"model": "m", "messages": [message], "max_tokens": 4, "temperature": 0, **body}
    return {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body}


@contextlib.contextmanager
def planned(
    folder: Path, lines: list[str], order: str = "input", duplicates: tuple[int, ...] = (), **fields: Any
) -> Iterator[tuple[Planner, list[Refused]]]:
    """Plan a file of these lines; yields the planner and the lines that it found cannot be sent."""
    path = folder / "in.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    refused: list[Refused] = []
    options = {"is_dedup": True, "queue_size": 16, "concurrency": 4, "default_max_tokens": 4,
               "tokens_per_block": 2, "folder": folder / "run", **fields}  # fmt: skip
    source = fake_renderer_source(path, duplicates=duplicates)
    planner = Planner(PlanOptions(order=order, **options), source, refused.append)  # type: ignore[arg-type]
    with contextlib.closing(planner):
        for _ in planner.steps():
            pass
        yield planner, refused


def dumped(*lines: dict[str, Any]) -> list[str]:
    """Return lines as text."""
    return [json.dumps(line) for line in lines]


def run(planner: Planner, server: FakeServer) -> Work:
    """Run a plan to its end."""
    work = Work([], server)
    work.make_feed = lambda is_up: planner.feed(Admission([None], 4), is_up)  # type: ignore[method-assign]
    return work.run()
