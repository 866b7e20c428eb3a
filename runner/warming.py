"""Warm-up: compute a file's most shared prefixes on a running server, before anybody asks for them.

A run leads its prefixes itself, each just before its lines. This is for a server that answers the file's
requests from elsewhere, or whose first answers should come soon.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from trtb.build.manifest import EngineManifest
from trtb.runner.admission import Demand
from trtb.runner.deploy import Agreement
from trtb.runner.endpoint import Endpoint
from trtb.runner.engine_request import RequestTerms, engine_request
from trtb.runner.errors import InputFileError
from trtb.runner.line_set import LineSet
from trtb.runner.options import RunOptions
from trtb.runner.scheduling.prefix_tree import PrefixTree
from trtb.runner.scheduling.schedule_index import LineIndex
from trtb.runner.scheduling.schedule_inputs import make_renderer, make_source
from trtb.runner.scheduling.schedule_prefixes import Copy
from trtb.runner.scheduling.schedule_task import Candidate, Task, leader_of
from trtb.runner.source import Item, LinePlace, Refused, Source
from trtb.runner.validate import validate_file
from trtb.runner.wording import counted

RUN_ID: Final = "warm"


@dataclass(frozen=True, slots=True)
class WarmPrefix:
    """A prefix that is worth computing: its node, the blocks from the prompt's begin, and who has it."""

    node: int
    num_blocks: int
    num_new_blocks: int  # beyond the prefixes before it
    num_lines: int
    item: Item  # one of the lines


@dataclass(slots=True)
class WarmPlan:
    """The prefixes to compute, in their order: what others stand on first, the most shared last."""

    num_requests: int = 0
    num_refused: int = 0
    num_prefixes: int = 0  # of the file
    prefixes: list[WarmPrefix] = field(default_factory=list)

    @property
    def num_blocks(self) -> int:
        """Return how many blocks all of them fill."""
        return sum(prefix.num_new_blocks for prefix in self.prefixes)


@dataclass(frozen=True, slots=True)
class Warmed:
    """What computing them took; the blocks that the engine had already, where it tells."""

    duration_s: float
    reused_blocks: int | None


def check_requests(options: RunOptions) -> None:
    """Refuse a file of which nothing can be sent, before a server is asked for anything.

    Raises:
        InputFileError: The file cannot be read, or none of its lines is a request.
    """
    checked = validate_file(
        options.input_path,
        model_names=options.model_names,
        strict_params=options.strict_params,
        capabilities=options.capabilities(),
        max_line_bytes=options.max_line_bytes,
    )
    if not checked.valid:
        raise InputFileError(
            f"{options.input_path}: none of its {counted(checked.total, 'line')} is a request; expected one "
            "or more",
            "trtb validate tells why",
        )


def plan_warm_up(options: RunOptions, pool: int | None, top: int | None, folder: Path) -> WarmPlan:
    """Choose a file's most shared prefixes, as many as the pool holds.

    Args:
        options: Of a run of that file.
        pool: The server's KV blocks, where it tells.
        top: Most prefixes; None is all that fit.
        folder: For files without a name.

    Raises:
        InputFileError: The file cannot be read, or the engine has no room for any of its requests.
    """
    plan = WarmPlan()
    renderer = make_renderer(options, pool)
    source = make_source(options, renderer, LineSet(), LineSet(), pool, seed_base="")
    index = LineIndex(source, "prefix", options.manifest.limits.tokens_per_block, folder)

    def refuse(refused: Refused) -> None:
        source.skip(refused.line)
        plan.num_refused += 1

    with contextlib.closing(source), contextlib.closing(index):
        for _ in index.steps(refuse):
            pass
        plan.num_requests, plan.num_prefixes = index.figures.num_lines, index.figures.num_prefixes
        if not plan.num_requests:
            raise InputFileError(
                f"{options.input_path}: none of its {counted(plan.num_refused, 'request')} can be sent; "
                "expected one that the engine has room for",
                "see the limits of the engine: trtb engines",
            )
        places = _places(index)
        chosen = choose_prefixes(index.tree, list(places), None if pool is None else pool - 1, top)
        for node, num_new_blocks in chosen:
            item = _read(source, places[node])
            plan.prefixes.append(
                WarmPrefix(node, index.tree.depth[node], num_new_blocks, index.tree.num_lines[node], item)
            )
    return plan


def choose_prefixes(
    tree: PrefixTree, nodes: Sequence[int], capacity: int | None, top: int | None
) -> list[tuple[int, int]]:
    """Return prefixes that save most, as nodes with the blocks that each adds, in the order to compute them.

    Args:
        tree: All prefixes.
        nodes: Those of the tree that stand for themselves.
        capacity: Blocks that all may fill together; None has no bound.
        top: How many, at most; None has no bound.
    """
    ranked = sorted(nodes, key=lambda node: (tree.num_lines[node] - 1) * tree.segment(node), reverse=True)
    chosen: dict[int, None] = {}  # in the order of choice
    num_blocks = 0
    for node in ranked:
        missing = [above for above in tree.path(node) if above not in chosen]
        cost = sum(map(tree.segment, missing))
        is_too_many = top is not None and len(chosen) + len(missing) > top
        if is_too_many or (capacity is not None and num_blocks + cost > capacity):
            continue
        chosen.update(dict.fromkeys(missing))
        num_blocks += cost
    # engines give up first what was used longest ago, so what saves most comes last
    ordered: dict[int, None] = {}
    for node in reversed(chosen):
        ordered.update(dict.fromkeys(above for above in tree.path(node) if above not in ordered))
    return [(node, tree.segment(node)) for node in ordered]


async def warm_up(endpoint: Endpoint, agreed: Agreement, manifest: EngineManifest, plan: WarmPlan) -> Warmed:
    """Compute the prefixes of a plan, one after the other.

    Raises:
        RequestError: One could not be computed.
    """
    tokens, width = manifest.tokens, manifest.limits.tokens_per_block
    terms = RequestTerms(
        RUN_ID, tokens.end, tokens.pad, tokens_per_block=width, is_retaining=agreed.can_retain
    )
    stream = endpoint.open_stream()
    reused: list[int] = []
    started = time.monotonic()
    for prefix in plan.prefixes:
        leader = leader_of(prefix.item, prefix.num_blocks * width)
        candidate = Candidate(Demand(prefix.num_blocks), prefix.node, item=prefix.item)
        copies = (Copy(prefix.node, 0, prefix.num_blocks),)
        task = Task(leader, candidate, 0, None, leads=prefix.node, copies=copies)
        await stream.send(engine_request(terms, task, 0, lambda _: ()))
        while True:
            chunk = await stream.receive()
            if chunk.reused_blocks is not None:
                reused.append(chunk.reused_blocks)
            if chunk.is_final:
                break
    return Warmed(time.monotonic() - started, sum(reused) if reused else None)


def _places(index: LineIndex) -> dict[int, LinePlace]:
    """Return a line of each prefix."""
    places: dict[int, LinePlace] = {}
    for planned in index:
        if planned.node >= 0 and planned.node not in places:
            for node in index.tree.path(planned.node):
                places.setdefault(node, planned.place)
    return places


def _read(source: Source, place: LinePlace) -> Item:
    prepared = source.prepare(source.read(place))
    assert isinstance(prepared, Item)  # it was when the index was made, from the file that is still open
    return prepared
