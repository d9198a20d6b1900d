"""Recipes: shipped ones, inheritance, composition, bad ones, and the paper's tables."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from aoq.cli.recipes import app
from aoq.config import LossConfig, ModelConfig, Recipe, RoundConfig, as_published
from aoq.errors import UserError
from aoq.recipes import load_recipe, save_recipe, shipped_changes, shipped_recipes
from aoq.recipes.tables import Table, paper_rows


@pytest.mark.parametrize("name", shipped_recipes())
def test_every_shipped_recipe_loads_and_survives_being_stored(name, tmp_path):
    recipe = load_recipe(name).resolved()
    save_recipe(recipe, tmp_path / "config.toml")
    assert load_recipe(tmp_path / "config.toml") == recipe
    assert recipe.round_two.loss.needs_candidates
    assert not recipe.round_one.loss.needs_candidates


def test_the_defaults_are_those_of_the_paper():
    recipe = Recipe()
    assert recipe.round_two.loss == LossConfig(
        name="adap_off_quin", margin_online=0.2, margin_offline=0.0, alpha=0.3, beta=1.5
    )
    assert (recipe.sampling.depth_texts, recipe.sampling.depth_images) == (300, 60)
    assert recipe.round_one.learning_rate == 2e-4
    assert recipe.round_one.batch_size == 128


def test_a_recipe_that_extends_another_changes_only_what_it_states(tmp_path):
    (tmp_path / "base.toml").write_text('[round_two]\nepochs = 7\nloss.name = "off_tri"\n')
    (tmp_path / "child.toml").write_text('extends = "base"\n[round_two.loss]\nalpha = 0.5\n')
    recipe = load_recipe(tmp_path / "child.toml")
    assert recipe.round_two.epochs == 7
    assert recipe.round_two.loss == LossConfig(name="off_tri", alpha=0.5)


def test_a_table_keeps_the_defaults_of_its_round(tmp_path):
    (tmp_path / "short.toml").write_text("[round_two]\nepochs = 3\n")
    assert load_recipe(tmp_path / "short.toml").round_two.loss.name == "adap_off_quin"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("epochs = 3", "no setting 'epochs'"),
        ("[model]\nwidth = 3", "no setting 'width'"),
        ("model = 3", "expected a table"),
        ("seed = 1.5", "seed is 1.5; expected int"),
        ('[round_one.loss]\nname = "best"', "expected one of: standard, online"),
        ("[round_one]\nepochs = 0", "at least 1"),
        ("[round_one]\nbatch_size = 1", "at least 2 pairs"),
        ("[round_one.loss]\nalpha = 0", "has to be positive"),
        ("[round_one.loss]\nmargin_online = nan", "at least 0"),
        ("[round_one.loss]\nmargin_offline = -1", "at least 0"),
        ("[round_one.loss]\nbeta = inf", "has to be a number"),
        ("[round_one]\nlearning_rate = inf", "has to be positive"),
        ("[model]\ncaption_dropout = 1.0", r"\[0, 1\)"),
        ("[round_one]\nwarmup_epochs = 21", "less than epochs"),
        ("seed = ", "is not a TOML file"),
        ('extends = "nothing-like-it"', "no recipe 'nothing-like-it'"),
        ('extends = "bad"', "no recipe 'bad'"),
        ("extends = 3", "extends is 3"),
        ("seed = -1", "cannot be negative"),
        ("min_word_count = 0", "min_word_count is 0; it has to be at least 1"),
        ("round_one.decay_factor = 0.1", "divided by it, so it has to be at least 1"),
        ("model.temperature = inf", "has to be a positive number"),
        ("model.caption_weight = inf", "has to be finite and at least 0"),
        ('round_one.loss.name = "off_tri"', "round one comes before them"),
        ('round_one.batches = "grouped"', "candidates in grouped batches, which come from mined"),
        ('[round_two]\nbatches = "grouped"\ngroup_size = 1', "group_size is 1; a group has at"),
        ('[round_two]\nbatches = "grouped"\nloss.weights = "shuffled"', "set batches to random"),
        (
            '[round_two]\nbatches = "grouped"\ngroup_size = 20\naccumulate = 8',
            "at most those of a batch or of a part of one, 16",
        ),
        ("sampling.depth_texts = 500", "sampling.depth_texts is 500 and mining.depth_texts 300"),
        (
            'candidates = "given"\nround_two.remine_every = 1\nsampling.depth_texts = 500',
            "sampling.depth_texts is 500 and mining.depth_texts 300",
        ),
        (
            'candidates = "given"\nround_two.remine_every = 1\nsampling.avoid_matches = true',
            "set mining.estimate_matches too",
        ),
        ("[model]\ncaption_max_words = 1", "need 2"),
        ("[round_one]\nvalidation_texts = 0", "at least 1"),
        ('[round_one]\noptimizer = "sgd"', "expected one of: adam, adamw"),
        ("[round_one]\nweight_decay = -0.1", "finite and at least 0"),
        ("[round_one]\ntower_learning_rate = 0", "tower_learning_rate is 0.0; it has to be pos"),
        ('[round_one]\nschedule = "linear"', "expected one of: step, cosine, constant"),
        ("[round_one]\nrise_epochs = 20", "less than epochs, 20"),
        ("[round_one]\nema = 1.0", "between 0 and 1"),
        ("[round_one]\nencode_at_once = 0", "at least 1"),
    ],
)
def test_a_bad_recipe_is_refused_with_a_sentence(tmp_path, text, sentence):
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(UserError, match=sentence):
        load_recipe(path)


def test_official_behaviour_spells_out_the_departures_of_the_published_program():
    recipe = as_published(Recipe())
    assert recipe.sampling.ranks == "coupled"
    assert not recipe.sampling.redraw
    assert (recipe.mining.depth_texts, recipe.mining.depth_images) == (2000, 400)
    for settings in (recipe.round_one, recipe.round_two):
        assert settings.diagonal_only
        assert settings.validate_every == 1000
        assert settings.select_by == "r1+r5"
        assert settings.validation_texts == 5000
        assert not settings.loss.redraw_online


@pytest.mark.parametrize(
    ("name", "select_by", "every"),
    [("vsrn-f30k", "r1+r5", 1000), ("bfan-f30k", "rsum", None), ("scan-coco", "rsum", None)],
)
def test_each_published_program_chooses_the_best_model_in_its_own_way(name, select_by, every):
    for recipe in (load_recipe(f"{name}+official"), load_recipe(name, behaviour="official")):
        assert recipe == as_published(load_recipe(name))
        for settings in (recipe.round_one, recipe.round_two):
            assert (settings.select_by, settings.validate_every) == (select_by, every)
            assert settings.validation_texts == 5000


def test_grouped_batches_need_lists_whatever_the_loss():
    recipe = load_recipe("bfan-f30k+grouped")
    assert not recipe.round_two.loss.needs_candidates
    assert recipe.round_two.needs_candidates
    assert recipe.mines
    assert not replace(recipe, candidates="lists.safetensors").needs_round_one
    with_eq5 = load_recipe("bfan-f30k+grouped+adap-off-quin").round_two
    assert (with_eq5.batches, with_eq5.loss.name) == ("grouped", "adap_off_quin")
    assert not load_recipe("bfan-f30k+grouped+online").needs_lists


def test_a_behaviour_changes_the_defaults_and_never_what_the_recipe_states(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('behaviour = "official"\n[sampling]\nranks = "independent"\n')
    recipe = load_recipe(path)
    assert recipe.behaviour == "official"
    assert recipe.sampling.ranks == "independent"
    assert not recipe.sampling.redraw
    assert load_recipe(path, behaviour="paper").sampling.redraw
    round_one = replace(recipe.round_one, validate_every=None)
    for each in (recipe, replace(recipe, round_one=round_one), Recipe()):
        save_recipe(each, tmp_path / "stored.toml")
        assert load_recipe(tmp_path / "stored.toml") == each


def test_a_data_set_is_found_from_any_folder():
    assert Path(Recipe(data="somewhere").resolved().data).is_absolute()
    assert Recipe().resolved() == Recipe()


def test_the_learning_rate_is_divided_after_the_set_epochs():
    settings = RoundConfig(epochs=6, decay_after=2, learning_rate=1.0, decay_factor=10.0)
    rates = [settings.learning_rate_at(step, n_steps=3) for step in range(18)]
    assert rates == [1.0] * 6 + [0.1] * 6 + [0.01] * 6


@pytest.mark.parametrize("rise_epochs", [0.0, 0.2, 0.5, 1.0, 1.7])
@pytest.mark.parametrize("schedule", ["step", "cosine", "constant"])
def test_learning_rates_are_those_of_a_plain_loop(schedule, rise_epochs):
    n_steps, epochs = 5, 3
    settings = RoundConfig(
        epochs=epochs, decay_after=2, learning_rate=0.3, schedule=schedule, rise_epochs=rise_epochs
    )
    rise, total = rise_epochs * n_steps, epochs * n_steps
    for step in range(total):
        factor = 1.0
        if schedule == "step" and step // n_steps >= 2:
            factor = 0.1
        if schedule == "cosine" and step > rise:
            factor = 0.5 + 0.5 * math.cos(math.pi * (step - rise) / (total - rise))
        if step + 1 < rise:
            factor *= (step + 1) / rise
        for initial in (None, 0.02):
            rate = settings.learning_rate_at(step, n_steps=n_steps, initial=initial)
            assert rate == pytest.approx((initial or 0.3) * factor), step
            assert 0 < rate <= (initial or 0.3)


def test_warm_up_epochs_learn_from_all_negatives():
    loss = LossConfig(name="off_quin", squared=True)
    settings = RoundConfig(epochs=3, warmup_epochs=1, loss=loss)
    warm_up = LossConfig(name="standard")  # the same for all
    assert [settings.loss_at(epoch) for epoch in range(3)] == [warm_up, loss, loss]


# Composition: base+change+change.


def test_changes_are_laid_over_the_base_in_order():
    recipe = load_recipe("vsrn-coco+h500+normal-draws")
    plain = load_recipe("vsrn-coco")
    depths = {"depth_texts": 500, "depth_images": 100}
    assert recipe == replace(
        plain,
        mining=replace(plain.mining, **depths),
        sampling=replace(plain.sampling, draws="normal", **depths),
    )
    assert load_recipe("vsrn-coco+h200+h500") == load_recipe("vsrn-coco+h500")
    assert load_recipe("vsrn-coco+adap-off-quin+alpha-0.3+beta-1.5+h300") == plain


@pytest.mark.parametrize(
    ("name", "vain"),
    [
        ("bfan-coco+scan-i2t-coco", "scan-i2t-coco"),
        ("vsrn-coco+online+off-tri", "off-tri"),
        ("vsrn-coco+bfan-equal+h200", "bfan-equal"),
        ("scan-coco+scan-i2t-coco+seed-1", None),
        ("bfan-coco+bfan-equal+online", None),
    ],
)
def test_a_change_that_changes_nothing_is_reported(name, vain, capsys):
    load_recipe(name)
    told = capsys.readouterr().err
    assert (f"{vain} changes nothing" in told) if vain else not told


def test_changes_go_with_a_file_and_into_a_file(tmp_path, monkeypatch):
    (tmp_path / "mine.toml").write_text("seed = 5\n[round_two]\nepochs = 7\n")
    (tmp_path / "deep.toml").write_text("[sampling]\ndepth_texts = 9\n")
    (tmp_path / "child.toml").write_text('extends = "mine+off-tri+deep.toml"\nseed = 6\n')
    (tmp_path / "shipped.toml").write_text('extends = "vsrn-f30k+off-tri"\n')
    child = load_recipe(tmp_path / "child.toml")
    assert (child.seed, child.round_two.epochs, child.sampling.depth_texts) == (6, 7, 9)
    assert child.round_two.loss.name == "off_tri"
    assert load_recipe(tmp_path / "shipped.toml") == load_recipe("vsrn-f30k+off-tri")
    monkeypatch.chdir(tmp_path)
    assert load_recipe("mine.toml+off-tri+deep.toml+seed-1") == replace(child, seed=1)


def test_a_plus_in_the_path_of_a_recipe_is_not_a_change(tmp_path):
    folder = tmp_path / "a+b"
    folder.mkdir()
    (folder / "mine+1.toml").write_text("seed = 5\n")
    path = folder / "mine+1.toml"
    assert load_recipe(path).seed == 5
    assert load_recipe(f"{path}+off-tri").round_two.loss.name == "off_tri"


def test_a_recipe_of_the_name_of_a_shipped_one_may_extend_it(tmp_path):
    (tmp_path / "vsrn-coco.toml").write_text('extends = "vsrn-coco+online"\nseed = 3\n')
    assert load_recipe(tmp_path / "vsrn-coco.toml") == replace(
        load_recipe("vsrn-coco+online"), seed=3
    )


def test_two_files_that_extend_each_other_are_refused(tmp_path):
    (tmp_path / "a.toml").write_text(f'extends = "../{tmp_path.name}/b.toml+off-tri"\n')
    (tmp_path / "b.toml").write_text('extends = "a"\n')
    with pytest.raises(UserError, match="extends itself"):
        load_recipe(tmp_path / "a.toml")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("vsrn-moon+off-tri", "no recipe 'vsrn-moon'.* one of: bfan-coco, .*vsrn-coco"),
        ("vsrn-coco+off-quad", "no change 'off-quad'.* one of: adap-off-quin, .*off-quin"),
        ("vsrn-coco+", "no change ''"),
        ("+off-tri", "no recipe ''"),
        ("off-tri", "no recipe 'off-tri'"),
        ("vsrn-coco+scan-coco", "no change 'scan-coco'"),
        ("missing.toml+off-tri", "missing.toml does not exist"),
        ("vsrn-coco+missing.toml", "no change 'missing.toml'"),
    ],
)
def test_an_unknown_part_of_a_name_is_answered_with_the_known_ones(name, sentence):
    with pytest.raises(UserError, match=sentence):
        load_recipe(name)


def test_a_recipe_that_extends_another_is_not_a_change(tmp_path):
    (tmp_path / "mine.toml").write_text('extends = "vsrn-coco"\n')
    with pytest.raises(UserError, match="so it is not a change"):
        load_recipe(f"vsrn-f30k+{tmp_path / 'mine.toml'}")


def test_the_official_change_decides_what_settings_start_from():
    recipe, plain = load_recipe("vsrn-coco+official"), load_recipe("vsrn-coco")
    assert recipe == as_published(plain)
    deep = load_recipe("vsrn-coco+official+h500").mining
    assert (deep.depth_texts, deep.depth_images) == (500, 100)


@pytest.mark.parametrize("change", shipped_changes())
def test_every_change_changes_what_the_paper_leaves_at_another_value(change, tmp_path):
    """Over a base in which nothing is as in the paper, so that its final settings count too."""
    name = "off_tri" if change == "remine" else "online"  # only a loss that draws can mine anew
    other = {"name": name, "alpha": 9.0, "beta": 9.0}
    depths = {"depth_texts": 9, "depth_images": 9}
    base = replace(
        Recipe(
            model=ModelConfig(name="bfan"),
            seed=9,
            rounds="one" if change == "two-rounds" else "both",
        ),
        mining=replace(Recipe().mining, **depths),
        sampling=replace(Recipe().sampling, **depths),
        round_two=RoundConfig(loss=LossConfig(**other)),
    )
    save_recipe(base, tmp_path / "base.toml")
    assert load_recipe(f"{tmp_path / 'base.toml'}+{change}") != base


@pytest.mark.parametrize("descriptions", [shipped_recipes(), shipped_changes()])
def test_every_shipped_file_says_in_one_line_what_it_is(descriptions):
    assert descriptions
    for line in descriptions.values():
        assert line[0].isupper()
        assert line.endswith(".")
        assert "\n" not in line
        assert len(line) < 80


# Schedules, as the paper and the models' own papers have them.


@pytest.mark.parametrize(
    ("name", "round_one", "round_two"),
    [
        ("vsrn-coco", (2e-4, 15, 30), (2e-4, 10, 20)),
        ("vsrn-f30k", (2e-4, 10, 20), (2e-4, 10, 20)),
        ("scan-coco", (5e-4, 10, 20), (5e-4, 10, 15)),
        ("scan-f30k", (2e-4, 15, 30), (5e-4, 10, 15)),
        ("bfan-coco", (5e-4, 15, 20), (5e-4, 10, 15)),
        ("bfan-f30k", (2e-4, 15, 15), (5e-4, 10, 15)),
    ],
)
def test_the_schedules_are_those_of_the_paper(name, round_one, round_two):
    recipe = load_recipe(name)
    for settings, expected in ((recipe.round_one, round_one), (recipe.round_two, round_two)):
        found = (settings.learning_rate, settings.decay_after, settings.epochs)
        assert found == expected
        assert (settings.batch_size, settings.decay_factor) == (128, 10.0)
    assert recipe.model.joint_width == (2048 if name.startswith("vsrn") else 1024)


# The paper's tables.


def test_the_tables_have_as_many_rows_as_in_the_paper():
    counts = {table: len(paper_rows(table)) for table in get_args(Table)}
    assert counts == {"1": 18, "2": 6, "3": 11, "4": 1, "5": 5, "6": 4, "text": 2}
    assert len(paper_rows()) == sum(counts.values())


@pytest.mark.parametrize("row", paper_rows(), ids=lambda row: f"{row.table}: {row.label}")
def test_the_models_of_a_row_differ_in_what_makes_them_an_ensemble_only(row):
    one, *others = (load_recipe(name) for name in row.recipes)
    assert len(others) == (0 if row.table == "6" else 1)
    for other in others:
        assert other != one
        assert replace(other, seed=0, model=one.model) == one
        assert (other.seed != one.seed) == (one.model.name == "vsrn")


def test_rows_are_what_they_are_called():
    found = {(row.table, row.label): load_recipe(row.recipes[0]) for row in paper_rows()}
    assert found["1", "SCAN"].rounds == "one"
    assert found["1", "BFAN + OffTri"].round_two.loss == LossConfig(name="off_tri")
    assert found["1", "VSRN + OffQuin"].round_two.loss == LossConfig(name="off_quin")
    assert found["2", "VSRN + AdapOffQuin"] == load_recipe("vsrn-f30k")
    assert found["3", "VSRN (Fine-tune)"].round_two.start_from == "round_one"
    assert found["3", "BFAN (w/o OfflineAdap)"].round_two.loss.adapt_to == "positive"
    assert found["3", "VSRN (h = 1000)"].sampling.depth_images == 200
    assert found["4", "VSRN"].round_one.batch_size == 192
    assert found["4", "VSRN"].rounds == "one"
    tuned = found["5", "VSRN (beta = 2.0, alpha = 0.3)"].round_two.loss
    assert (tuned.beta, tuned.alpha) == (2.0, 0.3)
    squared = found["text", "VSRN (squared)"].round_two.loss
    assert squared == LossConfig(name="off_quin", squared=True)
    assert found["text", "VSRN (normal distribution)"].sampling.draws == "normal"


@pytest.mark.parametrize(
    ("data", "t2i", "i2t"),
    [
        ("coco", ("logsumexp", None), ("mean", None)),  # t-i LSE + i-t AVG; none: as published, 6
        ("f30k", ("mean", None), ("logsumexp", 5.0)),  # t-i AVG + i-t LSE
    ],
)
def test_scan_aggregates_as_the_halves_of_its_published_ensembles(data, t2i, i2t):
    names = (f"scan-{data}", f"scan-{data}+scan-i2t-{data}")
    halves = [load_recipe(name).model for name in names]
    assert [half.direction for half in halves] == ["t2i", "i2t"]
    assert [(half.aggregate, half.aggregate_temperature) for half in halves] == [t2i, i2t]


def test_an_unknown_table_is_answered_with_the_known_ones():
    with pytest.raises(UserError, match=r"no table '7'.* 1, 2, 3, 4, 5, 6, text"):
        paper_rows("7")


def test_the_documentation_lists_the_rows_as_they_are():
    text = (Path(__file__).parents[1] / "docs" / "recipes.md").read_text(encoding="utf-8")
    lines = [
        f"| {row.table} | {row.label} | {', '.join(f'`{name}`' for name in row.recipes)} |"
        for row in paper_rows()
    ]
    assert "\n".join(lines) in text, "docs/recipes.md should have:\n" + "\n".join(lines)
    changes = {f"+{name}": what for name, what in shipped_changes().items()}
    for name, what in (shipped_recipes() | changes).items():
        assert f"| `{name}` | {what} |" in text


# The command.


def aoq(*arguments):
    """The command in this process."""
    app(arguments, exit_on_error=False, print_error=False, result_action="return_value")


def test_the_command_lists_recipes_changes_and_tables(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    aoq("recipes")
    listed = capsys.readouterr().out
    for name, line in shipped_recipes().items():
        assert f" {name} " in listed
        assert line in listed
    for name, line in shipped_changes().items():
        assert f" +{name} " in listed
        assert line in listed
    aoq("recipes", "table", "3")
    table = capsys.readouterr().out
    for row in paper_rows("3"):
        assert row.label in table
        assert all(name in table for name in row.recipes)


def test_the_command_shows_a_recipe_as_a_recipe(capsys, tmp_path):
    aoq("recipes", "show", "bfan-f30k+only-offline")
    (tmp_path / "shown.toml").write_text(capsys.readouterr().out)
    assert load_recipe(tmp_path / "shown.toml") == load_recipe("bfan-f30k+only-offline")


@pytest.mark.parametrize("command", ["run", "train"])
def test_the_help_says_where_recipes_are_listed(command, capsys):
    aoq(command, "--help")
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "aoq recipes" in text
    assert "vsrn-f30k+off-tri" in text


def test_listing_recipes_does_not_import_torch():
    code = "import sys, aoq.cli.recipes, aoq.recipes.tables as t; t.paper_rows();"
    done = subprocess.run([sys.executable, "-c", f"{code} sys.exit('torch' in sys.modules)"])
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("name", "meant"), [("vsrn-flikr8k", "vsrn-flickr8k"), ("vsrn-coco+of-tri", "off-tri")]
)
def test_a_misspelt_name_is_answered_with_the_one_that_was_meant(name, meant):
    with pytest.raises(UserError, match=rf"; did you mean {meant}\? Else give a \.toml file"):
        load_recipe(name)
