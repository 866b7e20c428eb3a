"""In-flight batching over OpenVINO GenAI's ContinuousBatchingPipeline, owned by one thread.

`step()` holds the GIL, so nothing else in the process runs during a step: requests and cancellations
are seen between steps, where the engine can use them. An exception from `step()` leaves the pipeline
dead; the thread then builds a new one, fails the request that caused it and starts the others again.
What the pipeline does not check (ids out of the vocabulary, lengths past the pool) is checked here.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import openvino as ov
import openvino_genai as genai
from openvino_genai import py_openvino_genai
from openvino_requests import Job, Sequence, generation_config

RUNNING = py_openvino_genai.GenerationStatus.RUNNING
IGNORED = py_openvino_genai.GenerationStatus.IGNORED
CANCEL_POLL_S = 0.1
IDLE_WAIT_S = 0.25
MAX_STRIKES = 2


@dataclass(slots=True)
class Counters:
    """What the engine has done since it started; written by the engine's thread only."""

    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    rebuilds: int = 0


class Engine:
    """The pipeline and the thread that owns it.

    Args:
        model_dir: An OpenVINO model folder with its tokenizer.
        vocab_size: Ids at or above it are refused.
        max_seq_len: Most tokens of a prompt and its answer together.
        num_kv_blocks: KV pool, in blocks of `tokens_per_block`.
        is_reusing: A prompt that begins as an earlier one takes its blocks, as far as they are there.
        properties: Device properties, such as KV_CACHE_PRECISION.
        on_idle: Called on the engine's thread between steps, and every quarter second when idle.
        on_fatal: Called when the pipeline cannot be built again; the process should end.
    """

    def __init__(
        self,
        model_dir: str,
        *,
        vocab_size: int,
        max_seq_len: int,
        num_kv_blocks: int,
        tokens_per_block: int,
        max_num_tokens: int,
        max_batch_size: int,
        is_reusing: bool,
        properties: dict[str, str],
        log: Callable[[str], None],
        on_idle: Callable[[], None],
        on_fatal: Callable[[str], None],
    ) -> None:
        scheduler = genai.SchedulerConfig()
        scheduler.num_kv_blocks = num_kv_blocks
        scheduler.max_num_batched_tokens = max_num_tokens
        scheduler.max_num_seqs = max_batch_size
        scheduler.enable_prefix_caching = is_reusing
        self._build = lambda: genai.ContinuousBatchingPipeline(model_dir, scheduler, "CPU", properties)
        self._vocab_size = vocab_size
        # one block stays free: the pool must also hold the block that a step is about to fill
        self._max_tokens = min(max_seq_len, (num_kv_blocks - 1) * tokens_per_block)
        self._log = log
        self._on_idle = on_idle
        self._on_fatal = on_fatal
        self._inbox: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._live: dict[int, Job] = {}
        self._fresh: list[Job] = []  # admitted since the last step that went well
        self._suspects: list[Job] = []  # part of a failing step; admitted again one at a time
        self._next_id = 0
        self._stopping = False
        self.counters = Counters()
        self._pipeline = self._build()
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)
        self._thread.start()

    @property
    def num_running(self) -> int:
        """Return how many requests the pipeline holds."""
        return len(self._live)

    @property
    def num_waiting(self) -> int:
        """Return how many requests have not reached the pipeline."""
        return self._inbox.qsize() + len(self._suspects)

    @property
    def cache_usage(self) -> float:
        """Return the share of the KV pool that live requests hold, 0 to 1."""
        return float(self._pipeline.get_metrics().cache_usage) / 100

    def submit(self, job: Job) -> None:
        """Queue a job; any thread may call this.

        Raises:
            ValueError: The request can never run: an id out of the vocabulary, or too long.
        """
        num_prompt = len(job.ids)
        if num_prompt == 0:
            raise ValueError("input_ids is empty; expected at least one token")
        low, high = min(job.ids), max(job.ids)
        if low < 0 or high >= self._vocab_size:
            raise ValueError(
                f"input_ids holds {low if low < 0 else high}; expected ids from 0 to {self._vocab_size - 1}"
            )
        if num_prompt + job.sampling.max_tokens > self._max_tokens:
            raise ValueError(
                f"prompt of {num_prompt} tokens + request_output_len {job.sampling.max_tokens} is "
                f"{num_prompt + job.sampling.max_tokens}; expected at most {self._max_tokens}"
            )
        generation_config(job.sampling).validate()
        self._inbox.put(job)

    def stop(self, timeout_s: float) -> None:
        """Finish what is running, then end the thread; waits for at most `timeout_s`."""
        self._stopping = True
        self._inbox.put(None)
        self._thread.join(timeout_s)

    def _loop(self) -> None:
        while True:
            self._take_new()
            self._drop_cancelled()
            if self._live:
                try:
                    self._pipeline.step()
                except Exception as exc:  # noqa: BLE001 (the pipeline is dead, whatever says so)
                    self._recover(exc)
                    continue
                self._fresh.clear()
                self._deliver()
            elif self._stopping:
                return
            if not self._stopping:
                self._on_idle()

    def _take_new(self) -> None:
        """Admit what waits; block for a moment only when there is nothing else to do."""
        if self._suspects:
            if not self._fresh:
                self._admit(self._suspects.pop(0))  # alone in its first step, so that the step tells
            return
        wait = not self._live
        while True:
            try:
                job = self._inbox.get(timeout=IDLE_WAIT_S) if wait else self._inbox.get_nowait()
            except queue.Empty:
                return
            wait = False
            if job is not None:
                self._admit(job)

    def _admit(self, job: Job) -> None:
        if job.is_cancelled():
            self._finish_cancelled(job)
            return
        self._next_id += 1
        tensor = ov.Tensor(np.array([job.ids], dtype=np.int64))
        try:
            job.handle = self._pipeline.add_request(self._next_id, tensor, generation_config(job.sampling))
        except RuntimeError as exc:
            self._fail(job, str(exc))
            return
        job.sequences.clear()
        job.first_scheduled_ns = job.first_scheduled_ns or time.time_ns()
        self._live[self._next_id] = job
        self._fresh.append(job)

    def _drop_cancelled(self) -> None:
        now = time.monotonic()
        for key, job in list(self._live.items()):
            if now < job.next_poll:
                continue
            job.next_poll = now + CANCEL_POLL_S
            if job.is_cancelled():
                job.handle.cancel()
                del self._live[key]
                self._finish_cancelled(job)

    def _deliver(self) -> None:
        now_ns = time.time_ns()
        for key, job in list(self._live.items()):
            status = job.handle.get_status()  # before reading, so that no token is lost
            while job.handle.can_read():
                for index, output in enumerate(job.handle.read().values()):
                    sequence = job.sequences.setdefault(index, Sequence())
                    sequence.tokens += output.generated_ids
                    sequence.log_probs += output.generated_log_probs
            if job.tokens:
                job.first_token_ns = job.first_token_ns or now_ns
                job.last_token_ns = now_ns
            stopped = status == RUNNING and self._cut_at_stop_word(job)
            if stopped:
                job.handle.stop()
            if status == RUNNING and not stopped:
                self._send_new_tokens(job)
                continue
            del self._live[key]
            if status == IGNORED:
                job.has_no_room = True  # for now: alone it fits, or submit() would have refused it
                self._fail(job, "the KV pool cannot hold this request beside the others")
            else:
                self._finish(job)

    def _cut_at_stop_word(self, job: Job) -> bool:
        """Say whether the answer ends in a stop word of several ids (single ids stop the pipeline)."""
        tokens = job.tokens
        return any(len(word) > 1 and tokens[-len(word) :] == word for word in job.sampling.stop_words)

    def _send_new_tokens(self, job: Job) -> None:
        if job.on_tokens and len(job.tokens) > job.num_sent:
            new = job.tokens[job.num_sent :]
            job.num_sent = len(job.tokens)
            job.on_tokens(new)

    def _finish(self, job: Job) -> None:
        """Hand over a finished job; the end id itself is not part of an answer, as on TensorRT-LLM."""
        for sequence in job.sequences.values():
            if sequence.tokens and sequence.tokens[-1] == job.sampling.end_id:
                sequence.tokens.pop()
                del sequence.log_probs[len(sequence.tokens) :]
            self.counters.output_tokens += len(sequence.tokens)
        self.counters.completed += 1
        self.counters.input_tokens += len(job.ids)
        job.handle = None
        job.on_done(job)

    def _finish_cancelled(self, job: Job) -> None:
        self.counters.cancelled += 1
        job.handle = None
        job.cancelled = True
        job.on_error(job, "request cancelled by client")

    def _fail(self, job: Job, message: str) -> None:
        self.counters.failed += 1
        job.handle = None
        job.on_error(job, message)

    def _recover(self, cause: Exception) -> None:
        """Build the pipeline again; fail the request that killed it, start the innocent ones over.

        A request alone in its first step is guilty when that step fails. Of several that entered together
        those with a grammar are suspects (bad grammars are what kills pipelines), or else all; suspects
        come back one at a time. Where nothing new had entered, every request gets a strike, and those with
        too many fail.
        """
        self.counters.rebuilds += 1
        self._log(f"step failed, building the pipeline again: {cause}")
        entered, self._fresh = self._fresh, []
        fresh = [job for job in entered if job.sampling.guide] or entered
        innocent = [job for job in self._live.values() if job not in fresh]
        self._live.clear()
        for job in (*fresh, *innocent):
            job.handle = None
        self._pipeline = None
        try:
            self._pipeline = self._build()
        except Exception as exc:  # noqa: BLE001 (nothing can be served any more)
            for job in (*fresh, *innocent):
                self._fail(job, f"engine lost: {exc}")
            self._on_fatal(f"the pipeline cannot be built again: {exc}")
            return
        if len(fresh) == 1:
            self._fail(fresh[0], f"engine error: {cause}")
        else:
            self._suspects += fresh
        for job in innocent:
            job.strikes += 0 if entered else 1
            if job.strikes >= MAX_STRIKES:
                self._fail(job, f"engine error: {cause}")
            else:
                self._admit(job)
        if entered:
            self._fresh.clear()  # the innocent ones are not to be suspected with the next suspect
