"""Tables of results: what is bold, what is missing, what stands beside."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest

from aoq.evaluation.metrics import PAPER_FIGURES
from aoq.evaluation.tables import formatted_rows
from aoq.experiments.csv_files import rows_csv, trainings_csv
from aoq.experiments.rows import ResultRow, Training
from aoq.experiments.tables import (
    Reference,
    markdown_table,
    notes_of,
    shown_groups,
)
from tests.experiments.cases import RESULT


def rows_with(*values, group="g"):
    return [
        ResultRow(
            f"row {number}",
            group,
            (0, 1),
            tuple(Training(seed, {**RESULT, "i2t_r1": value}) for seed, value in enumerate(row)),
        )
        for number, row in enumerate(values)
    ]


def test_the_best_of_each_group_is_bold_and_what_is_missing_has_a_dash():
    rows = [*rows_with((10.0, 12.0), (11.04,), ()), *rows_with((1.0, 1.0), group="h")]
    first, second = shown_groups(rows)
    assert [cell.figures[0].plain for cell in first] == ["11.0 ± 1.4", "11.0", "-"]
    assert [cell.figures[0].best for cell in first] == [True, True, False]  # equal as printed
    assert [row.seeds for row in first] == ["2", "1 of 2", "0 of 2"]
    assert not second[0].figures[0].best
    table = markdown_table(rows).splitlines()
    assert len(table) == 2 + len(rows)
    assert table[2].startswith("| **row 0** | **11.0 ± 1.4** |")
    assert table[4].count(" - |") == len(PAPER_FIGURES) + 1
    assert len({line.count("|") for line in table}) == 1


def test_a_note_says_which_rows_are_above_a_simple_model():
    def row(label, *rsums, simple=""):
        trainings = (Training(seed, {**RESULT, "rsum": rsum}) for seed, rsum in enumerate(rsums))
        return ResultRow(label, label, (0, 1), tuple(trainings), simple=simple)

    rows = [
        row("CCA", 270.0, simple="cca"),
        row("BOW", 272.0, simple="bow"),
        row("BFAN", 272.0, 280.0),
        row("VSRN", 269.0, 271.0),
        row("SCAN"),
    ]
    assert notes_of(rows) == [
        "Above CCA (rsum 270.0): BFAN. Not above: VSRN.",
        "Above BOW (rsum 272.0): BFAN. Not above: VSRN.",
    ]
    assert notes_of(rows[:2]) == notes_of(rows[2:]) == []


def test_the_rsum_of_a_reference_stands_beside_with_its_own_differences():
    rows = rows_with((10.0, 12.0), (11.0, 11.0), (11.0, 12.0))
    reference = Reference("paper", {"row 0": 516.8, "row 1": 518.6}, "table 1")
    shown = [row.reference for row in shown_groups(rows, reference)[0]]
    assert shown == ["516.8", "518.6 (+1.8)", ""]
    table = markdown_table(rows, reference).splitlines()
    assert table[3].endswith("| 518.6 (+1.8) |")
    assert table[-1] == "The paper's rsum is that of table 1."
    assert len({line.count("|") for line in table[:5]}) == 1
    assert "paper" not in markdown_table(rows[2:], reference)
    lines = csv.DictReader(io.StringIO(rows_csv(rows, reference)))
    assert [line["paper_rsum"] for line in lines] == ["516.8", "518.6", ""]


def test_the_deviation_of_a_difference_is_that_of_the_pairs_of_seeds():
    """Seeds that move both rows alike say nothing against a difference."""
    rows = rows_with((10.0, 20.0), (11.0, 21.5))
    gain = rows[1].minus(rows[0])["i2t_r1"].spread
    assert (gain.mean, gain.deviation) == pytest.approx((1.25, 0.5 / np.sqrt(2)))
    assert rows[1].spreads["i2t_r1"].deviation > 7
    assert shown_groups(rows)[0][1].gains[0] == "+1.2 ± 0.4"
    (_, line) = csv.DictReader(io.StringIO(rows_csv(rows)))
    assert float(line["i2t_r1_more"]) == 1.25
    assert float(line["i2t_r1_more_deviation"]) == pytest.approx(gain.deviation)
    by_seed = [line["i2t_r1_more"] for line in csv.DictReader(io.StringIO(trainings_csv(rows)))]
    assert by_seed == ["", "", "1.0", "1.5"]


def test_the_best_of_each_column_is_marked_and_a_single_row_is_not():
    better = {**RESULT, "i2t_r1": 12.0, "t2i_median_rank": 4.0}
    rows = dict(formatted_rows({"online": RESULT, "OffTri": better}))
    assert rows["OffTri"][0] == ("12.0", True)
    assert rows["online"][0] == ("10.0", False)
    assert rows["OffTri"][7] == ("4", True)
    assert not any(best for _, best in formatted_rows({"only": RESULT})[0][1])
