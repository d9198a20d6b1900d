"""What an experiment can decide is known before it trains."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aoq.evaluation.power import DEVIATION, Design
from aoq.experiments.definition import load_definition
from aoq.experiments.forecast import forecasts
from aoq.experiments.results import Experiment
from aoq.storage import append_json_line
from tests.commands import aoq
from tests.experiments.cases import RESULT

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
def experiment(tmp_path):
    (tmp_path / "mine.toml").write_text(ROWS)
    return Experiment(definition=load_definition(tmp_path / "mine.toml"), out=tmp_path)


def test_rows_of_a_model_are_compared_with_the_first(experiment):
    (found,) = forecasts(experiment)
    assert found.first == "VSE"
    assert found.design == Design(rows=3, deviation=DEVIATION, claims=2)
    assert found.seeds == 3
    assert found.design.power(4.0, seeds=found.needed) >= 0.9
    assert found.design.power(4.0, seeds=found.needed - 1) < 0.9
    assert found.design.power(found.smallest, seeds=3) == pytest.approx(0.9, abs=0.002)
    assert "assumed" in found.sentence


def test_finished_trainings_tell_the_deviation(experiment):
    rsums = {"VSE": (10, 20, 30), "VSE, InfoNCE": (9, 21, 33)}
    for run in experiment.plan(experiment.read()):
        if run.label in rsums:
            figures = RESULT | {"rsum": float(rsums[run.label][run.recipe.seed])}
            line = {"experiment": "mine", "row": run.label, "seed": run.recipe.seed}
            line |= {"digest": run.digest, "data": "a hash", "seconds": 1.0}
            append_json_line(experiment.results_file, line | {"dev": figures, "test": figures})
    (found,) = forecasts(experiment)
    assert found.design.deviation == pytest.approx(2**0.5)
    assert found.source == "measured, 2 degrees of freedom"


def test_a_definition_may_state_the_deviation(experiment, tmp_path):
    (tmp_path / "mine.toml").write_text(ROWS.replace("power = 0.9", "deviation = 1.5"))
    (found,) = forecasts(replace(experiment, definition=load_definition(tmp_path / "mine.toml")))
    assert (found.design.deviation, found.power) == (1.5, 0.8)


def test_the_plan_of_an_experiment_is_printed(tmp_path):
    (tmp_path / "mine.toml").write_text(ROWS)
    done = aoq("experiment", tmp_path / "mine.toml", "--plan")
    assert done.returncode == 0, done.stderr
    assert "to find 4" in done.stdout
    assert "assumed from Flickr8k" in " ".join(done.stdout.split())
    assert "seeds" in done.stdout
    nothing = aoq("experiment", tmp_path / "mine.toml", "--plan", "--rows", "BFAN")
    assert nothing.returncode == 2
    assert "nothing to compare" in nothing.stderr
