"""Boards read back with TensorBoard's own reader."""

from __future__ import annotations

import pytest
import torch

from aoq.config import LossConfig
from aoq.losses import BatchScores, OfflineScores, compute_loss
from aoq.training.board import step_board
from aoq.training.statistics import StepStatistics
from aoq.training.step import Outcome

event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

MATRIX = torch.tensor([[0.75, 0.75, 0.25], [0.5, 1.0, 0.125], [0.125, 0.25, 0.5]])
OFFLINE = OfflineScores(
    *torch.tensor([[0.5, 0.25, 0.75], [0.5, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
)


def one_step(loss="adap_off_quin", **terms):
    scores = BatchScores(MATRIX, offline=OFFLINE)
    config = LossConfig(name=loss, margin_online=0.25, alpha=0.25, beta=1.0)
    statistics = StepStatistics()
    statistics.add(terms or {"i2t_online": 1.5}, [Outcome(scores, compute_loss(scores, config))])
    return statistics.summary(), statistics.values()


def read(folder):
    return event_accumulator.EventAccumulator(
        str(folder), size_guidance={"scalars": 0, "histograms": 0}
    ).Reload()


def points(folder, tag):
    return [(point.step, point.value) for point in read(folder).Scalars(tag)]


def a_second_passes(folder):
    """Event files are read in the order of the second that their names begin with."""
    for file in folder.iterdir():
        *head, second, rest = file.name.split(".", maxsplit=4)
        file.rename(folder / ".".join([*head, str(int(second) - 1), rest]))


def test_a_window_is_written_as_scalars_and_distributions(tmp_path):
    with step_board(tmp_path / "board") as board:
        board.write(50, *one_step(i2t_online=1.5, captions=2.0))
    read_back = read(tmp_path / "board")
    scalars = {tag: read_back.Scalars(tag)[0] for tag in read_back.Tags()["scalars"]}
    assert {point.step for point in scalars.values()} == {50}
    assert scalars["loss/i2t_online"].value == 1.5
    assert scalars["loss/captions"].value == 2.0
    assert scalars["active/i2t_online"].value == pytest.approx(1 / 3, abs=1e-4)
    assert scalars["weights/below_zero"].value == pytest.approx(1 / 6, abs=1e-4)
    assert scalars["speed/steps_per_second"].value > 0
    kinds = {"positive": 3, "online": 6, "offline": 6, "weights": 6}
    histograms = read_back.Tags()["histograms"]
    assert set(histograms) == {f"distribution/{name}" for name in kinds}
    for name, count in kinds.items():
        assert read_back.Histograms(f"distribution/{name}")[0].histogram_value.num == count
    assert read_back.Histograms("distribution/weights")[0].histogram_value.min == -1.0


def test_a_loss_without_weights_has_none_on_the_board(tmp_path):
    with step_board(tmp_path) as board:
        board.write(1, *one_step("online"))
    tags = read(tmp_path).Tags()
    assert "weights/below_zero" not in tags["scalars"]
    assert "distribution/weights" not in tags["histograms"]


def test_validations_stand_beside_the_steps(tmp_path):
    with step_board(tmp_path) as board:
        board.write(10, *one_step())
        board.write_metrics(10, {"rsum": 250.5, "i2t_r1": 20.0})
        board.write_metrics(20, {"rsum": 300.25, "i2t_r1": 25.0})
    assert points(tmp_path, "validation/rsum") == [(10, 250.5), (20, 300.25)]
    assert points(tmp_path, "validation/i2t_r1") == [(10, 20.0), (20, 25.0)]
    assert points(tmp_path, "loss/i2t_online") == [(10, 1.5)]


def test_what_is_written_is_on_disk_before_the_board_is_closed(tmp_path):
    with step_board(tmp_path) as board:
        board.write_metrics(10, {f"metric_{i}": 1.0 for i in range(100)})
        (file,) = tmp_path.iterdir()
        before = file.stat().st_size
    assert file.stat().st_size == before
    assert points(tmp_path, "validation/metric_99") == [(10, 1.0)]


def test_a_continued_run_hides_what_it_takes_again(tmp_path):
    with step_board(tmp_path) as board:
        for step in (10, 20, 30, 40):
            board.write(step, *one_step(i2t_online=1.0, gone=1.0))
        board.write_metrics(40, {"rsum": 100.0})
    a_second_passes(tmp_path)
    with step_board(tmp_path) as board:
        board.write(30, *one_step(i2t_online=2.0))
    assert points(tmp_path, "loss/i2t_online") == [(10, 1.0), (20, 1.0), (30, 2.0)]
    assert points(tmp_path, "loss/gone") == [(10, 1.0), (20, 1.0)]
    assert points(tmp_path, "validation/rsum") == []
    assert [point.step for point in read(tmp_path).Histograms("distribution/online")] == [
        10,
        20,
        30,
    ]


def test_a_run_with_nothing_left_to_do_hides_nothing(tmp_path):
    with step_board(tmp_path) as board:
        board.write(10, *one_step())
    before = sorted(tmp_path.iterdir())
    with step_board(tmp_path) as board:
        board.write(5, StepStatistics().summary(), {})
    assert sorted(tmp_path.iterdir()) == before
    assert points(tmp_path, "loss/i2t_online") == [(10, 1.5)]


def test_an_error_inside_keeps_what_was_written(tmp_path):
    with pytest.raises(KeyboardInterrupt), step_board(tmp_path) as board:  # noqa: PT012
        board.write(10, *one_step())
        raise KeyboardInterrupt
    assert points(tmp_path, "loss/i2t_online") == [(10, 1.5)]


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with step_board(None) as board:
        board.write(10, *one_step())
        board.write_metrics(10, {"rsum": 1.0})
    assert list(tmp_path.iterdir()) == []


def test_without_tensorboard_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr("aoq.training.board.find_spec", lambda name: None)
    with step_board(tmp_path / "board") as board:
        board.write(10, *one_step())
        board.write_metrics(10, {"rsum": 1.0})
    assert list(tmp_path.iterdir()) == []
