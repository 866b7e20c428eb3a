"""The acceptance of a host: the whole road, from the bare machine to nothing left behind, as one verdict.

The same steps run with both backends; where an engine does not tell something, a step says so. The
evidence is written anew after each step, so that a kill leaves what was found until then.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from trtb.build.backends import choose_backend
from trtb.build.errors import ConfigError, TrtbError
from trtb.build.hardware import probe_gpus
from trtb.build.quantization import get_scheme
from trtb.runner.acceptance import accept_build, accept_requests, accept_reuse, accept_serve, accept_traces
from trtb.runner.acceptance.accept_commands import Commands
from trtb.runner.acceptance.accept_evidence import Evidence, Redactor, StepEvidence, Verdict, write_evidence
from trtb.runner.acceptance.accept_state import AcceptOptions, AcceptState
from trtb.runner.acceptance.accept_step import Step, StepRunner
from trtb.runner.errors import RunInterruptedError
from trtb.runner.run_folder import now_iso

MACHINE, BUILD, SERVER, REQUESTS = 4, 5, 6, 1  # exit codes
MIN_REQUESTS: Final = 20

Tell = Callable[[str], None]


def accept(options: AcceptOptions, tell: Tell) -> Evidence:
    """Go through all steps; returns the evidence, which is on disk, too.

    Raises:
        ConfigError: The options contradict each other; nothing was done.
    """
    backend, why = choose_backend(options.backend)
    quants = check_quants(options, backend)
    if options.num_requests < MIN_REQUESTS:
        raise ConfigError(f"num_requests: {options.num_requests}; expected at least {MIN_REQUESTS}")
    lay_out_home(options.home, options.base)
    work_dir = options.home / "cache" / "accept" / str(os.getpid())
    shutil.rmtree(work_dir, ignore_errors=True)
    work_dir.mkdir(parents=True)
    commands = Commands(options.trtb, options.home, work_dir)
    state = AcceptState(options, backend, quants, work_dir, commands, started_at=now_iso())
    evidence = collect(state, why, steps_of(state), tell)
    if evidence.verdict == "passed":
        shutil.rmtree(work_dir, ignore_errors=True)
    else:
        tell(f"logs of what was run: {work_dir}")
    return evidence


def check_quants(options: AcceptOptions, backend: str) -> tuple[str, ...]:
    """Return the quantisations to build.

    Raises:
        ConfigError: They are fewer than two, or the backend has none of that name.
    """
    if not options.quants:
        sms = [gpu.sm for gpu in probe_gpus().gpus] if backend == "tensorrt_llm" else []
        return accept_build.default_quants(backend, sms[0] if sms else None)
    if len(set(options.quants)) < 2 or len(set(options.quants)) < len(options.quants):
        raise ConfigError(
            f"quants: {','.join(options.quants)!r}; expected two different ones", "such as int8_wo,f16"
        )
    for quant in options.quants:
        get_scheme(backend, quant)
    return options.quants


def lay_out_home(home: Path, base: Path | None) -> None:
    """Make the home of the engines; checkpoints and toolchains are those of `base`, where there is one.

    An engine of a new name would become what a bare `trtb run` means: that is why they are kept apart.
    """
    home.mkdir(parents=True, exist_ok=True)
    for name in ("models", "toolchains") if base else ():
        assert base
        (base / name).mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            (home / name).symlink_to(base / name)


def steps_of(state: AcceptState) -> list[Step]:
    """Return the steps, in their order."""
    main = state.main_quant
    bind = functools.partial
    steps = [
        Step("machine", bind(accept_build.find_machine, state), MACHINE),
        Step("preflight", bind(accept_build.check_preflight, state), MACHINE, ("machine",)),
        Step("checkpoint", bind(accept_build.fetch_checkpoint, state), BUILD),
    ]
    for quant in state.quants:
        work = bind(accept_build.build_engine, state, quant)
        steps.append(Step(f"build_{quant}", work, BUILD, ("preflight", "checkpoint")))
    for quant in [*state.quants[1:], main]:  # the main one last: it stays up for what follows
        deployed, answered = f"deploy_{quant}", f"smoke_{quant}"
        serve = accept_serve
        steps += [
            Step(deployed, bind(serve.deploy, state, quant), SERVER, (f"build_{quant}",)),
            Step(answered, bind(serve.smoke, state, quant), SERVER, (deployed,)),
        ]
        if quant == main:
            steps += [
                Step("determinism", bind(serve.determinism, state), SERVER, (answered,)),
                Step("kv_reuse", bind(accept_reuse.kv_reuse, state), SERVER, (answered,)),
                Step("cancel", bind(serve.cancel, state), SERVER, (answered,)),
                Step("sweep", bind(serve.sweep, state), REQUESTS, (answered,)),
            ]
        steps.append(Step(f"shutdown_{quant}", bind(serve.shut_down, state), SERVER, (deployed,)))
    return [
        *steps,
        Step("requests", bind(accept_requests.requests, state), REQUESTS, (f"smoke_{main}",)),
        Step("reconciliation", bind(accept_requests.reconcile, state), REQUESTS, ("requests",)),
        Step("cleanup", bind(accept_traces.clean_up, state), SERVER),
    ]


def collect(state: AcceptState, why: str, steps: Sequence[Step], tell: Tell) -> Evidence:
    """Run the steps, and write the evidence after each."""
    started = time.monotonic()
    redact = Redactor({} if state.options.include_paths else known_folders(state))

    def record() -> Evidence:
        verdict = verdict_of(runner.done, len(steps))
        failed = next((step for step in runner.done if step.exit_code), None)
        exit_code = failed.exit_code if failed else 0
        made = Evidence(
            verdict=verdict,
            failed_step=failed.name if failed else None,
            exit_code=RunInterruptedError.exit_code if verdict == "interrupted" else exit_code,
            backend=state.backend,
            why=why,
            model=state.options.model,
            quants=list(state.quants),
            num_requests=state.options.num_requests,
            started_at=state.started_at,
            duration_s=round(time.monotonic() - started, 3),
            versions=dict(state.versions),
            steps=runner.done,
        )
        if not state.options.include_paths:
            made = Evidence.model_validate(redact.clean(made.model_dump()))
        write_evidence(state.options.evidence, made)
        return made

    def end(step: StepEvidence) -> None:
        reason = f": {step.reason}" if step.reason else ""
        tell(f"{step.name}: {step.result.replace('_', ' ')} after {step.duration_s:.1f} s{reason}")
        record()

    def begin(name: str) -> None:
        # SIGTERM as a Ctrl-C; anew, because a run's event loop puts the default back
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        tell(f"{name} ...")

    runner = StepRunner(on_begin=begin, on_end=end)
    with _signals_restored(), contextlib.closing(state.commands):
        runner.run(steps)
    return record()


def verdict_of(done: Sequence[StepEvidence], num_steps: int) -> Verdict:
    """Return the verdict; until all steps have ended it is an interrupted one, for a kill to leave."""
    is_bug = any(step.code == TrtbError.code for step in done)  # nothing comes after one
    if any(step.result == "interrupted" for step in done) or (len(done) < num_steps and not is_bug):
        return "interrupted"
    return "failed" if any(step.exit_code for step in done) else "passed"


def known_folders(state: AcceptState) -> dict[str, Path]:
    """Return the folders that texts may name, by what stands for them in the evidence."""
    return {
        "trtb home": state.options.home,
        "work": state.work_dir,
        "evidence": state.options.evidence.resolve(),
        "here": Path.cwd(),
        "user": Path.home(),
    }


@contextlib.contextmanager
def _signals_restored() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)  # None: a handler that is not Python's
