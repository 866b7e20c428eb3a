"""What a comparison comes to: faster or slower, the same answers or not, and what B fails at."""

from __future__ import annotations

from trtb.runner.reporting.comparison_model import Comparison
from trtb.runner.reporting.intervals import PairedDifference, Share
from trtb.runner.wording import counted

# runs of one engine, one after the other, differ by about as much
NOISE = 0.05
NUM_NAMED = 5
MAX_ID = 60  # characters of a custom_id in a sentence


def verdict_of(found: Comparison, *, is_exact: bool) -> list[str]:
    """Return the sentences; `is_exact` says that answers depend on nothing but request and engine."""
    lines = ["no request was completed in both: neither speed nor answers can be compared"]
    if found.counts.completed_in_both:
        lines = [_speed(found), *_answers(found, is_exact=is_exact), _lengths(found)]
    return [*lines, *_changes(found), *_extent(found)]


def share_text(share: Share) -> str:
    """Return a share with its interval.

    >>> from trtb.runner.reporting.intervals import share_of
    >>> share_text(share_of(81, 100))
    '81 of 100 (81.0%; 95% interval 72.2% to 87.5%)'
    """
    if share.share is None or share.low is None or share.high is None:
        return "none of 0"
    return (
        f"{share.count} of {share.of} ({share.share:.1%}; 95% interval {share.low:.1%} to {share.high:.1%})"
    )


def difference_text(found: PairedDifference) -> str:
    """Return a mean difference with its interval, or with its number of pairs where these are few."""
    if found.mean is None:
        return "no pairs"
    if found.low is None or found.high is None:
        return f"{found.mean:+.1f} (of only {counted(found.num_pairs, 'pair')}: no interval)"
    return f"{found.mean:+.1f} (95% interval {found.low:+.1f} to {found.high:+.1f})"


def _speed(found: Comparison) -> str:
    if found.speed.cautions:
        return f"speed: not compared, as more differs than the engine: {'; '.join(found.speed.cautions)}"
    ratio = found.speed.figures[0].ratio
    if ratio is None:
        return "speed: not compared: a run completed nothing in its last session"
    if abs(ratio - 1) < NOISE:
        return f"speed: no difference to speak of: B gives {ratio:.2f} times A's output tokens/s"
    word = "faster" if ratio > 1 else "slower"
    return f"speed: B is {word}: {ratio:.2f} times A's output tokens/s"


def _answers(found: Comparison, *, is_exact: bool) -> list[str]:
    agreement = found.agreement
    equal = agreement.equal
    lines = [f"answers: {share_text(equal)} are the same byte by byte"]
    if equal.count < equal.of and agreement.similarity_mean is not None:
        lines[0] += f"; all together they are {agreement.similarity_mean:.3f} alike (1: the same words)"
        if not is_exact:
            lines.append(
                "answers: some of the difference may be chance: in one run or both, answers may "
                "depend on what else was in flight (--deterministic)"
            )
    if agreement.prompts_differ:
        lines.append(
            f"prompts: {counted(agreement.prompts_differ, 'request')} with another number of prompt tokens: "
            "other requests, chat template or tokenizer"
        )
    values = agreement.json_answers
    if values.only_a:
        lines.append(f"JSON: {counted(values.only_a, 'answer')} of A's that is JSON, where B's is not")
    calls = agreement.tool_calls
    if calls.count < calls.of:
        lines.append(f"tool calls: {share_text(calls)} agree")
    return lines


def _lengths(found: Comparison) -> str:
    lengths = found.lengths
    if not lengths.difference.num_more and not lengths.difference.num_less:
        return "length: every answer has as many tokens in B as in A"
    ratio = "" if lengths.ratio is None else f"; {lengths.ratio:.2f} times A's tokens in all"
    text = f"length: B less A, {difference_text(lengths.difference)} tokens an answer{ratio}"
    cut_a, cut_b = lengths.a.truncated.count, lengths.b.truncated.count
    return text + (f"; cut by max_tokens: {cut_a} in A, {cut_b} in B" if cut_a or cut_b else "")


def _changes(found: Comparison) -> list[str]:
    counts = found.counts
    if not counts.in_both:
        return ["regressions: cannot be told: no request has a result in both"]
    lines = ["regressions: none; of the requests in both, B completed all that A completed"]
    if counts.regressed:
        named = ", ".join(
            f"{short_id(change.custom_id)!r} ({change.code})" for change in found.regressions[:NUM_NAMED]
        )
        more = ", ..." if counts.regressed > NUM_NAMED else ""
        lines = [f"regressions: {counts.regressed} that A completed failed in B: {named}{more}"]
    if counts.repaired:
        lines.append(f"repaired: {counts.repaired} that failed in A were completed in B")
    return lines


def short_id(custom_id: str) -> str:
    """Return a custom_id, cut where it is very long."""
    return custom_id if len(custom_id) <= MAX_ID else f"{custom_id[:MAX_ID]}..."


def _extent(found: Comparison) -> list[str]:
    counts = found.counts
    lines = []
    if counts.only_a or counts.only_b:
        lines.append(
            f"not compared: {counted(counts.only_a, 'request')} with a result in A alone, "
            f"{counts.only_b} in B alone"
        )
    if not found.same_input and counts.in_both:
        lines.append("input: not the same file; that an id means the same request is taken on trust")
    return lines
