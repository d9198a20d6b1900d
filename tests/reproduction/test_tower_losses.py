"""Losses on frozen towers: every row trains, and the tables say which rows are not run."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from aoq.data.build import build_dataset
from aoq.errors import UserError
from aoq.evaluation.rank_archive import RankArchive
from aoq.experiments.grid import run_grid
from aoq.experiments.plan import plan_grid
from aoq.experiments.results import Experiment, ranks_key
from aoq.features.outputs import Output
from aoq.features.regions import RegionSource
from aoq.recipes import load_recipe
from aoq.storage import read_json_lines
from reproduction import TOWER_LOSSES
from reproduction.__main__ import towers_losses
from reproduction.tower_losses import (
    TOWER_LOSS_RESULTS,
    tower_loss_tables,
    tower_losses,
)
from tests.retrieval.conftest import photo_records

ROUND = {"epochs": 2, "batch_size": 8, "rise_epochs": 0.5}
SMALL = {
    "model": {"joint_width": 8, "head_width": 8},
    "round_one": ROUND,
    "round_two": ROUND | {"group_size": 4},
    "mining": {"depth_texts": 10, "depth_images": 4},
    "sampling": {"depth_texts": 10, "depth_images": 4},
}
CONTROLS = {
    "constant": {"weights": "constant"},
    "detached": {"weights": "detached"},
    "shuffled": {"weights": "shuffled"},
    "clamped": {"clamp_weights": True},
}


def small(*, image="", text=""):
    """The experiment with settings that train in a second."""
    found = tower_losses(image=image, text=text)
    settings = {
        name: found.settings.get(name, {}) | SMALL.get(name, {}) for name in found.settings | SMALL
    }
    return msgspec.structs.replace(found, settings=settings)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, towers):
    """All rows with one seed, on a few photos."""
    root = tmp_path_factory.mktemp("tower-losses")
    source = RegionSource.of_backbone(
        str(towers.clip), output=Output("pooled", precision="bfloat16")
    )
    build_dataset(photo_records(root / "photos"), root / "data", name="squares", source=source)
    definition = small(image=str(towers.clip), text=str(towers.bert))
    experiment = Experiment(definition=definition, out=root / "out", data=root / "data", seeds=(0,))
    assert run_grid(experiment, at_once=1) == {}
    return experiment


def test_every_row_trains_and_keeps_its_ranks(trained):
    lines = read_json_lines(trained.results_file)
    assert [line["row"] for line in lines] == trained.definition.row_labels
    archive = RankArchive.beside(trained.results_file)
    for line in lines:
        assert all(archive.read(*ranks_key(line, split=split)) for split in ("dev", "test"))


def test_results_do_not_say_where_the_towers_are(trained, towers):
    content = trained.results_file.read_text("utf-8")
    assert str(towers.clip) not in content
    assert str(towers.bert) not in content


def test_results_count_wherever_the_towers_are(trained):
    here, elsewhere = (
        {run.name: run.digest for run in plan_grid(definition, out=Path(), seeds=[0])}
        for definition in (trained.definition, small(image="elsewhere", text="there"))
    )
    assert here == elsewhere


def test_all_rows_have_one_teacher_a_seed_and_batches_of_512(tmp_path):
    runs = plan_grid(tower_losses(), out=tmp_path, data=tmp_path)
    assert {run.recipe.seed for run in runs} == set(range(5))
    for run in runs:
        last = run.recipe.round_two if run.teacher else run.recipe.round_one
        assert (last.batch_size, last.epochs) == (512, 12)
        assert run.teacher is None or run.teacher.label == "online"
        assert load_recipe(run.source).rounds == run.recipe.rounds
    drawing = {run.label for run in runs if run.teacher}
    assert {run.label for run in runs} - drawing == {"online", "InfoNCE", "SigLIP"}


@pytest.mark.parametrize("name", CONTROLS)
def test_a_control_differs_from_eq_5_in_its_weights_alone(name, tmp_path):
    runs = {run.label: run for run in plan_grid(tower_losses(), out=tmp_path, seeds=[0])}
    of_five, control = runs["Eq. 5"].settings, runs[f"Eq. 5, {name} weights"].settings
    changed = {key: value for key, value in control.items() if of_five.get(key) != value}
    assert changed == {f"round_two.loss.{key}": value for key, value in CONTROLS[name].items()}
    assert of_five.keys() <= control.keys()


def test_tables_say_which_rows_are_not_run(tmp_path):
    tables = tower_loss_tables(tmp_path / "none.jsonl")
    assert tables[TOWER_LOSSES].count("not run yet") == len(tower_losses().rows)
    assert "Not run yet: online (no seed of 5)" in tables[TOWER_LOSSES]
    claims = tables[f"{TOWER_LOSSES}-claims"]
    assert claims.count("open: 0 of 3 seeds") == len(claims.splitlines()) - 2 > 0


def test_a_training_without_an_image_tower_is_refused(tmp_path):
    with pytest.raises(UserError, match="--image"):
        towers_losses(data=tmp_path, out=tmp_path / "out")


def test_kept_results_are_those_of_the_rows_as_they_are_with_their_ranks():
    lines = read_json_lines(TOWER_LOSS_RESULTS)
    digests = {run.digest for run in plan_grid(tower_losses(), out=Path())}
    assert {line["digest"] for line in lines} <= digests
    assert len({line["digest"] for line in lines}) == len(lines)
    assert len({line["data"] for line in lines}) <= 1
    archive = RankArchive.beside(TOWER_LOSS_RESULTS)
    for line in lines:
        for split in ("dev", "test"):
            ranks = archive.read(*ranks_key(line, split=split))
            assert ranks.metrics.rsum == pytest.approx(line[split]["rsum"], abs=0.5)


def test_the_tables_have_every_kept_result():
    table = tower_loss_tables()[TOWER_LOSSES]
    rows = {line.split(" | ")[0].strip("| "): line for line in table.splitlines()}
    for line in read_json_lines(TOWER_LOSS_RESULTS):
        assert "not run yet" not in rows[line["row"]]
