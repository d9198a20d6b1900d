"""The results that are kept in the repository, and the page that tells of them."""

import runpy
from pathlib import Path

import pytest

from aoq.experiments.cells import plan_grid
from aoq.experiments.definitions import load_definition
from aoq.experiments.results import ranks_beside
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
    files = [ranks_beside(KEPT, line["digest"], split="test") for line in read_json_lines(KEPT)]
    assert [file for file in files if not file.is_file()] == []


@pytest.mark.parametrize("page", SCRIPT["PAGES"], ids=lambda path: path.stem)
def test_pages_have_the_tables_as_they_are_kept(page):
    page = page.read_text("utf-8")
    assert page.count("<!-- results/") == page.count("<!-- end -->") > 0
    assert SCRIPT["with_tables"](page) == page


def test_tables_made_of_others_are_up_to_date():
    for name in ("table6", "summary"):
        assert (SCRIPT["ROOT"] / "results" / f"{name}.md").read_text("utf-8") == SCRIPT[name]()
