"""The report of a paper's experiment: its sections, the scores of pair classes, and negatives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from aoq.evaluation.bootstrap import Interval
from aoq.evaluation.online_share import OnlineShare
from aoq.experiments.report import read_experiment
from aoq.experiments.results import Experiment
from reproduction.claims import Claim, PaperTable
from reproduction.figures import cross_retrieval
from reproduction.pair_scores import scores_by_class
from reproduction.report import PaperReport, shares_section

PAPER = PaperTable(
    of="table 1",
    rsum={"VSRN": 516.8, "VSRN + AdapOffQuin": 521.4},
    claims=(Claim(says="all of it helps", row="VSRN + AdapOffQuin", above="VSRN"),),
)


def read(made, *, out: Path | None = None):
    definition, data, runs = made
    experiment = Experiment(
        definition=definition, out=out or runs, file=runs / "results.jsonl", data=data
    )
    return PaperReport(read_experiment(experiment, command="again"), PAPER)


@pytest.fixture(scope="module")
def report(made):
    return read(made)


def test_the_paper_s_sections_are_on_the_page_and_in_files(report, tmp_path):
    page = report.complete().write(tmp_path).read_text()
    for part in (
        *("What holds", "all of it helps: VSRN + AdapOffQuin above VSRN", "open: 2 of 3 seeds"),
        *("Cross-retrieval", "How the trainings went", "Scores of the pair classes"),
        "The paper&#39;s rsum is that of table 1.",
    ):
        assert part in page
    files = {f"{file.relative_to(tmp_path)}" for file in tmp_path.rglob("*.*")}
    assert files >= {
        *("tables/claims.md", "tables/behaviour.md"),
        *("figures/cross-retrieval-1.svg", "figures/scores-1.png"),
    }
    assert "| 521.4 (+4.6) |" in (tmp_path / "tables/results.md").read_text()


def test_photographs_are_drawn_apart_from_the_report(report, tmp_path):
    for drawing in report.photographs():
        drawing.save(tmp_path)
    with Image.open(tmp_path / "negative-images.png") as picture:
        assert picture.width == 1400


def test_without_runs_scores_and_shares_of_an_earlier_report_stay(made, tmp_path):
    figures = tmp_path / "figures"
    figures.mkdir()
    for name in ("scores-1.png", "cross-retrieval-9.png"):
        (figures / name).write_text("there before")
    read(made, out=tmp_path / "none").complete().write_files(tmp_path)
    assert (figures / "scores-1.png").read_text() == "there before"
    assert not (figures / "cross-retrieval-9.png").exists()
    assert (figures / "cross-retrieval-1.png").is_file()


def test_letters_of_the_figures_are_readable_in_print(report):
    from matplotlib.text import Text

    texts = cross_retrieval(report.report.rows[:2]).findobj(Text)
    assert min(text.get_fontsize() for text in texts if text.get_text()) >= 8


def test_scores_of_the_pair_classes_are_those_of_the_batches(made, report, matrix):
    mined = report.batches
    positive, online, offline = [], [], []
    for step, pairs in enumerate(mined.batches):
        images, texts = pairs.T
        positive += list(matrix[images, texts])
        wrong = matrix[np.ix_(images, texts)]
        np.fill_diagonal(wrong, -np.inf)
        online += [*wrong.max(axis=1), *wrong.max(axis=0)]
        drawn = mined.sampler.draw(images, texts, epoch=0, step=step)
        offline += [*matrix[images, drawn.texts], *matrix[drawn.images, texts]]
    found = scores_by_class(mined.teacher, mined)
    for name, expected in (
        ("positive", positive),
        ("online hard negative", online),
        ("offline hard negative", offline),
    ):
        np.testing.assert_allclose(np.sort(found[name]), np.sort(expected), atol=1e-5)
    assert 0 < len(found["derived pair"]) <= 2 * len(positive)


def test_how_hard_batches_are_is_a_table():
    share = OnlineShare(
        direction="i2t",
        batch_size=128,
        top=100,
        candidates=30_000,
        anchors=8192,
        share=Interval(36.04, 35.0, 37.0),
        mean_rank=Interval(1234.4, 1200.0, 1300.0),
    )
    assert shares_section([share]).table.markdown().splitlines()[2] == (
        "| i2t | 128 | 30,000 | 36.0 % [35.0, 37.0] | 34.6 % | 1,234 [1,200, 1,300] | 234 |"
    )
