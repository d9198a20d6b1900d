"""The results in the repository, and the pages that show them."""

import csv
from pathlib import Path

import pytest

from aoq.evaluation.power import DEVIATION
from aoq.evaluation.rank_archive import RankArchive
from aoq.experiments.definition import load_definition
from aoq.experiments.plan import plan_grid
from aoq.experiments.results import Results, ranks_key
from aoq.storage import read_json_lines
from reproduction import EXPERIMENTS, RESULTS, ROOT, definition_file
from reproduction.grid import all_comparisons, all_rows, verdicts_of
from reproduction.page import PAGES, made_tables, with_tables


@pytest.fixture(scope="module")
def digests():
    """Those of every training that the experiments can come to."""
    definitions = [load_definition(definition_file(name)) for name in EXPERIMENTS]
    return {
        run.digest
        for definition in definitions
        for run in plan_grid(definition, out=Path(), rows=[row.label for row in definition.rows])
    }


def test_kept_results_are_those_of_the_experiments_as_they_are(digests):
    """Whoever runs a row again runs the same settings; none is there twice."""
    lines = read_json_lines(RESULTS)
    assert {line["digest"] for line in lines} <= digests
    assert len({line["digest"] for line in lines}) == len(lines)
    assert len({line["data"] for line in lines}) == 1


def test_the_ranks_behind_every_kept_result_are_kept_too():
    """With them, the figures of the line are found again."""
    archive = RankArchive.beside(RESULTS)
    for line in read_json_lines(RESULTS):
        ranks = archive.read(*ranks_key(line, split="test"))
        assert ranks.metrics.rsum == pytest.approx(line["test"]["rsum"], abs=0.5)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_tables_have_the_trainings_as_they_are_kept(name):
    """Of rows; choices and ensembles are made of them."""
    definition = load_definition(definition_file(name))
    results = Results.read(RESULTS, definition)
    lines, runs = results.lines, plan_grid(definition, out=Path(), chosen=results.chosen)
    planned = [(run.label, run.recipe.seed) for run in runs if run.is_row]
    kept = {key: lines[key]["test"]["rsum"] for key in planned if key in lines}
    table = ROOT / "results" / definition.name / "tables" / "trainings.csv"
    with table.open(encoding="utf-8") as file:
        shown = {(row["row"], int(row["seed"])): float(row["rsum"]) for row in csv.DictReader(file)}
    labels = {row.label for row in definition.rows}
    own = {key: rsum for key, rsum in shown.items() if key[0] in labels}
    assert own == pytest.approx(kept, abs=0.5)  # ranks of another machine may differ a little


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_pages_have_the_tables_as_they_are_kept(page):
    page = page.read_text("utf-8")
    assert page.count("<!-- results/") == page.count("<!-- end -->") > 0
    assert with_tables(page) == page


def test_tables_made_of_others_are_up_to_date():
    for name, made in made_tables().items():
        assert (ROOT / "results" / name).read_text("utf-8") == made


def test_the_page_names_every_claim_that_holds_and_says_whether_any_does_not():
    page = (ROOT / "docs/results.md").read_text("utf-8")
    section = page.partition("## What holds")[2].partition("\n## ")[0].replace("\n  ", " ")
    listed, says_none, _ = section.partition("None is refuted.")
    verdicts = [verdict for name in EXPERIMENTS for verdict in verdicts_of(name, RESULTS)]
    held = {verdict.claim.says for verdict in verdicts if str(verdict) == "holds"}
    assert {says for says in held if says.casefold() not in listed.casefold()} == set()
    assert bool(says_none) == all(str(verdict) != "does not hold" for verdict in verdicts)


def test_the_assumed_deviation_is_that_of_the_recorded_trainings():
    first = next(row for row in all_rows(RESULTS)["table1"] if row.label == "VSRN")
    error = all_comparisons(RESULTS).run_error(first.group)
    assert error.variance.value**0.5 == pytest.approx(DEVIATION, abs=0.05)
