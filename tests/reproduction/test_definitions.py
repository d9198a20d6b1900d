"""The paper's experiments can be planned, and what the paper says fits them."""

from __future__ import annotations

import pytest

from aoq.errors import UserError
from aoq.experiments.definition import load_definition
from aoq.experiments.plan import plan_grid
from aoq.recipes import load_recipe
from reproduction import EXPERIMENTS, ROOT, TOWER_LOSSES, claims, definition_file
from reproduction.claims import load_paper_table


def load(name):
    return load_definition(definition_file(name))


def test_every_definition_is_an_experiment():
    files = (ROOT / "reproduction" / "definitions").glob("*.toml")
    assert sorted(file.stem for file in files) == sorted([*EXPERIMENTS, TOWER_LOSSES])


@pytest.mark.parametrize("name", [*map(definition_file, EXPERIMENTS), "scenes-table1"])
def test_every_shipped_experiment_can_be_planned(name, tmp_path):
    definition = load_definition(name)
    runs = plan_grid(definition, out=tmp_path, data=tmp_path)
    assert {run.recipe.seed for run in runs} == set(definition.seeds)
    rows = [run for run in runs if run.is_row]
    assert len(rows) == sum(len(row.seeds or definition.seeds) for row in definition.rows)
    for run in runs:
        assert load_recipe(run.source).model.name == run.recipe.model.name
        assert all(need in runs for need in run.needs)
        assert all(not need.needs for need in run.needs)
        assert sum(round_.settings.epochs for round_ in run.rounds) == 6 or name == "scenes-table1"
        if run.recipe.needs_lists:
            assert run.teacher is not None
            assert run.recipe.candidates == str(run.teacher.lists)
            assert run.recipe.sampling.depth_texts <= run.teacher.recipe.mining.depth_texts


def test_rows_stay_in_their_order_wherever_their_teacher_stands(tmp_path):
    definition = load("table3")
    runs = plan_grid(definition, out=tmp_path, seeds=[0])
    assert [run.label for run in runs] == [row.label for row in definition.rows]
    assert runs[0].label == "VSRN + AdapOffQuin"
    assert runs[0].needs[0].label == runs[2].label == "VSRN"


def test_the_first_seed_of_all_rows_comes_before_the_next(tmp_path):
    runs = plan_grid(load("table1"), out=tmp_path)
    assert [run.recipe.seed for run in runs] == [0] * 12 + [1] * 12 + [2] * 12
    assert all(run.label.startswith("VSRN") for run in runs[:4])


def test_every_ensemble_is_made_of_trainings_of_its_experiment(tmp_path):
    for name in ("table1", "ensembles"):
        definition = load(name)
        trained = {(c.label, c.recipe.seed) for c in plan_grid(definition, out=tmp_path)}
        for ensemble in definition.ensembles:
            for seed in ensemble.seeds:
                assert set(ensemble.with_seed(seed)) <= trained


MISTAKES = {
    'says = "x"': "required field `row` - at `$.claims[0]`",
    'says = "x"\nrow = 5': "at `$.claims[0].row`",
    'says = "x"\nrow = "a"\nabove = "b"': "unknown row 'b'",
    'says = "x"\nrow = ["a", "a"]\nabove = "a"': "compares 2 rows with 1",
    'says = "x"\nrow = "a"': "needs one of above",
    'says = "x"\nrow = "a"\nlike = "a"': "needs one of above",
    'says = "x"\nrow = "a"\nabove = "a"\nwithin = 5': "needs one of above",
    'says = "x"\nrow = "a"\nlike = "a"\nwithin = 0': "within",
}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_what_the_paper_says_is_about_rows_of_the_experiment(name):
    table = load_paper_table(name, load(name))
    assert table.rsum or table.claims


@pytest.mark.parametrize("text", MISTAKES)
def test_a_claim_with_a_mistake_is_rejected(tmp_path, monkeypatch, text):
    (tmp_path / "definition.toml").write_text('[[rows]]\nlabel = "a"\nrecipe = "vsrn-coco"\n')
    folder = tmp_path / "reproduction" / "claims"
    folder.mkdir(parents=True)
    (folder / "made.toml").write_text(f"[[claims]]\n{text}\n")
    monkeypatch.setattr(claims, "ROOT", tmp_path)
    with pytest.raises(UserError) as refused:
        load_paper_table("made", load_definition(tmp_path / "definition.toml"))
    assert MISTAKES[text] in str(refused.value)
