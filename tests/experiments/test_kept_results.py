"""The results that are kept in the repository, and the page that tells of them."""

import csv
import runpy
from pathlib import Path

import pytest

from aoq.experiments.cells import plan_grid
from aoq.experiments.definitions import load_definition
from aoq.experiments.results import chosen_rows, ranks_beside, read_results
from aoq.storage import read_json_lines

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "results_page.py"))
KEPT = SCRIPT["RESULTS"]


@pytest.fixture(scope="module")
def digests():
    """Those of every training that the experiments can come to."""
    definitions = [load_definition(name) for name in SCRIPT["EXPERIMENTS"]]
    return {
        cell.digest
        for definition in definitions
        for cell in plan_grid(definition, out=Path(), rows=[row.label for row in definition.rows])
    }


def test_kept_results_are_those_of_the_experiments_as_they_are(digests):
    """Whoever runs a row again runs the same settings; none is there twice."""
    lines = read_json_lines(KEPT)
    assert {line["digest"] for line in lines} <= digests
    assert len({line["digest"] for line in lines}) == len(lines)
    assert len({line["data"] for line in lines}) == 1


def test_the_ranks_behind_every_kept_result_are_kept_too():
    files = [ranks_beside(KEPT, line, split="test") for line in read_json_lines(KEPT)]
    assert [file for file in files if not file.is_file()] == []


@pytest.mark.parametrize("name", SCRIPT["EXPERIMENTS"])
def test_tables_have_the_trainings_as_they_are_kept(name):
    """Of rows; choices and ensembles are made of them."""
    definition = load_definition(name)
    lines = read_results(KEPT, definition)
    cells = plan_grid(definition, out=Path(), chosen=chosen_rows(definition, lines))
    planned = [(cell.label, cell.recipe.seed) for cell in cells if cell.is_row]
    kept = {key: lines[key]["test"]["rsum"] for key in planned if key in lines}
    table = SCRIPT["ROOT"] / "results" / name / "tables" / "trainings.csv"
    with table.open(encoding="utf-8") as file:
        shown = {(row["row"], int(row["seed"])): float(row["rsum"]) for row in csv.DictReader(file)}
    labels = {row.label for row in definition.rows}
    own = {key: rsum for key, rsum in shown.items() if key[0] in labels}
    assert own == pytest.approx(kept, abs=0.5)  # ranks of another machine may differ a little


def test_a_report_leaves_only_what_needs_runs_of_an_earlier_one(tmp_path, monkeypatch):
    place = tmp_path / "results" / "made"

    def write(folder, *names):
        for name in names:
            (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / name).write_text(str(folder))

    class FakeAoq:
        def run(self, command, **_):
            write(command[-1], "index.html", "tables/results.md", "figures/curves-1.png")

    earlier = ("tables/results.md", "tables/claims.md", "tables/online-share.md")
    figures = [f"figures/{name}-{number}.png" for name in ("curves", "scores") for number in (1, 2)]
    write(place, *earlier, *figures, "figures/mine.png")
    monkeypatch.setitem(SCRIPT["report"].__globals__, "ROOT", tmp_path)
    monkeypatch.setitem(SCRIPT["report"].__globals__, "subprocess", FakeAoq())
    SCRIPT["report"]("made", data=tmp_path, out=tmp_path)
    found = {str(file.relative_to(place)): file.read_text() for file in place.rglob("*.*")}
    assert sorted(name for name, text in found.items() if text == str(place)) == [
        "figures/mine.png",
        "figures/scores-1.png",
        "tables/online-share.md",
    ]
    assert sorted(name for name, text in found.items() if text != str(place)) == [
        "figures/curves-1.png",
        "tables/results.md",
    ]


@pytest.mark.parametrize("page", SCRIPT["PAGES"], ids=lambda path: path.stem)
def test_pages_have_the_tables_as_they_are_kept(page):
    page = page.read_text("utf-8")
    assert page.count("<!-- results/") == page.count("<!-- end -->") > 0
    assert SCRIPT["with_tables"](page) == page


def test_tables_made_of_others_are_up_to_date():
    for name in ("table6", "summary"):
        assert (SCRIPT["ROOT"] / "results" / f"{name}.md").read_text("utf-8") == SCRIPT[name]()
