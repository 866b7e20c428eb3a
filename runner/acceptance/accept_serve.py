"""Steps of an acceptance with a server: it answers, repeats itself, drops what is cancelled, ends."""

from __future__ import annotations

import re
import signal
import time
import urllib.request
from pathlib import Path
from typing import Any, Final

from pydantic import JsonValue

from trtb.build.store import StoredEngine
from trtb.runner.acceptance import accept_lines as lines
from trtb.runner.acceptance.accept_commands import Child
from trtb.runner.acceptance.accept_state import AcceptState, Served
from trtb.runner.acceptance.accept_step import Figures, StepFailedError
from trtb.runner.errors import ServerStartError
from trtb.runner.launching.place import DockerPlace, choose_place
from trtb.runner.options import default_start_timeout_s
from trtb.runner.report import RunReport

START_SLACK_S: Final = 60.0  # over what the server gives itself
STOP_TIMEOUT_S: Final = 120.0
IDLE_TIMEOUT_S: Final = 30.0
POLL_S: Final = 0.1
SMOKE_TOKENS: Final = 16
SWEEP_TOKENS: Final = 16
CONCURRENCIES: Final = (1, 8, 32)
# the first that the engine cannot finish in; a fast one makes thousands of tokens a second
CANCEL_TIMEOUTS_S: Final = (2.0, 0.5, 0.1)
MAX_CANCELLED_TOKENS: Final = 4000
_TRITON_VERSION: Final = re.compile(r"\|\s*server_version\s*\|\s*([\w.]+)")
_ACTIVE: Final = re.compile(
    r'^nv_trt_llm_request_metrics\{[^}]*request_type="active"[^}]*\} (\S+)$', re.MULTILINE
)


def deploy(state: AcceptState, quant: str, figures: Figures) -> None:
    """Start a server of an engine with the command that people use, and wait until it has generated a token.

    Raises:
        StepFailedError: It did not start, or serves another engine.
        HardwareError: There is no place for it here.
    """
    engine = state.engines[quant]
    place = choose_place("auto", engine.manifest)  # as the command chooses it
    state.has_used_docker |= isinstance(place, DockerPlace)
    started = time.monotonic()
    arguments = ("--engine", engine.manifest.reference, "--grpc-port", 0, "--metrics-port", 0, "--json")
    child = state.commands.start(f"serve {quant}", "serve", *arguments)
    try:
        state.served = _wait_ready(child, engine)
    except BaseException:
        child.end()  # the next server is to have the machine for itself
        raise
    runtime = {name: version for name, version in place.runtime.items() if version}
    state.versions.update({f"serving {name}": version for name, version in runtime.items()})
    if isinstance(place, DockerPlace):
        state.versions["serving image"] = place.image
    if version := find_triton_version(state.options.home / "cache" / "serve" / str(child.pid)):
        state.versions["tritonserver"] = version
    figures.update(
        engine=engine.manifest.reference,
        start_s=round(time.monotonic() - started, 3),
        place=type(place).__name__.removesuffix("Place").lower(),
        triton_version=version,
    )


def find_triton_version(folder: Path) -> str | None:
    """Return the version that a server has written to its logs; None where none has."""
    for path in sorted(folder.rglob("*.log")):
        if found := _TRITON_VERSION.search(path.read_text(encoding="utf-8", errors="replace")):
            return found[1]
    return None


def smoke(state: AcceptState, quant: str, figures: Figures) -> None:
    """Ask one question, and have an answer.

    Raises:
        StepFailedError: There is none.
    """
    path = lines.write_lines(
        state.work_dir / f"smoke-{quant}.jsonl",
        [lines.chat_line("smoke", lines.SMOKE_TEXT, max_tokens=SMOKE_TOKENS)],
    )
    made = _run_whole(state, path)
    ((text, reason),) = _answers(path)
    figures.update(
        prompt_tokens=made.prompt_tokens,
        completion_tokens=made.completion_tokens,
        finish_reason=reason,
        latency_ms=made.request_latency.p50_ms,
        ttft_ms=made.ttft.p50_ms,
    )
    if not text.strip() or reason not in ("stop", "length"):
        raise StepFailedError(
            f"an answer of {len(text.strip())} characters that ended with {reason!r}; expected a text that "
            "ended with stop or length"
        )


def determinism(state: AcceptState, figures: Figures) -> None:
    """Ask the same thing three times, greedily; once the prompt is in the KV cache the answers are equal.

    Raises:
        StepFailedError: They are not.
    """
    asked = [
        lines.chat_line(f"same-{number}", lines.REPEATED_TEXT, max_tokens=SMOKE_TOKENS) for number in range(3)
    ]
    path = lines.write_lines(state.work_dir / "same.jsonl", asked)
    made = _run_whole(state, path)
    first, second, third = _answers(path)
    figures.update(
        completion_tokens=made.completion_tokens,
        is_equal=second == third,
        # the first one computed its prompt: with other kernels, on a GPU
        is_equal_to_first=first == second,
        is_exact_in_company=made.is_exact,
    )
    if second != third:
        raise StepFailedError("the same greedy request, twice, alone: two answers; expected one")


