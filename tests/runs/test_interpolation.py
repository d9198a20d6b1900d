"""A fine-tuned model goes back part of the way to the pretrained one, and stays a run."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from transformers import AutoModel

from aoq.cli.interpolate import _why_none
from aoq.config import ModelConfig, Recipe, RoundConfig
from aoq.data.build import build_dataset
from aoq.data.dataset import PairDataset
from aoq.data.splits import open_dataset
from aoq.errors import UserError
from aoq.evaluation.protocols import evaluate
from aoq.runs import interpolation
from aoq.runs.checkpoint import TrainedRun, hash_model, load_run
from aoq.runs.directory import RunDirectory
from aoq.runs.interpolation import (
    Interpolation,
    Judged,
    _Line,
    _Set,
    _start_of,
    interpolate_run,
)
from aoq.runs.summary import RunSummary
from aoq.training.inputs import open_training_data
from aoq.training.two_rounds import train_round
from tests.commands import aoq
from tests.kills import KilledError
from tests.retrieval.conftest import photo_records
from tests.towers import TinyModels

SHARES = (0.0, 0.5, 1.0)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two data sets of photos; the second is for the report alone."""
    root = tmp_path_factory.mktemp("interpolation")
    records = photo_records(root / "photos")
    build_dataset(records, root / "mine" / "data", name="mine")
    build_dataset(records[::2], root / "other" / "data", name="other")
    return root / "mine" / "data", root / "other" / "data"


def train(out: Path, data: Path, towers: TinyModels, *, head: str = "none", learn: str) -> Path:
    model = ModelConfig(
        name="towers",
        image=str(towers.clip),
        learn=learn,  # type: ignore[arg-type]
        image_blocks=1,
        text_blocks=1,
        head=head,  # type: ignore[arg-type]
        joint_width=8,
        lora_rank=2,
    )
    settings = RoundConfig(epochs=2, batch_size=8, optimizer="adamw", learning_rate=1e-2)
    recipe = Recipe(data=str(data), rounds="one", model=model, round_one=settings)
    train_round(out, recipe, open_training_data(recipe), which="one")
    return out


@pytest.fixture(scope="module", params=["top", "lora"])
def run(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    data: tuple[Path, Path],
    towers: TinyModels,
) -> Path:
    return train(tmp_path_factory.mktemp("run") / "run", data[0], towers, learn=request.param)


def encode(trained: TrainedRun, data: Path) -> torch.Tensor:
    """Some photos and captions of dev, as a model encodes them."""
    collator = trained.collator(open_dataset(data, "dev"))
    with torch.no_grad():
        images = trained.model.encode_images(collator.regions(np.arange(4))).vectors
        texts = trained.model.encode_texts(collator.texts(np.arange(4))).vectors
    return torch.cat([images, texts])


def test_the_share_is_chosen_on_dev_and_told_on_test(
    tmp_path: Path, run: Path, data: tuple[Path, Path]
) -> None:
    found = interpolate_run(run, tmp_path / "out", also=data[1], shares=SHARES)
    splits = {(one.data, one.split) for one in found.judged}
    assert splits == {(name, split) for name in ("mine", "other") for split in ("dev", "test")}
    rsum = {(one.share, one.data, one.split): one.metrics["rsum"] for one in found.judged}
    allowed = [at for at in SHARES if rsum[at, "other", "dev"] >= rsum[0.0, "other", "dev"] - 3]
    assert found.share in allowed
    assert rsum[found.share, "mine", "dev"] == max(rsum[at, "mine", "dev"] for at in allowed)
    assert {at for at, *split in rsum if split == ["mine", "test"]} == {0.0, found.share, 1.0}
    summary = RunSummary.read(tmp_path / "out")
    assert summary.stage == "interpolated"
    assert summary.dev is not None
    assert summary.dev.metrics["rsum"] == rsum[found.share, "mine", "dev"]


def test_force_replaces_a_run_and_no_folder_of_others(tmp_path: Path, run: Path) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("mine")
    with pytest.raises(UserError, match="aoq did not write it"):
        interpolate_run(run, tmp_path, shares=[], force=True)
    assert [*tmp_path.iterdir()] == [mine]


def test_the_ends_are_the_pretrained_and_the_trained_model(
    tmp_path: Path, run: Path, data: tuple[Path, Path], towers: TinyModels
) -> None:
    trained = load_run(run)
    line = _Line(RunDirectory(tmp_path), trained, _start_of(trained, run))
    learned = encode(trained, data[0])
    line.go_to(0.0)
    before = encode(trained, data[0])
    own = AutoModel.from_pretrained(towers.clip).eval()
    tokens = torch.tensor([trained.tokenizer.encode(open_dataset(data[0], "dev").captions[0])])
    with torch.no_grad():
        pretrained = own.get_text_features(input_ids=tokens)
    pretrained = getattr(pretrained, "pooler_output", pretrained)
    # States are kept in half precision.
    torch.testing.assert_close(
        before[4], torch.nn.functional.normalize(pretrained[0], dim=0), rtol=0, atol=2e-3
    )
    assert (before - learned).abs().max() > 1e-2
    line.go_to(1.0)
    torch.testing.assert_close(encode(trained, data[0]), learned, rtol=0, atol=0)


