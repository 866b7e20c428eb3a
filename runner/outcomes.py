"""Outcomes become ledger rows: an answer, a failure, or a line that was never sent."""

from __future__ import annotations

import time
from dataclasses import replace

from trtb.build.manifest import EngineManifest
from trtb.runner.answer import Answer
from trtb.runner.errors import RequestError
from trtb.runner.ledger import ResultRow
from trtb.runner.records import completed_record, failed_record, failure_of
from trtb.runner.run_folder import RunRecord
from trtb.runner.scheduling.schedule_equal import Reused
from trtb.runner.source import Item, Refused


class RowMaker:
    """Makes the rows of one run; every answer names the engine that gave it."""

    def __init__(self, record: RunRecord, manifest: EngineManifest) -> None:
        self._run_id = record.run_id
        self._created_s = record.created_s
        self._model = manifest.reference
        self._fingerprint = f"trtb-{manifest.engine_id[:16]}"

    def completed(self, item: Item, answer: Answer) -> ResultRow:
        """Return the row of an answer."""
        return self._completed(item.line, item.custom_id, item, answer, item.attempts)

    def reused(self, reused: Reused) -> ResultRow:
        """Return the row of a line that an equal one's answer answers; it was sent no times."""
        answer = replace(reused.answer, latency_ns=0, ttft_ns=0)
        row = self._completed(reused.line, reused.custom_id, reused.item, answer, attempts=0)
        return replace(row, reused_from="equal", reused_blocks=None)

    def _completed(self, line: int, custom_id: str, item: Item, answer: Answer, attempts: int) -> ResultRow:
        num_prompt_tokens = item.num_prompt_tokens
        return ResultRow(
            line=line,
            custom_id=custom_id,
            status="completed",
            code=None,
            attempts=attempts,
            prompt_tokens=num_prompt_tokens,
            completion_tokens=answer.num_tokens,
            finish_reason=answer.finish_reason,
            latency_ns=answer.latency_ns,
            ttft_ns=answer.ttft_ns,
            finished_ns=time.time_ns(),
            record=completed_record(
                run_id=self._run_id,
                line=line,
                custom_id=custom_id,
                model=self._model,
                fingerprint=self._fingerprint,
                created_s=self._created_s,
                is_chat=item.is_chat,
                choices=answer.choices,
                prompt_tokens=num_prompt_tokens,
                completion_tokens=answer.num_tokens,
                is_reused=not attempts,
            ),
            reused_blocks=answer.reused_blocks,
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
                run_id=self._run_id,
                line=refused.line,
                custom_id=refused.custom_id,
                code=refused.code,
                message=refused.message,
                status_code=refused.status_code,
            ),
        )
