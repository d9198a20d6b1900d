"""What an experiment can decide is known before it trains."""

from __future__ import annotations

import pytest

from aoq.evaluation.power import DEVIATION, Design
from aoq.experiments.comparisons import Comparisons
from aoq.experiments.definition import load_definition
from aoq.experiments.forecast import forecasts
from aoq.experiments.plan import plan_grid
from tests.commands import aoq
from tests.experiments.test_comparisons import row

ROWS = """
name = "mine"
seeds = [0, 1, 2]
difference = 4
power = 0.9

[[rows]]
label = "VSE"
recipe = "vse-flickr8k+online"

[[rows]]
label = "VSE, InfoNCE"
recipe = "vse-flickr8k+infonce"

[[rows]]
label = "VSE, SigLIP"
recipe = "vse-flickr8k+siglip"

[[rows]]
label = "BFAN"
recipe = "bfan-flickr8k+online"
"""


@pytest.fixture
def definition(tmp_path):
    (tmp_path / "mine.toml").write_text(ROWS)
    return load_definition(tmp_path / "mine.toml")


def test_rows_of_a_model_are_compared_with_the_first(definition, tmp_path):
    (found,) = forecasts(definition, plan_grid(definition, out=tmp_path))
    assert found.first == "VSE"
    assert found.design == Design(rows=3, deviation=DEVIATION, claims=2)
    assert found.seeds == 3
    assert found.design.power(4.0, seeds=found.needed) >= 0.9
    assert found.design.power(4.0, seeds=found.needed - 1) < 0.9
    assert found.design.power(found.smallest, seeds=3) == pytest.approx(0.9, abs=0.002)
    assert "assumed" in found.sentence


def test_finished_trainings_tell_the_deviation(definition, tmp_path):
    runs = plan_grid(definition, out=tmp_path)
    group = runs[0].group
    done = Comparisons(
        [
            row("VSE", [10, 20, 30], [10, 20, 30], group=group),
            row("VSE, InfoNCE", [9, 21, 33], [9, 21, 33], group=group),
        ]
    )
    (found,) = forecasts(definition, runs, done)
    assert found.design.deviation == pytest.approx(2**0.5)
    assert found.source == "measured, 2 degrees of freedom"


def test_a_definition_may_state_the_deviation(tmp_path):
    (tmp_path / "mine.toml").write_text(ROWS.replace("power = 0.9", "deviation = 1.5"))
    definition = load_definition(tmp_path / "mine.toml")
    (found,) = forecasts(definition, plan_grid(definition, out=tmp_path))
    assert (found.design.deviation, found.power) == (1.5, 0.8)


def test_the_plan_of_an_experiment_is_printed(tmp_path):
    (tmp_path / "mine.toml").write_text(ROWS)
    done = aoq("experiment", tmp_path / "mine.toml", "--plan")
    assert done.returncode == 0, done.stderr
    assert "to find 4" in done.stdout
    assert "assumed from Flickr8k" in done.stdout
    assert "seeds" in done.stdout
    nothing = aoq("experiment", tmp_path / "mine.toml", "--plan", "--rows", "BFAN")
    assert nothing.returncode == 2
    assert "nothing to compare" in nothing.stderr