def cancel(state: AcceptState, figures: Figures) -> None:
    """Let a long request run into its timeout; the server drops it, and answers the next one.

    Raises:
        StepFailedError: It ended otherwise, the next one failed, or the server goes on with it.
    """
    assert state.served
    num_tokens = min(MAX_CANCELLED_TOKENS, state.served.engine.manifest.limits.max_seq_len // 2)
    for timeout_s in CANCEL_TIMEOUTS_S:
        path = lines.write_lines(
            state.work_dir / f"cancel-{timeout_s:g}.jsonl",
            [lines.chat_line("long", lines.LONG_TEXT, max_tokens=num_tokens, min_tokens=num_tokens)],
        )
        made = state.run(state.run_options(path, request_timeout_s=timeout_s))
        if not made.completed:
            break
    code = made.failures[0].code if made.failures else "completed"
    figures.update(asked_tokens=num_tokens, timeout_s=timeout_s, ended_as=code)
    if code != "timeout":
        raise StepFailedError(f"a request of {num_tokens} tokens ended as {code}; expected timeout")
    after = lines.write_lines(
        state.work_dir / "after-cancel.jsonl", [lines.chat_line("next", lines.SHORT_TEXT, max_tokens=2)]
    )
    figures["next_latency_ms"] = _run_whole(state, after).request_latency.p50_ms
    active, waited_s = wait_idle(state.served.metrics_url)
    figures.update(active_after=active, idle_after_s=None if active is None else round(waited_s, 3))
    if active:
        raise StepFailedError(
            f"{active:g} requests in flight {IDLE_TIMEOUT_S:g} s after the cancel; expected 0"
        )


def sweep(state: AcceptState, figures: Figures) -> None:
    """Run three points of concurrency, and tell speed and latency of each.

    Raises:
        StepFailedError: A request failed, or fewer were in flight than were asked for.
    """
    points: list[JsonValue] = []
    figures["points"] = points
    for concurrency in CONCURRENCIES:
        num_requests = min(state.options.num_requests, max(CONCURRENCIES[1], 4 * concurrency))
        asked = lines.topic_lines(
            f"sweep-{concurrency}", num_requests, max_tokens=SWEEP_TOKENS, min_tokens=SWEEP_TOKENS
        )
        path = lines.write_lines(state.work_dir / f"sweep-{concurrency}.jsonl", asked)
        made = _run_whole(state, path, concurrency=concurrency)
        points.append(
            {
                "concurrency": concurrency,
                "num_requests": num_requests,
                "max_in_flight": made.max_in_flight,
                "output_tokens_per_s": made.output_tokens_per_s,
                "requests_per_s": made.requests_per_s,
                "median_latency_ms": made.request_latency.p50_ms,
                "median_ttft_ms": made.ttft.p50_ms,
            }
        )
        if made.max_in_flight < min(concurrency, num_requests):
            raise StepFailedError(
                f"concurrency {concurrency}: at most {made.max_in_flight} in flight; expected "
                f"{min(concurrency, num_requests)}"
            )


def shut_down(state: AcceptState, figures: Figures) -> None:
    """Tell the server to end, which it does by itself.

    Raises:
        StepFailedError: It did not, or not well.
    """
    assert state.served
    child = state.served.child
    state.served = None
    started = time.monotonic()
    child.send(signal.SIGTERM)
    code = child.wait(STOP_TIMEOUT_S)
    figures.update(stop_s=round(time.monotonic() - started, 3), exit_code=code)
    if code:
        raise child.failure("ended")


def wait_idle(metrics_url: str) -> tuple[float | None, float]:
    """Return how many requests the server counts in flight, once it is none or the time is up, and the wait.

    The count is None where the server does not tell.
    """
    started = time.monotonic()
    while True:
        active = read_active(metrics_url)
        waited_s = time.monotonic() - started
        if not active or waited_s > IDLE_TIMEOUT_S:
            return active, waited_s
        time.sleep(POLL_S)


def read_active(metrics_url: str) -> float | None:
    """Return how many requests a server says are in flight; None where it does not tell."""
    try:
        with urllib.request.urlopen(metrics_url, timeout=10) as answer:
            return parse_active(answer.read().decode())
    except OSError as exc:
        raise ServerStartError(f"{metrics_url}: {exc}; expected the server's metrics") from exc


def parse_active(text: str) -> float | None:
    """Return the gauge of requests in flight of a server's metrics; None where there is none.

    >>> parse_active('nv_trt_llm_request_metrics{model="m",request_type="active",version="1"} 3')
    3.0
    """
    values = [float(value) for value in _ACTIVE.findall(text)]
    return sum(values) if values else None


def _wait_ready(child: Child, engine: StoredEngine) -> Served:
    timeout_s = default_start_timeout_s(engine.manifest) + START_SLACK_S
    child.wait_until(lambda: child.told() is not None, timeout_s, "the server was ready")
    told = child.told()
    if "error" in told:
        child.wait(STOP_TIMEOUT_S)
        raise child.failure("ended")
    if told["engine_id"] != engine.manifest.engine_id:
        raise StepFailedError(
            f"the server serves engine {told['engine_id'][:12]}; expected {engine.manifest.engine_id[:12]}"
        )
    return Served(child, engine, told["endpoint"], told["metrics"])


def _run_whole(state: AcceptState, path: Path, **fields: Any) -> RunReport:
    """Run a file on the server that is up.

    Raises:
        StepFailedError: A request failed.
    """
    made = state.run(state.run_options(path, **fields))
    if made.failed or made.completed != made.total:
        codes = ", ".join(f"{group.count} {group.code}" for group in made.failures) or "none told"
        raise StepFailedError(f"{made.completed} of {made.total} requests completed ({codes}); expected all")
    return made


def _answers(path: Path) -> list[tuple[str, str]]:
    return [lines.answer_of(record) for record in lines.read_lines(path.with_suffix(".out.jsonl"))]
