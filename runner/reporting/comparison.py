"""Compare two runs request by request: what an engine's successor does faster, otherwise, or no longer.

Lines belong together by custom_id, so the inputs may differ in order and extent. Times and lengths are those
of the requests that both runs completed: a run that failed at its longest ones is not faster for that.
"""

from __future__ import annotations

from trtb.runner.report import RunReport
from trtb.runner.reporting.comparison_differences import differences_of, reasons_unlike
from trtb.runner.reporting.comparison_figures import PairFigures, figure
from trtb.runner.reporting.comparison_model import ComparedRun, Comparison, Counts, Figure, Speed
from trtb.runner.reporting.comparison_verdict import verdict_of
from trtb.runner.reporting.current_report import current_report
from trtb.runner.reporting.ledger_pairs import LedgerPairs
from trtb.runner.run_folder import RunFolder, RunPaths, RunRecord


def compare(paths_a: RunPaths, paths_b: RunPaths, *, include_text: bool = False) -> Comparison:
    """Compare two runs; A is what was, B what is to take its place.

    Args:
        paths_a: Of the first run, finished or not.
        paths_b: Of the second.
        include_text: Show the answers that agree the least, and not only their ids.

    Raises:
        ConfigError: One of them is no run.
        LedgerError: A ledger cannot be read.
    """
    reports = current_report(paths_a), current_report(paths_b)
    records = _record(paths_a), _record(paths_b)
    figures = PairFigures(include_text=include_text)
    with LedgerPairs(paths_a.ledger, paths_b.ledger) as pairs:
        for row_a, row_b in pairs:
            figures.add(row_a, row_b)
        counts = _counts(figures, pairs)
        run_a = _compared_run(records[0], reports[0], *pairs.totals("a"))
        run_b = _compared_run(records[1], reports[1], *pairs.totals("b"))
    times, latency_ratio = figures.times()
    made = Comparison(
        a=run_a,
        b=run_b,
        same_input=records[0].input_sha256 == records[1].input_sha256,
        differences=differences_of(*records),
        counts=counts,
        regressions=figures.regressions,
        repairs=figures.repairs,
        speed=Speed(
            figures=[*_throughput(*reports), *times],
            cautions=reasons_unlike(records, reports, figures.num_reused),
            latency_ratio_of_pairs=latency_ratio,
        ),
        lengths=figures.lengths(),
        agreement=figures.agreement(),
        most_different=figures.most_different(),
        distributions=figures.distributions(),
        verdict=[],
    )
    made.verdict = verdict_of(made, is_exact=all(report.is_exact for report in reports))
    return made


def _record(paths: RunPaths) -> RunRecord:
    record = RunFolder(paths.output).read()
    assert record is not None, "its report was read"
    return record


def _compared_run(record: RunRecord, report: RunReport, completed: int, failed: int) -> ComparedRun:
    return ComparedRun(
        output=report.output,
        run_id=record.run_id,
        state=report.state,
        engine=record.engine,
        engine_id=record.engine_id,
        input_path=record.input_path,
        input_sha256=record.input_sha256,
        host=record.host,
        created_at=record.created_at,
        total=record.total,
        completed=completed,
        failed=failed,
    )


def _counts(figures: PairFigures, pairs: LedgerPairs) -> Counts:
    only_a, only_b = pairs.unmatched("a"), pairs.unmatched("b")
    return Counts(
        in_both=figures.num_pairs,
        completed_in_both=figures.num_completed,
        failed_in_both=figures.num_failed,
        regressed=figures.num_regressed,
        repaired=figures.num_repaired,
        only_a=only_a.num_with_id,
        only_b=only_b.num_with_id,
        only_a_samples=only_a.samples,
        only_b_samples=only_b.samples,
        without_id_a=only_a.num_without_id,
        without_id_b=only_b.num_without_id,
    )


def _throughput(a: RunReport, b: RunReport) -> list[Figure]:
    """Return what only the reports know: how long it all took; of a run that computed nothing, nothing."""
    measures = (
        ("output tokens", "tokens/s", a.output_tokens_per_s, b.output_tokens_per_s),
        ("completed requests", "requests/s", a.requests_per_s, b.requests_per_s),
        ("duration", "s", a.duration_s, b.duration_s),
    )
    return [figure(name, unit, of_a or None, of_b or None) for name, unit, of_a, of_b in measures]
