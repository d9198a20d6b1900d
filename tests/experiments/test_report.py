"""The report, where the end-to-end demo does not look."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from aoq.experiments.report import Setting, write_report
from aoq.experiments.tables import formatted_rows
from aoq.storage import RunDirectory, hash_file
from aoq.training.two_rounds import ROUND_TWO, run_recipe
from tests.training.test_round import small_recipe

RESULT = {
    **{f"{side}_{name}": 10.0 for side in ("i2t", "t2i") for name in ("r1", "r5", "r10")},
    "i2t_median_rank": 5.0,
    "t2i_median_rank": 5.0,
    "rsum": 60.0,
}


def built_folder(folder: Path, *, caption: str) -> Path:
    """A data set as `aoq data build` writes it, with features that cost nothing."""
    random = np.random.default_rng(0)
    splits = {}
    (folder / "pictures").mkdir(parents=True)
    for split, count in (("train", 8), ("dev", 4), ("test", 4)):
        np.save(folder / f"{split}.features.npy", random.random((count, 4, 6), np.float32))
        names = [f"pictures/{split}-{i}.png" for i in range(count)]
        for name in names:
            Image.new("RGB", (8, 8), tuple(random.integers(255, size=3))).save(folder / name)
        listing = {
            "images": [{"id": name, "picture": name} for name in names],
            "captions": [{"id": f"{n}#0", "text": f"{caption} {i}"} for i, n in enumerate(names)],
            "pairs": [[i, i] for i in range(count)],
        }
        (folder / f"{split}.json").write_text(json.dumps(listing))
        files = (f"{split}.features.npy", f"{split}.json")
        splits[split] = {"sha256": {name: hash_file(folder / name) for name in files}}
    manifest = {"version": 1, "name": "made", "splits": splits}
    (folder / "dataset.json").write_text(json.dumps(manifest))
    return folder


def test_captions_are_text_on_the_page_and_never_markup(tmp_path):
    data = built_folder(tmp_path / "data", caption="a <script>alert(1)</script> dog")
    recipe = replace(small_recipe(data), min_word_count=1)
    run_recipe(tmp_path / "run", recipe)
    setting = Setting.read("AdapOffQuin", tmp_path / "run" / ROUND_TWO)
    page = write_report(RunDirectory(tmp_path / "run"), [setting]).read_text()
    assert "&lt;script&gt;alert(1)" in page
    assert "<script" not in page


def test_the_best_of_each_column_is_marked_and_a_single_row_is_not():
    better = {**RESULT, "i2t_r1": 12.0, "t2i_median_rank": 4.0}
    rows = dict(formatted_rows({"online": RESULT, "OffTri": better}))
    assert rows["OffTri"][0] == ("12.0", True)
    assert rows["online"][0] == ("10.0", False)
    assert rows["OffTri"][7] == ("4", True)
    assert not any(best for _, best in formatted_rows({"only": RESULT})[0][1])
