"""The report of an experiment: what it says is what was measured, whatever is there of it."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from aoq.errors import UserError
from aoq.evaluation.bootstrap import paired_bootstrap
from aoq.evaluation.metrics import PAPER_FIGURES
from aoq.evaluation.rank_archive import RankArchive
from aoq.evaluation.ranks import PairRanks
from aoq.experiments.csv_files import rows_csv
from aoq.experiments.definition import load_definition
from aoq.experiments.examples import retrievals, where_ranks_differ
from aoq.experiments.figures import Drawing, training_curves
from aoq.experiments.negatives import hardest_negatives
from aoq.experiments.page import Section
from aoq.experiments.plan import plan_grid
from aoq.experiments.report import read_experiment
from aoq.experiments.results import Experiment, Results, ranks_key
from aoq.experiments.tables import TextTable
from aoq.randomness import epoch_order
from aoq.runs.judge import evaluate_runs
from aoq.storage import read_json_lines, write_text
from tests.commands import aoq, assert_refused
from tests.experiments.cases import RESULT, ROWS, results_file

RANKS = "results.ranks.npz"


@pytest.fixture(scope="module")
def report(made):
    return read(made)


def read(made, *, out=None, results=None, **chosen):
    definition, data, runs = made
    chosen = {"data": data, **chosen}
    experiment = Experiment(definition=definition, out=out or runs, file=results, **chosen)
    return read_experiment(experiment, command="aoq experiment made.toml --data data --out out")


@pytest.fixture(scope="module")
def folder(report, tmp_path_factory):
    folder = tmp_path_factory.mktemp("written")
    report.write(folder)
    return folder


def lines_of(path):
    return list(csv.DictReader(io.StringIO(path.read_text())))


# Figures and tables


def test_tables_hold_the_figures_of_the_results_file(made, folder):
    _, _, out = made
    noted = {(line["row"], line["seed"]): line for line in read_json_lines(results_file(out))}
    trainings = lines_of(folder / "tables/trainings.csv")
    assert [(line["row"], int(line["seed"])) for line in trainings] == [
        *(("VSRN", seed) for seed in (0, 1)),
        *(("VSRN + AdapOffQuin", seed) for seed in (0, 1)),
        ("2 x VSRN", 0),
    ]
    for line in trainings[:4]:
        test = noted[line["row"], int(line["seed"])]["test"]
        assert {name: float(line[name]) for name in test} == pytest.approx(test, abs=1e-3)
    rows = {line["row"]: line for line in lines_of(folder / "tables/rows.csv")}
    for row in ("VSRN", "VSRN + AdapOffQuin"):
        for name in PAPER_FIGURES:
            values = [noted[row, seed]["test"][name] for seed in (0, 1)]
            assert float(rows[row][name]) == pytest.approx(np.mean(values), abs=1e-3)
            deviation = float(rows[row][f"{name}_deviation"])
            assert deviation == pytest.approx(np.std(values, ddof=1), abs=2e-3)


def test_an_ensemble_is_judged_as_evaluate_judges_it(made, report):
    _, _, out = made
    runs = [out / f"small.toml+online/seed-{seed}/round-one" for seed in (0, 1)]
    (_, expected) = evaluate_runs(runs)[-1]
    (training,) = report.rows[-1].trainings
    assert training.figures == pytest.approx(expected.figures())
    (member, *_) = report.rows[0].trainings
    assert training.ranks.data == member.ranks.data  # else they could not be compared
    assert report.rows[-1].group != report.rows[0].group


def test_a_difference_is_the_paired_bootstrap_averaged_over_the_seeds(report):
    first, second = report.rows[:2]
    gain = second.minus(first)["rsum"]
    found = gain.interval
    each = [
        paired_bootstrap([one.ranks], [two.ranks])["rsum"].value
        for one, two in zip(first.trainings, second.trainings, strict=True)
    ]
    assert found.value == gain.spread.mean == pytest.approx(np.mean(each))
    assert gain.spread.deviation == pytest.approx(np.std(each, ddof=1))
    draws = [
        two.resampled.drawn["rsum"] - one.resampled.drawn["rsum"]
        for one, two in zip(first.trainings, second.trainings, strict=True)
    ]
    low, high = np.percentile(np.mean(draws, axis=0), [2.5, 97.5])
    assert (found.low, found.high) == pytest.approx((low, high))
    only = replace(second, trainings=second.trainings[1:])
    assert only.minus(first)["rsum"].interval.value == pytest.approx(each[1])
    assert only.minus(first)["rsum"].spread.deviation is None
    unranked = (replace(second.trainings[0], ranks=None), *second.trainings[1:])
    without = replace(second, trainings=unranked).minus(first)["rsum"]
    assert (without.spread, without.interval) == (gain.spread, None)
    assert first.minus(first) == {}


def test_figures_are_readable_in_print(report, folder):
    with Image.open(folder / "figures/curves-1.png") as picture:
        assert picture.width == 1400  # seven inches
        assert picture.info["dpi"] == pytest.approx((200, 200), abs=0.1)
    assert (folder / "figures/curves-1.svg").read_text().lstrip().startswith("<?xml")
    from matplotlib.text import Text

    texts = training_curves(report.rows[:2]).findobj(Text)
    assert min(text.get_fontsize() for text in texts if text.get_text()) >= 8


def test_curves_have_the_mean_and_the_band_of_the_seeds(made, report):
    _, _, out = made
    axis = training_curves(report.rows[:2]).axes[0]
    noted = [line for line in read_json_lines(results_file(out)) if line["row"] == "VSRN"]
    curves = np.array([[point["rsum"] for point in line["curve"]] for line in noted])
    line = next(line for line in axis.get_lines() if line.get_label() == "VSRN")
    np.testing.assert_allclose(line.get_ydata(), curves.mean(axis=0))
    band = axis.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == (curves.min(), curves.max())


def test_the_same_figure_is_the_same_file(report, tmp_path):
    for place in ("one", "two"):
        Drawing("curves", "", training_curves(report.rows[:2])).save(tmp_path / place)
    for kind in ("png", "svg"):
        one, two = (tmp_path / place / f"curves.{kind}" for place in ("one", "two"))
        assert one.read_bytes() == two.read_bytes()


# The page


def test_the_page_needs_nothing_else_and_shows_all_parts(folder):
    page = (folder / "index.html").read_text()
    assert not re.search(r'(?:src|href)="(?!data:|#)', page), "something from outside"
    assert "data:image/svg+xml;base64," in page
    assert page.count("data:image/jpeg;base64,") >= 6
    for part in (
        *("Results", "How reliable the differences are", "Training curves", "Settings"),
        "Negatives of a batch",
        "Repeat it",
        "aoq experiment made.toml --data data --out out --rows VSRN --seeds 0 1",
        "rounds = one",
        "2 x VSRN",
    ):
        assert part in page


def test_the_styles_of_the_page_are_whole(folder):
    styles = re.findall(r"<style>(.*?)</style>", (folder / "index.html").read_text(), re.DOTALL)
    assert styles
    assert all(style.count("{") == style.count("}") for style in styles)


def test_captions_are_text_on_the_page_and_never_markup(folder):
    page = (folder / "index.html").read_text()
    assert "&lt;script&gt;alert(1)" in page
    assert "<script" not in page


def test_a_report_replaces_the_files_of_an_earlier_one_and_no_others(report, folder, tmp_path):
    claims = Section(name="claims", title="Claims", text="", table=TextTable(("a",), [("b",)]))
    replace(report, sections=[claims]).write(tmp_path)
    assert (tmp_path / "tables/claims.md").read_text() == "| a |\n| --- |\n| b |\n"
    earlier = ("tables/claims.md", "figures/curves-3.png")
    own = ("tables/notes.md", "figures/curves-mine.png", "figures/old/curves-3.png", "claims.md")
    report.write(tmp_path)
    for name in earlier:
        write_text(tmp_path / name, "there before")
    for name in own:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("there before")
    replace(report, sections=[replace(claims, table=None)]).write_files(tmp_path)
    assert [name for name in earlier if (tmp_path / name).exists()] == []
    assert {(tmp_path / name).read_text() for name in own} == {"there before"}


def test_a_section_is_on_the_page(report, tmp_path):
    table = TextTable(("", "verdict"), [("a & b", "holds")])
    section = Section(name="claims", title="What holds", text="Of all rows.", table=table)
    page = replace(report, sections=[section]).write(tmp_path).read_text()
    assert "What holds" in page
    assert "a &amp; b" in page


@pytest.mark.parametrize("name", ["index.html", "tables/results.md", "notes.txt"])
def test_a_report_replaces_no_file_of_somebody_else(report, tmp_path, name):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("years of work")
    with pytest.raises(UserError, match="aoq did not write it as its report"):
        report.write(tmp_path)
    if name != "notes.txt":
        report.write(tmp_path / "report")
        (tmp_path / "report" / name).write_text("years of work")
        with pytest.raises(UserError, match=name):
            report.write(tmp_path / "report")
        assert (tmp_path / "report" / name).read_text() == "years of work"


# What is there of it


def test_an_unfinished_experiment_shows_what_is_missing(made, tmp_path, capsys):
    _, _, out = made
    lines = read_json_lines(results_file(out))
    kept = [line for line in lines if (line["row"], line["seed"]) != ("VSRN", 1)]
    kept[-1]["digest"] = "made with other settings"
    results = tmp_path / "results.jsonl"
    results.write_text("".join(json.dumps(line) + "\n" for line in kept))
    found = read(made, results=results)
    assert [[t.seed for t in row.trainings] for row in found.rows] == [[0], [0], []]
    assert "VSRN + AdapOffQuin, seed 1 is left out" in " ".join(capsys.readouterr().err.split())
    page = found.write(tmp_path / "report").read_text()
    assert "2 of 5 results" in page
    assert "1 of 2" in page
    with pytest.raises(UserError, match="no result of made yet"):
        read(made, results=tmp_path / "none.jsonl")


def test_a_changed_figure_of_a_copied_results_file_is_rejected(made, tmp_path):
    definition, data, out = made
    first, second, *others = results_file(out).read_text().splitlines(keepends=True)
    figure = str(json.loads(second)["test"]["rsum"])
    changed = second.replace(figure, f"{(int(figure[0]) + 1) % 10}{figure[1:]}")
    copy = tmp_path / "copy.jsonl"
    copy.write_text("".join((first, changed, *others)))
    for command in (("--list",), ("--report", tmp_path / "report"), ()):
        refused = aoq(
            *("experiment", definition.source, "--data", data, "--out", out),
            *("--results", copy, *command),
        )
        assert_refused(refused, "copy.jsonl, line 2: it is damaged")
    assert not (tmp_path / "report").exists()


def test_a_results_file_written_before_lines_had_hashes_is_read(made, tmp_path):
    definition, _, out = made
    lines = [json.loads(line) for line in results_file(out).read_text().splitlines()]
    assert all(line.pop("check") for line in lines)
    earlier = tmp_path / "earlier.jsonl"
    earlier.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert Results.read(earlier, definition) == Results.read(results_file(out), definition)


def test_without_runs_there_are_tables_and_curves(made, tmp_path, capsys):
    _, _, out = made
    shutil.copy(results_file(out), tmp_path / "results.jsonl")
    found = read(made, out=tmp_path, data=None)
    assert "runs are missing" in " ".join(capsys.readouterr().err.split())
    page = found.write(tmp_path / "report").read_text()
    assert "Training curves" in page
    assert "±" in page
    first, second, _ = lines_of(tmp_path / "report/tables/rows.csv")
    assert float(first["rsum"]) > 0
    assert first["rsum_low"] == second["rsum_more_low"] == ""
    assert float(second["rsum_more"]) == pytest.approx(float(second["rsum"]) - float(first["rsum"]))


def test_ranks_key_the_results_give_what_the_runs_gave(made, report, tmp_path):
    """Without runs only examples are missing."""
    _, _, out = made
    shutil.copy(results_file(out), tmp_path / "results.jsonl")
    shutil.copy(out / RANKS, tmp_path)
    found = read(made, out=tmp_path)
    assert rows_csv(found.shown) == rows_csv(report.shown)
    assert [row.label for row in found.shown if row.resampled is None] == []
    assert not any(training.runs for row in found.shown for training in row.trainings)
    found.write(tmp_path / "report")
    figures = {path.name for path in (tmp_path / "report/figures").iterdir()}
    assert figures == {"curves-1.png", "curves-1.svg"}


def test_ranks_of_other_data_are_neither_read_nor_replaced(made, report, tmp_path):
    """The other data set has lines with the same settings, and had them first or last."""
    _, _, out = made
    own = read_json_lines(out / "results.jsonl")
    others = [{**line, "data": "other"} for line in own]
    wrong = RankArchive(out / RANKS).read(*ranks_key(own[0], split="test"))
    for folder, lines in (("last", own + others), ("first", others + own)):
        results = tmp_path / folder / "results.jsonl"
        results.parent.mkdir()
        results.write_text("".join(json.dumps(line) + "\n" for line in lines))
        archive = RankArchive.beside(results)
        for line in own + others:
            archive.keep(*ranks_key(line, split="test"), wrong)
        assert rows_csv(read(made, results=results).rows) == rows_csv(report.rows)
        kept = [archive.read(*ranks_key(line, split="test")) for line in others]
        assert all(each.metrics == wrong.metrics for each in kept)
        mine = [archive.read(*ranks_key(line, split="test")).metrics.rsum for line in own]
        assert mine == pytest.approx([line["test"]["rsum"] for line in own], abs=0.01)


def test_an_ensemble_is_believed_where_the_ranks_of_its_members_are_their_lines(made, tmp_path):
    _, _, out = made
    shutil.copy(out / "results.jsonl", tmp_path / "results.jsonl")
    shutil.copy(out / RANKS, tmp_path)
    assert len(read(made, out=tmp_path).rows[-1].trainings) == 1
    line = read_json_lines(out / "results.jsonl")[0]
    assert (line["row"], line["seed"]) == ("VSRN", 0)
    archive, key = RankArchive(tmp_path / RANKS), ranks_key(line, split="test")
    best = archive.read(*key)
    none = np.zeros_like(best.pair_ranks.images)
    archive.keep(*key, replace(best, pair_ranks=PairRanks(none, none)))  # rsum 600
    assert read(made, out=tmp_path).rows[-1].trainings == ()


def test_ranks_on_dev_are_kept_beside_those_on_test(made):
    _, _, out = made
    archive = RankArchive(out / RANKS)
    for line in read_json_lines(out / "results.jsonl"):
        found = archive.read(*ranks_key(line, split="dev")).metrics.rsum
        assert found == pytest.approx(line["dev"]["rsum"], abs=0.01)


@pytest.fixture
def noted(made, tmp_path):
    """Writes results that nobody trained, of an experiment with these choices; reads the report."""
    definition, _, _ = made

    def note(choices="", **changes):
        path = definition.source.with_name(f"{tmp_path.name}.toml")
        path.write_text(ROWS.split("[[ensembles]]")[0] + choices)
        own = load_definition(path)
        lines = []
        for run in plan_grid(own, out=tmp_path):
            line = {
                **{"experiment": own.name, "row": run.label, "seed": run.recipe.seed},
                **{"digest": run.digest, "data": "mine", "seconds": 1.0},
                **{"dev": RESULT, "test": RESULT},
            }
            lines.append(line | changes.get(f"{run.label[4:]}{run.recipe.seed}", {}))
        results = results_file(tmp_path)
        results.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return read((own, None, tmp_path))

    return note


def seeds_of(report):
    return [[training.seed for training in row.trainings] for row in report.rows]


def test_a_table_is_about_one_split(noted, capsys):
    worse = {**RESULT, "rsum": 10.0}
    found = noted(**{"1": {"test": None, "dev": worse}})
    assert (found.split, seeds_of(found)) == ("test", [[0], [0, 1]])
    warned = " ".join(capsys.readouterr().err.split())
    assert "seed 1 is left out: its result is not on" in warned
    only_dev = {f"{row}{seed}": {"test": None} for row in ("", " + AdapOffQuin") for seed in (0, 1)}
    found = noted(**only_dev)
    assert (found.split, seeds_of(found)) == ("dev", [[0, 1], [0, 1]])


def test_a_table_is_about_one_data_set(noted, made, capsys, tmp_path):
    found = noted(**{"1": {"data": "other"}})
    assert seeds_of(found) == [[0], [0, 1]]
    warned = " ".join(capsys.readouterr().err.split())
    assert "its result is from another data set" in warned
    definition, data, _ = made
    with pytest.raises(UserError, match="no result of made for these rows"):
        read((definition, data, tmp_path))


CHOICE = """
[[rows]]
label = "VSRN, low"
recipe = "small.toml+alpha-0.2"
seeds = [0]

