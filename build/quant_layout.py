"""Whether a checkpoint can be quantised in groups and split over ranks as asked; refused before any work.

ModelOpt sees a group size that does not fit after the whole calibration, and splits heads over ranks in
fractions without a word. Each refusal here names the nearest that can work: another group size first, then
another number of ranks, then another scheme; and what it names passes the same checks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from trtb.build.errors import ConfigError
from trtb.build.quant_schemes import SCHEMES, QuantScheme, get_row

if TYPE_CHECKING:
    from trtb.build.checkpoints.hf_checkpoint import Linear
    from trtb.build.manifest import ModelShape

MAX_TP_SIZE: Final = 64

# those packed in pairs of rows, and whose vocabulary ModelOpt pads
_AWQ = frozenset({"W4A16_AWQ", "W4A8_AWQ"})
_AWQ_VOCAB_MULTIPLE = 64


@dataclass(frozen=True, slots=True)
class _Layout:
    """One way to quantise a checkpoint and to split it over ranks."""

    scheme: QuantScheme
    group_size: int | None
    tp_size: int
    pp_size: int


@dataclass(frozen=True, slots=True)
class _Sizes:
    """What is split; a check of one part leaves the other out."""

    model: ModelShape | None
    intermediate_size: int
    linears: tuple[Linear, ...]


_Faults = Callable[[_Layout], Iterator[str]]


def check_layout(
    scheme: QuantScheme,
    model: ModelShape,
    intermediate_size: int,
    linears: Iterable[Linear],
    *,
    group_size: int | None = None,
    tp_size: int = 1,
    pp_size: int = 1,
    sm: int | None = None,
    needs_kernels: bool = True,
) -> int | None:
    """Return the group size to quantise with, or refuse a split or a scheme that cannot work.

    Args:
        scheme: What to quantise with.
        model: The checkpoint's shape.
        intermediate_size: The width of its MLP.
        linears: The matrices of a layer.
        group_size: As asked for; None takes the scheme's, or another of its that fits.
        tp_size: Ranks that share each layer.
        pp_size: Ranks that share the layers.
        sm: The GPU's compute capability, for another scheme to be named; None where no GPU is known.
        needs_kernels: False for a checkpoint alone, which may be more than today's GPU kernels can run.

    Raises:
        ConfigError: A rule is broken; the hint has the options of the nearest that breaks none.
    """
    sizes = _Sizes(model, intermediate_size, tuple(linears))

    def faults(layout: _Layout) -> Iterator[str]:
        yield from _split_faults(layout, sizes)
        yield from _group_faults(layout, needs_kernels)
        yield from _matrix_faults(layout, sizes, needs_kernels)

    return _check(
        _Layout(scheme, group_size, tp_size, pp_size),
        faults,
        schemes=_others(scheme, sm),
        tp_sizes=_divisors(model.num_heads),
        pp_sizes=_divisors(model.num_layers),
    )


def check_parallel(model: ModelShape, intermediate_size: int, tp_size: int, pp_size: int) -> None:
    """Refuse a split that a model does not allow, whatever the scheme.

    Raises:
        ConfigError: Heads, widths, vocabulary or layers cannot be divided so.
    """
    sizes = _Sizes(model, intermediate_size, ())
    unquantised = get_row("tensorrt_llm", "bf16")
    assert unquantised is not None
    _check(
        _Layout(unquantised, None, tp_size, pp_size),
        lambda layout: _split_faults(layout, sizes),
        tp_sizes=_divisors(model.num_heads),
        pp_sizes=_divisors(model.num_layers),
    )


def check_linears(
    scheme: QuantScheme,
    linears: Iterable[Linear],
    group_size: int | None,
    tp_size: int,
    *,
    model: ModelShape | None = None,
    needs_kernels: bool = True,
) -> int | None:
    """Return the group size to quantise matrices with, or refuse one that does not divide them.

    `model` tells how query, key and value are split where ranks outnumber the KV heads.

    Raises:
        ConfigError: A matrix cannot be quantised or split so.
    """
    sizes = _Sizes(model, 0, tuple(linears))

    def faults(layout: _Layout) -> Iterator[str]:
        yield from _group_faults(layout, needs_kernels)
        yield from _matrix_faults(layout, sizes, needs_kernels)

    return _check(
        _Layout(scheme, group_size, tp_size, 1),
        faults,
        schemes=_others(scheme, None),
        tp_sizes=range(1, MAX_TP_SIZE + 1) if scheme.backend == "tensorrt_llm" else (1,),
    )


def _others(scheme: QuantScheme, sm: int | None) -> list[QuantScheme]:
    """Return what may stand in for a scheme, the most alike first."""
    others = [row for row in SCHEMES if row.backend == scheme.backend and row is not scheme]
    if sm is not None:
        return sorted((row for row in others if row.sm_fault(sm) is None), key=scheme.distance)
    # where no GPU is known, one that may need a newer GPU comes last
    return sorted(others, key=lambda row: ((row.min_sm or 0) > (scheme.min_sm or 0), scheme.distance(row)))


def _check(
    asked: _Layout,
    faults: _Faults,
    *,
    schemes: Sequence[QuantScheme] = (),
    tp_sizes: Iterable[int],
    pp_sizes: Iterable[int] = (1,),
) -> int | None:
    """Return the resolved group size of a layout without faults."""

    def fitting(layout: _Layout) -> _Layout | None:
        choices = (replace(layout, group_size=size) for size in _group_choices(layout))
        return next((choice for choice in choices if next(faults(choice), None) is None), None)

    if (found := fitting(asked)) is not None:
        return found.group_size
    fault = next(faults(replace(asked, group_size=next(iter(_group_choices(asked))))))
    candidates = _candidates(asked, schemes, tp_sizes, pp_sizes)
    nearest = next(filter(None, map(fitting, candidates)), None)
    hint = _options(asked, nearest) if nearest else "this checkpoint cannot be split or quantised so"
    raise ConfigError(fault, hint)


def _candidates(
    asked: _Layout, schemes: Sequence[QuantScheme], tp_sizes: Iterable[int], pp_sizes: Iterable[int]
) -> list[_Layout]:
    """Return what to try instead, the nearest first; `schemes` are in the order to try them."""
    own_sizes = {asked.group_size, *asked.scheme.group_sizes} if asked.scheme.group_sizes else {None}

    order = {scheme.name: place for place, scheme in enumerate((asked.scheme, *schemes))}

    def distance(layout: _Layout) -> tuple[int, ...]:
        return (
            order[layout.scheme.name],
            layout.pp_size != asked.pp_size,
            layout.tp_size != asked.tp_size,
            abs(layout.pp_size - asked.pp_size),
            abs(layout.tp_size - asked.tp_size),
            layout.pp_size + layout.tp_size,  # of two as near, the one for fewer GPUs
            abs((layout.group_size or 0) - (asked.group_size or 0)),
        )

    alternatives = [
        _Layout(scheme, group_size, tp_size, pp_size)
        for scheme, tp_size, pp_size in itertools.product((asked.scheme, *schemes), tp_sizes, pp_sizes)
        for group_size in (own_sizes if scheme is asked.scheme else {None})
    ]
    return sorted(alternatives, key=distance)


def _options(asked: _Layout, nearest: _Layout) -> str:
    """Return what leads from one layout to another, as options to type."""
    changed = {
        "--quant": (asked.scheme.name, nearest.scheme.name),
        "--tp-size": (asked.tp_size, nearest.tp_size),
        "--pp-size": (asked.pp_size, nearest.pp_size),
    }
    # where none was asked for, it finds itself
    if asked.group_size is not None and nearest.scheme.group_sizes:
        changed["--group-size"] = (asked.group_size, nearest.group_size)
    options = "use " + " ".join(f"{name} {new}" for name, (old, new) in changed.items() if new != old)
    if asked.group_size is not None and not nearest.scheme.group_sizes:
        return "leave --group-size out" if options == "use " else f"{options} without --group-size"
    return options


def _group_choices(layout: _Layout) -> Iterator[int | None]:
    """Yield the group size that was asked for; where none was, the scheme's, and then its others."""
    yield layout.group_size or layout.scheme.group_size
    if layout.group_size is None:
        yield from sorted(set(layout.scheme.group_sizes) - {layout.scheme.group_size}, reverse=True)


