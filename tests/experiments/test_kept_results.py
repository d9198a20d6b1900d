"""The results that are kept in the repository, and the page that tells of them."""

import runpy
from pathlib import Path

import pytest

from aoq.experiments.cells import plan_grid
from aoq.experiments.definitions import load_definition
from aoq.storage import read_json_lines

ROOT = Path(__file__).parents[2]
KEPT = sorted((ROOT / "results").glob("flickr8k-*.jsonl"))


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_kept_results_are_those_of_the_experiment_as_it_is(path, tmp_path):
    """Whoever runs a row again runs the same settings."""
    definition, lines = load_definition(path.stem), read_json_lines(path)
    rows = [row.label for row in definition.rows]
    cells = plan_grid(definition, out=tmp_path, rows=rows)
    digests = {(cell.label, cell.recipe.seed): cell.digest for cell in cells}
    assert {
        (line["row"], line["seed"]): line["digest"] for line in lines
    }.items() <= digests.items()
    assert len({line["data"] for line in lines}) == 1


def test_the_page_has_the_tables_as_they_are_kept():
    script = runpy.run_path(str(ROOT / "scripts" / "results_page.py"))
    page = script["PAGE"].read_text("utf-8")
    assert page.count("<!-- results/") == page.count("<!-- end -->") > 0
    assert script["with_tables"](page) == page
