"""Definitions of experiments: what is planned of them, and mistakes in them."""

from __future__ import annotations

import pytest

from aoq.errors import UserError
from aoq.experiments.cells import plan_grid
from aoq.experiments.definitions import load_definition, shipped_definitions
from aoq.recipes import load_recipe


@pytest.mark.parametrize("name", shipped_definitions())
def test_every_shipped_experiment_can_be_planned(name, tmp_path):
    definition = load_definition(name)
    cells = plan_grid(definition, out=tmp_path, data=tmp_path)
    assert {cell.recipe.seed for cell in cells} == set(definition.seeds)
    rows = [cell for cell in cells if cell.is_row]
    assert len(rows) == sum(len(definition.seeds_of(row)) for row in definition.rows)
    for cell in cells:
        assert load_recipe(cell.source).model.name == cell.recipe.model.name
        assert all(need in cells for need in cell.needs)
        assert all(not need.needs for need in cell.needs)
        assert sum(part.settings.epochs for part in cell.parts) == 6 or name == "scenes-table1"
        if cell.recipe.needs_lists:
            assert cell.teacher is not None
            assert cell.recipe.candidates == str(cell.teacher.lists)
            assert cell.recipe.sampling.depth_texts <= cell.teacher.recipe.mining.depth_texts


def test_rows_stay_in_their_order_wherever_their_teacher_stands(tmp_path):
    definition = load_definition("flickr8k-table3")
    cells = plan_grid(definition, out=tmp_path, seeds=[0])
    assert [cell.label for cell in cells] == [row.label for row in definition.rows]
    assert cells[0].label == "VSRN + AdapOffQuin"
    assert cells[0].needs[0].label == cells[2].label == "VSRN"


def test_the_first_seed_of_all_rows_comes_before_the_next(tmp_path):
    cells = plan_grid(load_definition("flickr8k-table1"), out=tmp_path)
    assert [cell.recipe.seed for cell in cells] == [0] * 12 + [1] * 12 + [2] * 12
    assert all(cell.label.startswith("VSRN") for cell in cells[:4])


