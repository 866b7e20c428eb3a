"""Run benchmarks, print what they found beside what the design asks for, and write it as JSON.

A missed target is told and does not fail: machines differ several-fold, and only ratios count. All but
`validate` and `page` need an engine, which `make demo` builds; TRTB_HOME names the folder that it is in.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import orjson

from trtb.build import files
from trtb.build.errors import EngineNotFoundError, TrtbError
from trtb.build.store import EngineStore, StoredEngine
from trtb.tools.bench import cache, client, engine_ceiling, ledger, page, peers, quantization, sweep, validate
from trtb.tools.bench.targets import Outcome, Target, describe_machine

NEED_ENGINE = {
    "client": client.measure,
    "ledger": ledger.measure,
    "engine_ceiling": engine_ceiling.measure,
    "cache": cache.measure,
    "quantization": quantization.measure,
    "sweep": sweep.measure,
}
NAMES = ("validate", "page", *NEED_ENGINE, "peers")
# left out: what may have engines to build, and what needs another tool (sweep: its toolchain)
BY_DEFAULT = tuple(name for name in NAMES if name not in ("quantization", "sweep", "peers"))


def main(arguments: list[str] | None = None) -> int:
    """Run what is named, or everything."""
    parser = argparse.ArgumentParser("python -m trtb.tools.bench", description=__doc__)
    names = f"{', '.join(NAMES)}; default: all but quantization, sweep and peers"
    parser.add_argument("name", nargs="*", metavar="NAME", help=names)
    parser.add_argument("--quick", action="store_true", help="fewer lines and rounds: minutes, not an hour")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument("--engine", help="name, name@version or engine_id; default: the default engine")
    parser.add_argument("--vllm", type=Path, metavar="COMMAND", help="of peers: an installed vllm command")
    parser.add_argument(
        "--vllm-model", type=Path, metavar="FOLDER", help="of peers: the checkpoint, as safetensors"
    )
    parser.add_argument(
        "--vllm-dtype", default="auto", metavar="TYPE", help="of peers: auto, bfloat16, float32"
    )
    options = parser.parse_args(arguments)
    if unknown := set(options.name) - set(NAMES):
        parser.error(f"NAME: {', '.join(sorted(unknown))}; expected {', '.join(NAMES)}")
    if "peers" in options.name and not (options.vllm and options.vllm_model):
        parser.error("peers: no vLLM; expected --vllm COMMAND and --vllm-model FOLDER")
    machine = describe_machine()
    flags = " ".join(machine["flags"]) or "none of those that matter"
    print(f"{machine['cpu']} ({machine['family_model']}), {machine['num_cores']} cores; {flags}")
    found: list[Outcome] = []
    try:
        for name in options.name or BY_DEFAULT:
            found.append(_measure(name, options))
            show(found[-1])
    except TrtbError as exc:
        print(f"error: {exc.message}\nhint: {exc.hint}", file=sys.stderr)
        return exc.exit_code
    finally:
        if options.json and found:
            document = {"machine": machine, "benchmarks": {each.name: each.to_json() for each in found}}
            files.write_atomic(options.json, orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")
    return 0


def show(outcome: Outcome) -> None:
    """Print the targets as a table, and the figures behind them."""
    print(f"\n{outcome.name:<32} {'hold':>9} {'reach':>9} {'measured':>9}  verdict")
    for target in outcome.targets:
        sign = "<" if target.is_bound else ">"
        marks = "".join(f" {f'{sign} {mark:g}':>9}" for mark in (target.hold, target.reach))
        measured = f"{target.measured:.3g} {target.unit}".strip()
        print(f"  {target.what:<30}{marks} {measured:>9}  {target.verdict}")
    for key, value in outcome.figures.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            _show_rows(key, value)
        else:
            print(f"  {key:<30} {_shown(value)}")


def _show_rows(name: str, rows: list[dict[str, object]]) -> None:
    cells = [list(rows[0]), *([_shown(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    print(f"  {name}")
    for row in cells:
        print("    " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(_shown(each) for each in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _measure(name: str, options: argparse.Namespace) -> Outcome:
    if name == "validate":
        figures = validate.measure(options.quick)
        names = ("ratio", "hold", "reach", "name")
        ratio, hold, reach, _ = (figures.pop(key) for key in names)
        return Outcome(name, [Target("lines/s / bare orjson", ratio, hold, reach)], figures)
    if name == "page":
        return page.measure(options.quick)
    engine = _find_engine(options.engine)
    if name == "peers":
        peer = peers.Peer(options.vllm.absolute(), options.vllm_model.absolute(), options.vllm_dtype)
        return peers.measure(options.quick, engine, peer)
    return NEED_ENGINE[name](options.quick, engine)


def _find_engine(reference: str | None) -> StoredEngine:
    try:
        return EngineStore(files.trtb_home()).resolve(reference)
    except EngineNotFoundError as exc:
        raise EngineNotFoundError(
            f"{exc.message}; this benchmark needs an engine",
            "build one with `make demo`, and set TRTB_HOME to the folder that it was built in",
        ) from exc


if __name__ == "__main__":
    sys.exit(main())
