"""The key of a cached result: a sha256 of everything that decides an answer, and of nothing else.

A request that is equal in all of it has the same answer; where in doubt a thing is part of the key, since
that costs a hit, and the opposite would give somebody another request's answer. An option of a run that is
not named below as deciding nothing is part of it, too.

What is not known before a server runs is kept out by what is stored: an answer that the engine's room has
cut short never is (`is_lasting`), so a stored one does not depend on the size of the KV pool.
"""

from __future__ import annotations

import hashlib
from dataclasses import fields, replace
from typing import Final

import orjson

from trtb.runner import run_folder
from trtb.runner.answer import Answer
from trtb.runner.options import RunOptions
from trtb.runner.request import Request
from trtb.runner.request_digest import canonical, is_deterministic
from trtb.runner.source import Item

KEY_VERSION: Final = 2
KEY_BYTES: Final = 32

# options that decide which lines are sent, when and where to, but not what is answered
DECIDE_NOTHING: Final = frozenset(
    {
        *("input_path", "output", "limit", "overwrite", "follow", "max_line_bytes", "on_invalid"),
        *("model_aliases", "strict_params"),
        *("engine_dir", "manifest"),  # the engine's id stands for them
        *("endpoints", "launch", "device_ids"),  # whether the servers are our own stands for them
        *("concurrency", "request_timeout_s", "max_attempts", "server_wait_s", "start_timeout_s", "grace_s"),
        *("order", "queue_size", "dedup", "canary", "max_failure_rate"),
        *("default_max_tokens", "num_kv_blocks", "kv_cache_gb"),  # by what they come to, in each request
        *("kv_host_cache_gb", "kv_reuse", "kv_retention"),
        *("cache", "cache_capacity_gb", "cache_ttl_hours", "cache_sync_interval_s"),
    }
)


class KeyMaker:
    """Makes the keys of one run's requests.

    Args:
        options: The run's.
        versions: Of everything installed that has a part in an answer; default: as it is here.
    """

    def __init__(self, options: RunOptions, versions: dict[str, str] | None = None) -> None:
        self._default_max_tokens = options.default_max_tokens
        self._base = orjson.dumps(
            {
                "key_version": KEY_VERSION,
                "engine_id": options.manifest.engine_id,
                # our own server is as the options say; of others' only the engine is known
                "own_server": not options.endpoints,
                "max_seq_len": _max_seq_len(options),
                "options": {
                    option.name: getattr(options, option.name)
                    for option in fields(options)
                    if option.name not in DECIDE_NOTHING
                },
                # the chat template is rendered, and the answer read, by these
                "versions": _without_python(run_folder.versions() if versions is None else versions),
            },
            option=orjson.OPT_SORT_KEYS,
        )

    def key(self, request: Request) -> bytes | None:
        """Return a request's key; None where its answer may be another each time."""
        if not is_deterministic(request):
            return None
        sampling = request.sampling
        is_bounded = sampling.max_tokens is not None  # such a request is refused where it finds no room
        if not is_bounded:
            request = replace(request, sampling=replace(sampling, max_tokens=self._default_max_tokens))
        told = b"%d\n%b\n%d%b" % (len(self._base), self._base, is_bounded, _whole(request))
        return hashlib.sha256(told).digest()

    def is_lasting(self, item: Item, answer: Answer) -> bool:
        """Say whether an answer is the same on any server of the engine, whatever room it has."""
        wanted = item.sampling.max_tokens
        if wanted is None:
            wanted = self._default_max_tokens
        is_cut_by_room = any(prompt.max_tokens < wanted for prompt in item.prompts)
        return not is_cut_by_room or all(choice.finish_reason != "length" for choice in answer.choices)


def _whole(request: Request) -> bytes:
    return type(request).__name__.encode() + canonical(request)


def _max_seq_len(options: RunOptions) -> int:
    """Return the engine's limit, or what a KV pool that the user chose leaves of it."""
    limits = options.manifest.limits
    num_blocks = options.num_blocks_asked
    if num_blocks is None:
        return limits.max_seq_len
    return min(limits.max_seq_len, (num_blocks - 1) * limits.tokens_per_block)


def _without_python(versions: dict[str, str]) -> dict[str, str]:
    return {name: version for name, version in versions.items() if name != "python"}