[[rows]]
label = "VSRN, high"
recipe = "small.toml+alpha-0.5"
seeds = [0]

[[choices]]
label = "VSRN, tuned"
of = ["VSRN, low", "VSRN, high"]
seeds = [0]
"""


def test_a_choice_shows_the_best_on_dev_whatever_it_has_on_test(noted, tmp_path):
    better = {**RESULT, "rsum": 70.0}
    found = noted(CHOICE, **{", high0": {"dev": better}, ", low0": {"test": better}})
    assert [row.label for row in found.shown] == ["VSRN", "VSRN + AdapOffQuin", "VSRN, tuned"]
    tuned = found.shown[-1]
    assert tuned.seeds == (0, 1)  # what is chosen is trained with all
    assert [training.figures["rsum"] for training in tuned.trainings] == [60.0]
    note = "VSRN, tuned is the best on dev (rsum, seed 0) of: VSRN, high 70.0, VSRN, low 60.0."
    assert tuned.note == note
    assert note in found.write(tmp_path / "report").read_text()
    assert note in (tmp_path / "report/tables/results.md").read_text()
    rows = [line["row"] for line in lines_of(tmp_path / "report/tables/rows.csv")]
    assert rows[2:] == ["VSRN, tuned", "VSRN, low", "VSRN, high"]


def test_a_choice_waits_for_all_its_candidates(noted):
    found = noted(CHOICE, **{", high0": {"digest": "of other settings"}})
    assert found.shown[-1].trainings == ()
    assert "not chosen yet" in found.shown[-1].note


def test_ranks_are_kept_when_a_run_ends_and_made_again_where_they_are_missing(made, tmp_path):
    _, _, out = made
    runs = tmp_path / "out"
    shutil.copytree(out, runs)
    kept = {path.relative_to(runs): path.read_bytes() for path in runs.rglob("ranks/test-*")}
    assert len(kept) >= 4
    before = [row.spreads for row in read(made, out=runs).rows]
    for path in kept:
        (runs / path).unlink()
    assert [row.spreads for row in read(made, out=runs).rows] == before
    again = {path: (runs / path).read_bytes() for path in kept}
    assert again == kept


def test_a_run_that_is_not_the_one_noted_gives_no_ranks(made, tmp_path, capsys):
    _, _, out = made
    lines = read_json_lines(results_file(out))
    for line in lines:
        line["test"]["rsum"] += 10
    results = tmp_path / "results.jsonl"
    results.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = read(made, results=results)
    assert all(training.ranks is None for row in found.rows for training in row.trainings)
    assert "holds another run" in " ".join(capsys.readouterr().err.split())


# Examples


def test_half_of_the_examples_speak_for_each_setting():
    first = np.array([0, 5, 9, 0, 0, 3])
    last = np.array([4, 0, 0, 8, 0, 0])
    assert where_ranks_differ(first, last, count=4) == [2, 1, 3, 0]
    assert where_ranks_differ(first, first) == []


def test_examples_tick_what_belongs_together_and_show_the_ranks(made, report):
    _, data, _ = made
    dataset = report.dataset
    found = retrievals(report.rows[:2], dataset, data=data)
    for example in found:
        ranks = [answers.rank for answers in example.answers]
        assert min(ranks) == 1 < max(ranks)
        for answers in example.answers:
            assert answers.items[0].right == (answers.rank == 1)
            scores = [item.score for item in answers.items]
            assert scores == sorted(scores, reverse=True)
    assert retrievals(report.rows[:1], dataset, data=data) == []


def test_the_command_writes_the_report_and_shows_the_table(made, tmp_path):
    definition, data, out = made
    done = aoq(
        *("experiment", definition.source, "--data", data, "--out", out),
        *("--report", tmp_path / "report"),
    )
    assert done.returncode == 0, done.stderr
    assert "index.html" in done.stderr
    assert "more than the first of the group" in done.stdout
    assert (tmp_path / "report/index.html").is_file()


def test_negatives_are_the_hardest_of_the_batch_and_of_the_set(report, matrix):
    mined = report.mined
    texts = {caption: number for number, caption in enumerate(mined.dataset.captions)}
    pairs = mined.dataset.positives.pairs
    batch = pairs[epoch_order(len(pairs), seed=0, epoch=0)[: mined.batch_size], 1]
    examples = [one for one in hardest_negatives(mined) if one.direction == "i2t"]
    assert examples
    for example in examples:
        image, online = texts[example.positive.text], texts[example.online.text]
        row = np.delete(matrix[image], image)
        others = [text for text in batch if text != image]
        assert example.online.score == pytest.approx(matrix[image, others].max(), abs=1e-5)
        assert example.offline.score == pytest.approx(row.max(), abs=1e-5)
        place = np.flatnonzero(mined.lists.i2t[image] == online)
        assert example.online.note == (
            f"place {place[0] + 1}" if len(place) else "beyond the first 10"
        )
