"""The results of models for small sets, and their tables."""

from pathlib import Path

import pytest

from aoq.evaluation.rank_archive import RankArchive
from aoq.experiments.definition import load_definition
from aoq.experiments.plan import plan_grid
from aoq.experiments.results import Results, ranks_key
from aoq.storage import read_json_lines
from reproduction.small_sets import SMALL_SET_RESULTS, SMALL_SETS, small_set_table


def planned(name):
    return plan_grid(load_definition(name), out=Path())


def test_kept_results_are_of_rows_as_they_are_of_one_data_set_and_one_machine():
    lines = read_json_lines(SMALL_SET_RESULTS)
    digests = {run.digest for name in SMALL_SETS for run in planned(name)}
    assert {line["digest"] for line in lines} <= digests
    assert len({line["digest"] for line in lines}) == len(lines)
    assert len({line["data"] for line in lines}) == 1
    assert len({line["machine"]["processor"] for line in lines}) == 1
    archive = RankArchive.beside(SMALL_SET_RESULTS)
    for line in lines:
        ranks = archive.read(*ranks_key(line, split="test"))
        assert ranks.metrics.rsum == pytest.approx(line["test"]["rsum"], abs=0.01)


@pytest.mark.parametrize("name", SMALL_SETS)
def test_a_table_has_every_kept_result(name):
    lines = Results.read(SMALL_SET_RESULTS, load_definition(name)).lines
    table = small_set_table(name).markdown()
    shown = {line.split(" | ")[0].strip("| "): line for line in table.splitlines()[2:]}
    assert set(shown) == {label for label, _ in lines}
    for label, seed in lines:
        if len([key for key in lines if key[0] == label]) == 1:
            for split in ("dev", "test"):
                assert f"{lines[label, seed][split]['rsum']:.1f}" in shown[label]