def _group_faults(layout: _Layout, needs_kernels: bool) -> Iterator[str]:
    scheme, group_size = layout.scheme, layout.group_size
    if not scheme.group_sizes:
        if group_size is not None:
            yield f"group_size: {group_size}; {scheme.name} has no groups to choose"
    elif group_size not in scheme.group_sizes:
        yield f"group_size: {group_size}; {scheme.name} takes {_either(scheme.group_sizes)}"
    elif needs_kernels and scheme.kernel_group_sizes and group_size not in scheme.kernel_group_sizes:
        kernels = _either(scheme.kernel_group_sizes)
        yield (
            f"group_size: {group_size}; TensorRT-LLM's kernels for {scheme.name} take {kernels} "
            "(a checkpoint alone may have it: --stop-after checkpoint)"
        )


def _split_faults(layout: _Layout, sizes: _Sizes) -> Iterator[str]:
    """Yield what a model's shape does not allow of a split, the most general first."""
    model, tp_size, pp_size = sizes.model, layout.tp_size, layout.pp_size
    assert model is not None
    if layout.scheme.backend == "openvino" and (tp_size, pp_size) != (1, 1):
        yield f"tp_size {tp_size}, pp_size {pp_size}; the openvino backend does not split a model"
    if tp_size > MAX_TP_SIZE:
        yield f"tp_size: {tp_size}; expected at most {MAX_TP_SIZE}"
    divided = {
        "attention heads": model.num_heads,
        "hidden size": model.hidden_size,
        "MLP width": sizes.intermediate_size,
        # ModelOpt pads the last rank's part of the vocabulary and does not say so in the config. More is not
        # asked for: 128256 at tp_size 8 is no multiple of 64 a rank, and is what NVIDIA's figures are of
        "vocabulary": model.vocab_size,
    }
    for what, size in divided.items():
        if size % tp_size:
            yield f"tp_size: {tp_size}; expected a divisor of {size}, the {what} of the model"
    if model.num_kv_heads % tp_size and tp_size % model.num_kv_heads:
        yield (
            f"tp_size: {tp_size}; expected a divisor or a multiple of {model.num_kv_heads}, "
            "the KV heads of the model"
        )
    if model.num_layers % pp_size:
        yield f"pp_size: {pp_size}; expected a divisor of {model.num_layers}, the layers of the model"
    if layout.scheme.quant_algo in _AWQ and model.vocab_size % _AWQ_VOCAB_MULTIPLE:
        yield (
            f"{layout.scheme.name}: a vocabulary of {model.vocab_size}; expected a multiple of "
            f"{_AWQ_VOCAB_MULTIPLE}, or ModelOpt adds tokens that mean nothing"
        )


