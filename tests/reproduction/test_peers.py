"""The comparison with sentence-transformers: both libraries start alike and are judged alike."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from aoq.config import LossConfig
from aoq.data.build import build_dataset
from aoq.evaluation.protocols import evaluate
from aoq.features.outputs import Output
from aoq.features.regions import RegionSource
from aoq.losses import BatchScores, compute_loss
from aoq.scoring.encoded import encode_dataset
from aoq.storage import append_json_line, read_json_lines
from aoq.training.inputs import open_training_data
from reproduction.peers import PEER_RESULTS
from reproduction.peers.rows import ROWS, SETUPS, Row, SetupName, find_row
from reproduction.peers.start import Start
from reproduction.peers.tables import peer_tables
from tests.retrieval.conftest import photo_records
from tests.towers import TinyModels

modules = pytest.importorskip(
    "reproduction.peers.modules", reason="sentence-transformers is missing"
)
ONLINE, MNRL = "aoq: online", "sentence-transformers: MNRL"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, towers: TinyModels) -> Path:
    root = tmp_path_factory.mktemp("peers")
    output = Output("pooled", precision="bfloat16")
    source = RegionSource.of_backbone(str(towers.clip), output=output)
    build_dataset(photo_records(root / "photos"), root / "data", name="squares", source=source)
    return root / "data"


def start_of(row: Row, data: Path, towers: TinyModels, *, text: Path | None = None) -> Start:
    clip = str(towers.clip)
    recipe = row.recipe(data=str(data), image=clip, text=str(text or clip), seed=0)
    opened = open_training_data(recipe)
    return Start(opened.settle(recipe.resolved()), opened)


def test_both_libraries_start_from_the_same_vectors_and_are_judged_alike(data, towers):
    start = start_of(find_row("heads", MNRL), data, towers)
    ours, theirs = start.build_model(), modules.build(start)
    for split in start.splits:
        vectors = encode_dataset(ours, split).images.vectors
        names = list(split.dataset.image_ids)
        found = theirs.encode_document(names, convert_to_tensor=True, normalize_embeddings=True)
        assert torch.allclose(vectors, found, atol=1e-5)
        assert modules.judge(theirs, split) == evaluate(ours, split)


def test_the_same_blocks_of_a_text_tower_learn_and_drop_in_both_libraries(data, towers):
    start = start_of(find_row("text", MNRL), data, towers, text=towers.bert)
    model = replace(start.recipe.model, text_blocks=1, text_pooling="mean")
    recipe = replace(start.recipe, model=model)
    start = Start(recipe, open_training_data(recipe))
    ours, theirs = start.build_model(), modules.build(start)
    learning = [
        sorted(part.shape for part in model.parameters() if part.requires_grad)
        for model in (ours, theirs)
    ]
    assert learning[0] == learning[1]
    blocks = theirs[0].sub_modules["query"][0].auto_model.encoder.layer
    assert 0 < start.recipe.model.text_blocks < len(blocks)
    for number, block in enumerate(blocks):
        is_learning = number >= len(blocks) - start.recipe.model.text_blocks
        dropouts = [part.p for part in block.modules() if isinstance(part, torch.nn.Dropout)]
        assert dropouts
        assert all((p > 0) == is_learning for p in dropouts)


def test_photos_and_captions_change_places_for_mining(data, towers):
    model = modules.build(start_of(find_row("heads", MNRL), data, towers))
    start = start_of(find_row("heads", MNRL), data, towers)
    captions = list(start.data.dev.dataset.captions)
    assert np.array_equal(
        modules.swapped(model).encode_document(captions), model.encode_query(captions)
    )


def test_its_symmetric_loss_is_infonce_divided_by_the_sides_of_the_batch():
    """Ours is a sum over both directions; theirs the mean over the directions and the batch."""
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    torch.manual_seed(0)
    texts, images = torch.nn.functional.normalize(torch.randn(2, 6, 8), dim=-1)
    loss = MultipleNegativesRankingLoss(
        torch.nn.Identity(),
        directions=("query_to_doc", "doc_to_query"),
        partition_mode="per_direction",
    )
    theirs = loss.compute_loss_from_embeddings([texts, images], labels=None)
    config = LossConfig(name="infonce", temperature=1 / 20)
    ours = compute_loss(BatchScores(images @ texts.T), config).total
    assert float(ours) == pytest.approx(12 * float(theirs), rel=1e-5)


@pytest.mark.parametrize("setup", SETUPS)
def test_a_row_has_one_name_and_its_teacher_comes_first(setup: SetupName):
    rows = [row for row in ROWS if row.setup == setup]
    labels = [row.label for row in rows]
    assert len(set(labels)) == len({row.name for row in rows}) == len(rows)
    for row in rows:
        assert not row.teacher or labels.index(row.teacher) < labels.index(row.label)


def test_recorded_results_are_of_rows_as_they_are_and_of_one_data_set():
    lines = read_json_lines(PEER_RESULTS)
    assert all(
        find_row(line["setup"], line["row"]).settings() == line["settings"] for line in lines
    )
    assert len({line["data"] for line in lines}) <= 1


def line_of(row: Row, *, seed: int, rsum: float, cpu: float) -> dict[str, Any]:
    figures = {"rsum": rsum, "i2t_r1": 50.0, "t2i_r1": 40.0}
    return {
        "setup": row.setup,
        "row": row.label,
        "seed": seed,
        "settings": row.settings(),
        "dev": figures,
        "test": figures,
        "stages": {"training": {"wall": 2 * cpu, "cpu": cpu}},
    }


def test_a_row_has_the_mean_over_seeds_and_the_time_of_its_teacher(tmp_path):
    teacher, student = (find_row("heads", label) for label in (ONLINE, "aoq: AdapOffQuin"))
    for seed in (0, 1):
        for row, cpu in ((teacher, 10.0), (student, 30.0)):
            line = line_of(row, seed=seed, rsum=400.0 + 10 * seed, cpu=cpu)
            append_json_line(tmp_path / "lines.jsonl", line)
    table = peer_tables(tmp_path / "lines.jsonl")["peers-heads"]
    assert "| aoq: AdapOffQuin | 2 | 405.0 ± 7.1 | 405.0 ± 7.1 |" in table
    assert "| 40 ± 0 | 80 ± 0 |" in table


def test_results_with_other_settings_are_not_shown(tmp_path):
    line = line_of(find_row("heads", ONLINE), seed=0, rsum=400.0, cpu=1.0)
    line["settings"] = line["settings"] | {"batch_size": 2}
    append_json_line(tmp_path / "lines.jsonl", line)
    assert "400.0" not in peer_tables(tmp_path / "lines.jsonl")["peers-heads"]


def test_both_libraries_train_and_a_recorded_row_is_not_trained_again(data, towers, tmp_path):
    pytest.importorskip("datasets", reason="sentence-transformers trains with datasets")
    from reproduction.peers.compare import Comparison

    clip, results = str(towers.clip), tmp_path / "lines.jsonl"
    rows = [find_row("heads", label) for label in (ONLINE, f"{MNRL}, mined")]
    comparison = Comparison(data, clip, clip, tmp_path / "out", results)
    comparison.run(rows, [0])
    lines = read_json_lines(results)
    assert [line["row"] for line in lines] == [ONLINE, MNRL, f"{MNRL}, mined"]
    assert list(lines[2]["stages"]) == ["mining", "training"]
    assert all(json.dumps(line["test"]) for line in lines)
    comparison.run(rows, [0])
    assert read_json_lines(results) == lines