MISTAKES = {
    "rows = 3": "rows is 3; expected a list",
    "seeds = [0]": "has no rows",
    "row = []": "there is no 'row'",
    '[[rows]]\nlabel = "a"': "row 1 has no recipe",
    '[[rows]]\nlabel = "a"\nrecipe = "vsrm-coco"': "there is no recipe 'vsrm-coco'",
    '[[rows]]\nlabel = "a"\nrecipe = "vsrn-coco"\nsettings = { epochs = 3 }': "setting 'epochs'",
    '[[rows]]\nlabel = "a"\nrecipe = "vsrn-coco"\nseed = 3': "there is no 'seed'",
    'seeds = [0, 0]\n[[rows]]\nlabel = "a"\nrecipe = "vsrn-coco"': "each once",
    'seeds = ["0"]\n[[rows]]\nlabel = "a"\nrecipe = "vsrn-coco"': "expected whole numbers",
    'name = "a/b"\n[[rows]]\nlabel = "a"\nrecipe = "vsrn-coco"': "no name of a folder",
    '[mining]\ndepth = 3\n[[rows]]\nlabel = "a"\nrecipe = "vsrn-coco"': "no setting 'depth'",
    'teacher = "b"\n[[rows]]\nlabel = "a"\nrecipe = "vsrn-coco"': "there is no recipe 'b'",
    'teacher = "a"\n[[rows]]\nlabel = "a"\nrecipe = "vsrn-coco"': "does not end with round one",
    'teacher = "vsrn-coco"\n[[rows]]\nlabel = "a"\nrecipe = "vsrn-coco+h500"\n'
    "settings = { mining.depth_texts = 500 }": "draws from lists with depth_texts 500",
    '[[rows]]\nlabel = "a"\nrecipe = "vsrn-coco"\n[[rows]]\nlabel = "a"\nrecipe = "scan-coco"': (
        "'a' and 'a' would be one run"
    ),
    '[[rows]]\nlabel = "a"\nrecipe = "vsrn-coco"\n[[rows]]\nlabel = "b"\nrecipe = "vsrn-coco"': (
        "'a' and 'b' would be one run"
    ),
    '[[rows]]\nlabel = "a"\nrecipe = "vsrn-coco"\nseeds = [3]': "expected some of the experiment",
    '[[rows]]\nlabel = "a"\nrecipe = "vsrn-coco"\n[paper.rsum]\nb = 518.6': "paper has 'b' = 518.6",
    '[[rows]]\nlabel = "a"\nrecipe = "vsrn-coco"\n[paper.rsum]\na = "518"': "paper has 'a'",
    "rows = [": "is no TOML file",
}
ENSEMBLES = {
    'label = "b"': "ensemble 1 has no members",
    'label = "a"\nmembers = ["a", "a, seed 1"]': "something else has this label",
    'label = "b"\nmembers = ["a"]': "expected the labels of two rows",
    'label = "b"\nmembers = ["a", 3]': "expected the labels of two rows",
    'label = "b"\nmembers = ["a", "c"]': "has no row 'c'",
    'label = "b"\nmembers = ["a", "a, seed 7"]': "'a' with seed 7 is never trained",
    'label = "b"\nmembers = ["a", "a, seed 1"]\nseeds = [2]': "'a' with seed 2 is never trained",
    'label = "b"\nmembers = ["a", "a, seed 1"]\nseeds = []': "expected whole numbers",
    'label = "b"\nmembers = ["a", "a, seed 1"]\nseed = 0': "there is no 'seed'",
}
CLAIMS = {
    'says = "x"': "claim 1 has no row",
    'says = "x"\nrow = 5': "row is 5; expected text or a list",
    'says = "x"\nrow = "a"\nabove = "b"': "the claim 'x' is about 'b'",
    'says = "x"\nrow = ["a", "a"]\nabove = "a"': "the claim 'x' holds 2 rows against 1",
    'says = "x"\nrow = "a"': "claim 'x' says nothing of 'a'; expected one of above",
    'says = "x"\nrow = "a"\nlike = "a"': "claim 'x' says like of 'a'",
    'says = "x"\nrow = "a"\nabove = "a"\nwithin = 5': "claim 'x' says above of 'a'",
    'says = "x"\nrow = "a"\nlike = "a"\nwithin = 0': "claim 'x' has within = 0",
}
CHOICES = {
    'label = "b"': "choice 1 has no of",
    'label = "a"\nof = ["a", "c"]': "something else has this label",
    'label = "b"\nof = ["a", "a"]': "expected the labels of two rows or more",
    'label = "b"\nof = ["a", "d"]': "has no row 'd'",
    'label = "b"\nof = ["a", "c"]\nseeds = [1]': "'c' with seed 1 is never trained",
}
MISTAKES |= {
    f'seeds = [0, 1]\n[[rows]]\nlabel = "a"\nrecipe = "vsrn-coco"\n[[rows]]\nlabel = "c"\n'
    f'recipe = "scan-coco"\nseeds = [0]\n[[choices]]\n{text}': sentence
    for text, sentence in CHOICES.items()
}
MISTAKES |= {
    f'seeds = [0, 1]\n[[rows]]\nlabel = "a"\nrecipe = "vsrn-coco"\n[[ensembles]]\n{text}': sentence
    for text, sentence in ENSEMBLES.items()
}
MISTAKES |= {
    f'[[rows]]\nlabel = "a"\nrecipe = "vsrn-coco"\n[[claims]]\n{text}': sentence
    for text, sentence in CLAIMS.items()
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_definition_with_a_mistake_is_refused_with_a_sentence(tmp_path, text):
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(UserError) as refused:
        load_definition(tmp_path / "mine.toml")
    assert MISTAKES[text] in str(refused.value)


def test_every_shipped_ensemble_is_made_of_trainings_of_its_experiment(tmp_path):
    for name in ("flickr8k-table1", "flickr8k-ensembles", "scenes-table1"):
        definition = load_definition(name)
        trained = {(c.label, c.recipe.seed) for c in plan_grid(definition, out=tmp_path)}
        for ensemble in definition.ensembles:
            for seed in ensemble.seeds:
                assert set(ensemble.with_seed(seed)) <= trained