def _matrix_faults(layout: _Layout, sizes: _Sizes, needs_kernels: bool) -> Iterator[str]:
    """Yield what the sizes of the matrices do not allow, one matrix after the other."""
    scheme, tp_size, group_size = layout.scheme, layout.tp_size, layout.group_size
    multiple = scheme.kernel_multiple if needs_kernels else 1
    for linear in sizes.linears:
        name, inputs = linear.name, linear.in_features
        # ModelOpt's exporter asks it of every matrix, also of those whose inputs are not split
        if inputs % tp_size or (linear.is_row_parallel and linear.out_features % tp_size):
            sides = f"{inputs} and {linear.out_features}"
            yield f"tp_size: {tp_size}; expected a divisor of {sides}, the sides of {name}"
            continue
        if group_size is not None and (inputs // tp_size) % group_size:
            split = f" / tp_size {tp_size}" if tp_size > 1 else ""
            yield f"group_size: {group_size}; expected a divisor of {inputs}{split}, the width of {name}"
        columns = inputs // tp_size if linear.is_row_parallel else inputs
        rows = _rank_rows(linear, sizes.model, tp_size)
        if rows is None:
            continue
        if rows % 2 and scheme.quant_algo in _AWQ:
            yield f"{scheme.name}: {name} has {rows} rows a rank; expected an even number, packed in pairs"
        if rows % multiple or columns % multiple:
            yield (
                f"{scheme.name}: {name} has {rows} rows and {columns} columns a rank; expected multiples of "
                f"{multiple}, as TensorRT-LLM's kernels take"
            )


def _rank_rows(linear: Linear, model: ModelShape | None, tp_size: int) -> int | None:
    """Return a rank's rows of a matrix; None where only a model's shape would tell."""
    if linear.is_row_parallel or tp_size == 1:
        return linear.out_features
    if linear.name != "attention.qkv":
        return linear.out_features // tp_size
    if model is None:
        return None
    # each rank has at least one KV head, a copy where ranks outnumber them
    num_heads = model.num_heads // tp_size + 2 * max(1, model.num_kv_heads // tp_size)
    return num_heads * model.head_dim


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, MAX_TP_SIZE + 1) if number % size == 0]


def _either(sizes: Sequence[int]) -> str:
    return " or ".join(map(str, sizes))
