"""`trtb report A B`: two runs, request by request."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trtb.tools.console import put, put_table, say

if TYPE_CHECKING:
    from trtb.runner.reporting.comparison_model import Comparison
    from trtb.runner.run_folder import RunPaths


def report_comparison(
    paths_a: RunPaths,
    paths_b: RunPaths,
    *,
    page: Path | None,
    include_text: bool,
    min_agreement: float | None,
    as_json: bool,
) -> int:
    """Print what two runs have in common, write the page, and return the exit code.

    That is 0, or 1 where less than `min_agreement` of the answers are the same byte by byte.

    Raises:
        ConfigError: One of them is no run, or the page cannot be written, or not there.
    """
    from trtb.runner.reporting.comparison import compare
    from trtb.tools.pages.page import check_page, write_page

    if page is not None:
        check_page(page)
    found = compare(paths_a, paths_b, include_text=include_text)
    if page is not None:
        from trtb.tools.pages.comparison_page import render_comparison

        write_page(page, render_comparison(found))
        say(f"page: {page}")
    if as_json:
        put(found.model_dump_json(indent=2))
    else:
        show_comparison(found)
    share = found.agreement.equal.share
    if min_agreement is not None and (share is None or share < min_agreement):
        told = (
            "no request was completed in both"
            if share is None
            else f"{share:.1%} of the answers are the same"
        )
        say(f"{told}; expected at least {min_agreement:.1%} (--min-agreement)")
        return 1
    return 0


def show_comparison(found: Comparison) -> None:
    """Print a comparison as people read it."""
    from trtb.runner.reporting.comparison_differences import value_text
    from trtb.runner.reporting.comparison_verdict import short_id

    for name, run in (("A", found.a), ("B", found.b)):
        put(
            f"{name}          {run.output}: {run.state}, engine {run.engine} ({run.engine_id[:12]}), "
            f"{run.total} = {run.completed} completed + {run.failed} failed"
            + (f" + {left} to do" if (left := run.total - run.completed - run.failed) else "")
        )
    counts = found.counts
    put(
        f"requests   {counts.in_both} in both: {counts.completed_in_both} completed in both, "
        f"{counts.regressed} only in A, {counts.repaired} only in B, {counts.failed_in_both} in neither"
    )
    for line in found.verdict:
        put(f"verdict    {line}")
    for held in found.differences:
        put(f"differs    {held.name}: A {value_text(held.a)}, B {value_text(held.b)}")
    if counts.completed_in_both:
        from trtb.tools.pages.comparison_page import figure_rows

        put_table(["figure", "unit", "A", "B", "B / A"], figure_rows(found.speed.figures))
    for pair in found.most_different:
        put(
            f"unlike     {short_id(pair.custom_id)!r}, lines {pair.line_a} and {pair.line_b}: "
            f"{pair.similarity:.3f} alike; of {pair.words_a} and {pair.words_b} words "
            f"the first {pair.words_alike} are the same"
        )
        if pair.text_a is not None and pair.text_b is not None:
            put(f"  A: {pair.text_a!r}")
            put(f"  B: {pair.text_b!r}")
