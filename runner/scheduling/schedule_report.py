"""What planning, admission and the canary tell of themselves in a run's report."""

from __future__ import annotations

from trtb.runner.admission import Admission
from trtb.runner.canary import Canary
from trtb.runner.report import AdmissionReport, CanaryReport, ScheduleReport
from trtb.runner.scheduling.schedule_feed import Feed
from trtb.runner.scheduling.schedule_planner import Planner
from trtb.runner.scheduling.schedule_reuse import SeenReuse, UnseenReuse


def schedule_figures(planner: Planner, feed: Feed) -> ScheduleReport:
    """Return the order that was taken, what was expected of it, and what was seen."""
    is_prefix = planner.choice.order == "prefix"
    figures = planner.figures
    seen = feed.meter.result() if is_prefix else None
    return ScheduleReport(
        order=planner.choice.order,
        why=planner.choice.why,
        planning_s=round(planner.duration_s, 3),
        num_prefixes=figures.num_prefixes if figures else 0,
        num_grouped=figures.num_grouped if figures else 0,
        num_leaders=feed.meter.num_leaders,
        expected_reuse=round(figures.reuse_share, 4) if figures and is_prefix else None,
        seen_reuse=round(seen.share, 4) if isinstance(seen, SeenReuse) else None,
        seen_by=seen.method if isinstance(seen, SeenReuse) else None,
        unseen_why=seen.reason if isinstance(seen, UnseenReuse) else None,
    )


def admission_figures(admission: Admission) -> AdmissionReport:
    """Return what bounded the requests in flight."""
    known = [capacity for capacity in admission.capacities if capacity is not None]
    return AdmissionReport(
        policy="learned" if admission.can_preempt else "worst_case",
        num_kv_blocks=sum(known) if known else None,
        max_blocks_held=admission.max_blocks_held,
        output_share=round(admission.lengths.share, 3),
        num_full=admission.num_full,
        min_bound=admission.min_bound,
        last_bound=admission.last_bound,
    )


def canary_figures(canary: Canary, num_aside: int) -> CanaryReport:
    """Return what a session's watch over failures saw."""
    stop = canary.stop
    return CanaryReport(
        size=canary.size,
        held_s=round(canary.held_s, 3),
        max_failure_rate=canary.max_failure_rate,
        window=canary.window,
        codes=dict(canary.codes),
        stopped_by=None if stop is None else stop.rule,
        why=None if stop is None else stop.why,
        set_aside=num_aside,
    )