def test_half_of_an_adapter_changes_the_weights_by_half(
    tmp_path: Path, run: Path, data: tuple[Path, Path]
) -> None:
    trained = load_run(run)
    line = _Line(RunDirectory(tmp_path), trained, _start_of(trained, run))

    def weights(share: float) -> dict[str, torch.Tensor]:
        """What each linear layer multiplies by, with its adapter."""
        line.go_to(share)
        products = {}
        for name, part in trained.model.named_modules():
            if hasattr(part, "lora_A"):
                products[name] = part.get_base_layer().weight + part.get_delta_weight("default")
            elif isinstance(part, torch.nn.Linear) and "lora" not in name:
                products[name] = part.weight
        return {name: value.detach().clone() for name, value in products.items()}

    start, half, end = map(weights, (0.0, 0.5, 1.0))
    assert any(not start[name].equal(end[name]) for name in start)
    for name in start:
        torch.testing.assert_close(half[name], (start[name] + end[name]) / 2)


def test_an_interrupted_call_continues_and_ends_as_another(
    tmp_path: Path, run: Path, data: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"also": data[1], "shares": SHARES}
    whole = interpolate_run(run, tmp_path / "whole", **options)  # type: ignore[arg-type]
    calls = 0

    def judging(*arguments: object, **named: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise KilledError
        return evaluate(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(interpolation, "evaluate", judging)
    with pytest.raises(KilledError):
        interpolate_run(run, tmp_path / "killed", **options)  # type: ignore[arg-type]
    assert not RunDirectory(tmp_path / "killed").model.is_file()
    assert interpolate_run(run, tmp_path / "killed", **options) == whole  # type: ignore[arg-type]
    assert calls == 1 + len(whole.judged)
    assert hash_model(tmp_path / "killed") == hash_model(tmp_path / "whole")
    interpolate_run(run, tmp_path / "killed", **options)  # type: ignore[arg-type]
    assert calls == 1 + len(whole.judged)
    with pytest.raises(UserError, match="other settings"):
        interpolate_run(run, tmp_path / "killed", also=data[1], shares=(0.1,))


def test_a_drop_on_the_second_set_rules_shares_out(run: Path, tmp_path: Path) -> None:
    trained = load_run(run)
    line = _Line(RunDirectory(tmp_path), trained, _start_of(trained, run))
    rsums = {"mine": (100, 130, 120, 140), "other": (300, 299, 298, 250)}
    shares = (0.0, 0.3, 0.6, 1.0)
    sets = [_Set(Path(name), cast("PairDataset", name), None) for name in rsums]

    def judged(_: object, share: float, name: str) -> Judged:
        return Judged(share, name, "dev", {"rsum": rsums[name][shares.index(share)]})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_Line, "judge", judged)
        for drop, share in ((0.0, 0.0), (2.0, 0.3), (60.0, 1.0)):
            assert line.choose(shares, sets, max_drop=drop).share == share
        assert line.choose(shares, sets[:1], max_drop=0.0).share == 1.0


@pytest.mark.parametrize(
    ("own", "reason"),
    [((100, 100, 100), "equals"), ((100, 90, 100), "is not above"), ((100, 130, 90), "second")],
)
def test_why_no_share_is_chosen_is_said(own: tuple[int, ...], reason: str) -> None:
    judged = [Judged(share / 2, "mine", "dev", {"rsum": own[share]}) for share in range(3)]
    other = [Judged(share / 2, "other", "dev", {"rsum": 300.0 - share}) for share in range(3)]
    assert reason in _why_none(Interpolation(0.0, (*judged, *other)))


def test_heads_cannot_be_interpolated(
    tmp_path: Path, data: tuple[Path, Path], towers: TinyModels
) -> None:
    run = train(tmp_path / "run", data[0], towers, head="linear", learn="top")
    with pytest.raises(UserError, match=r"head\S* began at random.*model.head none"):
        interpolate_run(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_command_makes_a_run_like_any_other(
    tmp_path: Path, run: Path, data: tuple[Path, Path]
) -> None:
    out = tmp_path / "out"
    done = aoq("interpolate", run, "--also", data[1], "--shares", 0.5, "--out", out)
    assert done.returncode == 0, done.stderr
    assert "(chosen)" in done.stdout
    for command in (("evaluate", out, "--split", "dev"), ("index", out), ("runs", out)):
        again = aoq(*command)
        assert again.returncode == 0, again.stderr
    assert "interpolated" in again.stdout
    continued = aoq("train", out / "config.toml", "--out", out)
    assert continued.returncode == 2
    assert "started with another weights" in continued.stderr
