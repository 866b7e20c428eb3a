"""Outcomes become ledger rows: an answer, a failure, or a line that was never sent."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from trtb.build.manifest import EngineManifest
from trtb.runner.answer import Answer
from trtb.runner.caching.cache_entry import CachedAnswer
from trtb.runner.errors import RequestError
from trtb.runner.ledger import ResultRow
from trtb.runner.records import answers_id, completed_record, failed_record, failure_of
from trtb.runner.run_folder import RunRecord
from trtb.runner.source import Item, Refused

if TYPE_CHECKING:
    from trtb.runner.scheduling.schedule_equal import Reused


class RowMaker:
    """Makes the rows of one run; every answer names the engine that gave it."""

    def __init__(self, record: RunRecord, manifest: EngineManifest) -> None:
        self._answers_id = answers_id(record.input_sha256, record.engine_id, record.settings)
        self._created_s = record.created_s
        self._model = manifest.reference
        self._tokens_per_block = manifest.limits.tokens_per_block
        self._fingerprint = f"trtb-{manifest.engine_id[:16]}"

    def completed(self, item: Item, answer: Answer) -> ResultRow:
        """Return the row of an answer."""
        return self._completed(item.line, item.custom_id, item, answer, item.attempts)

    def reused(self, reused: Reused) -> ResultRow:
        """Return the row of a line that an equal one's answer answers; it was sent no times."""
        answer = replace(reused.answer, latency_ns=0, ttft_ns=0)
        row = self._completed(reused.line, reused.custom_id, reused.item, answer, attempts=0)
        return replace(row, reused_from="equal", reused_blocks=None)

    def to_keep(self, item: Item, answer: Answer) -> CachedAnswer:
        """Return an answer as the result cache keeps it."""
        return CachedAnswer(
            choices=answer.choices,
            prompt_tokens=item.num_prompt_tokens,
            completion_tokens=answer.num_tokens,
            finish_reason=answer.finish_reason,
            created_s=self._created_s,
            cached_tokens=self._cached_tokens(item, answer),
        )

    def _cached_tokens(self, item: Item, answer: Answer) -> int | None:
        """Return the prompt tokens in reused blocks; a block of which only a part fits is counted whole."""
        if answer.reused_blocks is None:
            return None
        return min(item.num_prompt_tokens, answer.reused_blocks * self._tokens_per_block)

    def cached(self, line: int, custom_id: str, answer: CachedAnswer, *, is_chat: bool) -> ResultRow:
        """Return the row of a line that the result cache answers; it was sent no times."""
        return self._row(line, custom_id, answer, is_chat=is_chat, attempts=0, reused_from="cache")

    def _completed(self, line: int, custom_id: str, item: Item, answer: Answer, attempts: int) -> ResultRow:
        return self._row(
            line,
            custom_id,
            self.to_keep(item, answer),
            is_chat=item.is_chat,
            attempts=attempts,
            latency_ns=answer.latency_ns,
            ttft_ns=answer.ttft_ns,
            reused_blocks=answer.reused_blocks,
        )

    def _row(
        self,
        line: int,
        custom_id: str,
        answer: CachedAnswer,
        *,
        is_chat: bool,
        attempts: int,
        latency_ns: int = 0,
        ttft_ns: int = 0,
        reused_blocks: int | None = None,
        reused_from: Literal["equal", "cache"] | None = None,
    ) -> ResultRow:
        return ResultRow(
            line=line,
            custom_id=custom_id,
            status="completed",
            code=None,
            attempts=attempts,
            prompt_tokens=answer.prompt_tokens,
            completion_tokens=answer.completion_tokens,
            finish_reason=answer.finish_reason,
            latency_ns=latency_ns,
            ttft_ns=ttft_ns,
            finished_ns=time.time_ns(),
            reused_from=reused_from,
            reused_blocks=reused_blocks,
            record=completed_record(
                answers_id=self._answers_id,
                line=line,
                custom_id=custom_id,
                model=self._model,
                fingerprint=self._fingerprint,
                created_s=answer.created_s,
                is_chat=is_chat,
                choices=answer.choices,
                prompt_tokens=answer.prompt_tokens,
                completion_tokens=answer.completion_tokens,
                cached_tokens=answer.cached_tokens,
            ),
        )

    def failed(self, item: Item, error: RequestError) -> ResultRow:
        """Return the row of a request that was sent and failed."""
        refused = Refused(item.line, item.custom_id, *failure_of(error))
        return self._failure(refused, item.attempts)

    def refused(self, refused: Refused) -> ResultRow:
        """Return the row of a line that was not sent."""
        return self._failure(refused, 0)

    def _failure(self, refused: Refused, attempts: int) -> ResultRow:
        return ResultRow(
            line=refused.line,
            custom_id=refused.custom_id,
            status="failed",
            code=refused.code,
            attempts=attempts,
            prompt_tokens=0,
            completion_tokens=0,
            finish_reason=None,
            latency_ns=0,
            ttft_ns=0,
            finished_ns=time.time_ns(),
            record=failed_record(
                answers_id=self._answers_id,
                line=refused.line,
                custom_id=refused.custom_id,
                code=refused.code,
                message=refused.message,
                status_code=refused.status_code,
            ),
        )
