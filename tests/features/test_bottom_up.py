"""Bottom-up files: every number where it belongs, every damaged field named by its line."""

from __future__ import annotations

import base64
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from aoq.errors import UserError
from aoq.features import bottom_up
from aoq.features.bottom_up import BottomUpFile
from aoq.features.tables import RegionFolder, region_folder, write_folder
from aoq.manifest import NAME
from tests.features.cases import SIZE, WIDTH, arrays, bottom_up_line, encoded


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Three images of three boxes."""
    path = tmp_path / "detected.tsv"
    path.write_bytes(b"".join(bottom_up_line(str(seed + 7), seed=seed) for seed in range(3)))
    return path


def test_features_and_boxes_are_those_of_the_file(file: Path) -> None:
    table = BottomUpFile.open(file)
    assert table.ids == ("7", "8", "9")
    assert table.shape == (3, WIDTH)
    assert table.source is None
    for row in (2, 0, 1):
        boxes, features = arrays(row, 3)
        found, shares = table.read(row)
        np.testing.assert_array_equal(found, features.astype(np.float16))
        np.testing.assert_allclose(shares * (*SIZE, *SIZE), boxes, rtol=1e-5)
        assert table.describe(row) == {"width": 640, "height": 480}


def test_a_header_empty_lines_and_line_ends_of_windows_are_understood(file: Path) -> None:
    header = "\t".join(bottom_up.COLUMNS).encode() + b"\r\n"
    plain = BottomUpFile.open(file)
    features, _ = plain.read(1)
    file.write_bytes(header + file.read_bytes().replace(b"\n", b"\r\n") + b"\r\n")
    table = BottomUpFile.open(file)
    assert table.ids == plain.ids
    np.testing.assert_array_equal(table.read(1)[0], features)
    with pytest.raises(UserError, match=r"line 2: .*the file has changed since"):
        plain.read(1)


def test_boxes_beyond_the_picture_end_at_its_edges(tmp_path: Path) -> None:
    fields = bottom_up_line("a", boxes=1).rstrip(b"\n").split(b"\t")
    fields[4] = base64.b64encode(np.array([-3, 5, 700, 481], np.float32).tobytes())
    (tmp_path / "a.tsv").write_bytes(b"\t".join(fields) + b"\n")
    _, boxes = BottomUpFile.open(tmp_path / "a.tsv").read(0)
    np.testing.assert_allclose(boxes, [[0, 5 / 480, 1, 1]], rtol=1e-6)


def test_uneven_numbers_of_boxes_need_a_choice(file: Path) -> None:
    with file.open("ab") as more:
        more.write(bottom_up_line("x", seed=5, boxes=5) + bottom_up_line("y", seed=6, boxes=2))
    with pytest.raises(UserError, match=r"2 to 5 boxes \(3 in 3, .*--regions 2"):
        BottomUpFile.open(file)
    with pytest.raises(UserError, match="line 5: the image y has 2 boxes, 1 such"):
        BottomUpFile.open(file, regions=3)
    table = BottomUpFile.open(file, regions=2)
    features, boxes = table.read(3)
    assert features.shape == (2, WIDTH)
    assert boxes.shape == (2, 4)
    np.testing.assert_array_equal(features, arrays(5, 5)[1][:2].astype(np.float16))


@pytest.mark.parametrize(
    ("column", "value", "sentence"),
    [
        (0, b" ", "image_id is empty"),
        (1, b"0", "image_w is '0'; expected a whole number above 0"),
        (2, b"many", "image_h is 'many'; expected a whole number above 0"),
        (2, b"-4", "image_h is '-4'"),
        (3, b"99999999", "num_boxes is '99999999'"),
        (3, b"5", "boxes are 48 bytes; expected float32 numbers"),
        (3, b"1", "boxes are 1 x 12 numbers; expected left, top"),
        (4, b"%%%", "boxes are not base64"),
        (4, b"", "boxes are 0 bytes"),
        (4, encoded(*[np.nan] * 12), "boxes hold NaN"),
        (
            4,
            encoded(1, 1, 9, 9, 1, 9, 9, 1, 9, 1, 1, 9),
            "box 2 of 3 is [1.0, 9.0, 9.0, 1.0]; expected left, top, right and bottom, in this",
        ),
        (5, b"abc", "features are not base64"),
        (5, encoded(*[1] * 16), "features are 64 bytes"),
        (5, encoded(*[1] * 15), "5 features per box; expected 16 as before"),
        (5, encoded(*[np.inf] * 48), "features hold NaN, infinite or enormous numbers"),
        (5, encoded(*[1e6] * 48), "features hold NaN, infinite or enormous numbers"),
    ],
)
def test_a_damaged_field_is_refused_with_its_line(
    file: Path, column: int, value: bytes, sentence: str
) -> None:
    lines = file.read_bytes().splitlines()
    fields = lines[1].split(b"\t")
    fields[column] = value
    lines[1] = b"\t".join(fields)
    file.write_bytes(b"\n".join(lines))
    with pytest.raises(UserError) as caught:
        BottomUpFile.open(file)
    (problem,) = caught.value.problems
    assert problem.startswith(f"{file}, line 2: ")
    assert sentence in problem


def test_everything_damaged_is_named_together(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"three\tcolumns\tonly\n" + bottom_up_line("8"))
    with pytest.raises(UserError) as caught:
        BottomUpFile.open(file)
    assert [problem.removeprefix(f"{file}, ") for problem in caught.value.problems] == [
        "line 4: 3 columns; expected 6, separated by tabs: " + ", ".join(bottom_up.COLUMNS) + ".",
        "line 5: the image 8 is already in line 2.",
    ]


def test_a_file_of_other_columns_is_left_after_its_first_line(file: Path) -> None:
    header = b"image_id\tboxes\n"
    file.write_bytes(header + b"three\tcolumns\tonly\n" * 3)
    with pytest.raises(UserError) as caught:
        BottomUpFile.open(file)
    (problem,) = caught.value.problems
    assert problem.startswith(f"{file}, line 1: 2 columns; expected 6")


@pytest.mark.parametrize(
    ("write", "sentence"),
    [
        (lambda path: path.write_bytes(b""), "holds no images"),
        (lambda path: path.write_bytes(bottom_up_line("a")[:-40]), "line 1: features are"),
        (lambda path: path.write_bytes(b"image,caption\na.jpg,a dog\n"), "line 1: 1 columns"),
        (lambda path: path.mkdir(), "cannot be read"),
    ],
)
def test_what_is_not_a_bottom_up_file_is_refused(
    tmp_path: Path, write: Callable[[Path], object], sentence: str
) -> None:
    write(tmp_path / "a.tsv")
    with pytest.raises(UserError, match=sentence):
        BottomUpFile.open(tmp_path / "a.tsv")


def test_a_line_without_end_is_refused_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bottom_up, "LONGEST_LINE", 2**16)
    (tmp_path / "a.tsv").write_bytes(b"x" * 2**22)
    tracemalloc.start()
    with pytest.raises(UserError, match="line 1: more than 65,536 bytes; expected"):
        BottomUpFile.open(tmp_path / "a.tsv")
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    with (tmp_path / "large.tsv").open("wb") as file:
        for number in range(400):
            file.write(bottom_up_line(str(number), seed=number, boxes=100))
    tracemalloc.start()
    table = BottomUpFile.open(tmp_path / "large.tsv")
    for row in range(400):
        table.read(row)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (tmp_path / "large.tsv").stat().st_size > 4 * 10**6
    assert peak < 10**6


def test_a_folder_of_regions_holds_all_of_the_file(file: Path, tmp_path: Path) -> None:
    table = BottomUpFile.open(file)
    with region_folder(tmp_path / "out", force=False) as temporary:
        write_folder(table, temporary)
    opened = RegionFolder.open(tmp_path / "out")
    assert opened.ids == table.ids
    assert table.ids is table.ids, "made once, not for every row"
    assert opened.source is None
    for row in range(3):
        for kept, original in zip(opened.read(row), table.read(row), strict=True):
            np.testing.assert_array_equal(kept, original)
        assert opened.describe(row) == table.describe(row)
    assert opened.first_regions(2).shape == (2, WIDTH)
    with pytest.raises(UserError, match="the first 4 cannot be selected"):
        opened.first_regions(4)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda folder: (folder / "regions.json").unlink(), "regions.json is missing"),
        (lambda folder: (folder / "regions.json").write_text("{"), "not valid JSON"),
        (lambda folder: (folder / "regions.json").write_text('{"images": 3}'), "images is 3"),
        (lambda folder: (folder / "features.npy").unlink(), "features.npy is missing"),
        (lambda folder: (folder / "boxes.npy").write_bytes(b"no array"), "boxes.npy cannot be"),
        (
            lambda folder: np.save(folder / "features.npy", np.zeros((2, 3, 4), np.float16)),
            "has 3 ids, features of",
        ),
    ],
)
def test_a_damaged_folder_of_regions_is_refused(
    file: Path, tmp_path: Path, damage: Callable[[Path], object], sentence: str
) -> None:
    with region_folder(tmp_path / "out", force=False) as temporary:
        write_folder(BottomUpFile.open(file), temporary)
    damage(tmp_path / "out")
    (tmp_path / "out" / NAME).unlink()  # as one that an earlier version wrote
    with pytest.raises(UserError, match=sentence):
        RegionFolder.open(tmp_path / "out")
