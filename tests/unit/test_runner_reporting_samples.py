"""The samples' file, and what merging keeps."""

from __future__ import annotations

import dataclasses

import orjson
import pytest
from fakes.samples import sample

from trtb.build.errors import ConfigError
from trtb.build.probe.gpu_use import GpuUse
from trtb.runner.reporting.samples import (
    Sample,
    merge,
    read_samples,
    samples_path,
    thin,
    to_line,
    write_samples,
)

RICH = sample(
    engine_active=4.0,
    engine_blocks=10,
    gpus=(GpuUse(0, 0.5, 100, 200, 300.0), GpuUse(1)),
)


def test_they_read_back_as_they_were_written(tmp_path):
    write_samples(tmp_path, [RICH, sample(server_cpu_s=None)])
    assert read_samples(tmp_path) == [RICH, sample(server_cpu_s=None)]


def test_a_run_without_any_has_none(tmp_path):
    assert read_samples(tmp_path) == []


def test_a_torn_line_costs_only_itself(tmp_path):
    write_samples(tmp_path, [sample(), sample()])
    path = samples_path(tmp_path)
    path.write_bytes(path.read_bytes() + to_line(RICH)[:50])
    assert read_samples(tmp_path) == [sample(), sample()]


@pytest.mark.parametrize(
    "damage",
    [
        *({"gpus": "x"}, {"gpus": [{}]}, {"gpus": ["x"]}, {"gpus": None}, {"gpus": [{"index": "0"}]}),
        *({"in_flight": "4"}, {"in_flight": None}, {"session": []}, {"engine_active": True}),
    ],
)
def test_a_line_of_other_types_is_as_good_as_torn(tmp_path, damage):
    write_samples(tmp_path, [sample()])
    path = samples_path(tmp_path)
    path.write_bytes(path.read_bytes() + orjson.dumps(orjson.loads(to_line(RICH)) | damage) + b"\n")
    assert read_samples(tmp_path) == [sample()]


def test_a_folder_in_their_place_is_told(tmp_path):
    samples_path(tmp_path).mkdir()
    with pytest.raises(ConfigError, match="expected the samples of a run"):
        read_samples(tmp_path)


def test_names_of_a_later_version_are_passed_over_and_another_schema_is_not_read(tmp_path):
    path = samples_path(tmp_path)
    line = to_line(RICH).replace(b"{", b'{"more":1,')  # of the GPUs, too
    path.write_bytes(b'{"schema_version":1}\n' + line + b'{"session":1}\n[]\n')
    assert read_samples(tmp_path) == [RICH]
    path.write_bytes(b'{"schema_version":2}\n' + line)
    assert read_samples(tmp_path) == []


def test_merging_sums_what_is_work_and_weighs_what_is_a_gauge():
    first = sample(time_s=10.0, span_s=1.0, in_flight=4.0, max_in_flight=9, client_cpu_s=0.5)
    second = sample(time_s=13.0, span_s=3.0, in_flight=8.0, max_in_flight=8, client_cpu_s=0.25)
    merged = merge(first, second)
    assert (merged.time_s, merged.span_s, merged.client_cpu_s) == (13.0, 4.0, 0.75)
    assert (merged.in_flight, merged.max_in_flight) == (7.0, 9)


def test_what_one_of_two_does_not_tell_is_the_others():
    silent = sample(server_cpu_s=None, blocks_held=None, num_blocks=None, max_blocks_held=None)
    for merged in (merge(silent, RICH), merge(RICH, silent)):
        assert (merged.server_cpu_s, merged.blocks_held, merged.num_blocks) == (1.9, 500.0, 1000)
        assert merged.gpus == RICH.gpus
    assert merge(silent, silent).server_cpu_s is None


def test_every_field_is_merged():
    """A field that is added and forgotten in merge() would be missing, or take its default."""
    values = {
        field.name: index + 2
        for index, field in enumerate(dataclasses.fields(Sample))
        if field.name != "gpus"
    }
    one = Sample(**values)
    merged = merge(one, one)
    assert all(getattr(merged, name) in (value, 2 * value) for name, value in values.items())


def test_thinning_doubles_the_period_until_they_fit():
    kept, period_s = thin([sample() for _ in range(100)], 30)
    assert (len(kept), period_s) == (25, 4.0)
    assert {each.span_s for each in kept} == {4.0}


def test_sessions_stay_apart_and_coarse_samples_as_they_are():
    old = [sample(span_s=16.0) for _ in range(3)]
    new = [sample(session=2) for _ in range(8)]
    kept, _ = thin([*old, *new], 8)
    assert [(each.session, each.span_s) for each in kept] == [*[(1, 16.0)] * 3, *[(2, 2.0)] * 4]


def test_of_too_many_sessions_the_last_ones_stay():
    kept, _ = thin([sample(session=number) for number in range(50)], 10)
    assert [each.session for each in kept] == list(range(40, 50))
