"""Many pictures become regions, once each; what cannot be used is named."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from aoq.distributed import Processes
from aoq.errors import UserError
from aoq.features import extract
from aoq.features.extract import (
    Extraction,
    extract_in_shares,
    extract_pictures,
    load_regions,
)
from aoq.features.regions import DEFAULT_SOURCE, GRIDS, RegionSource
from tests.features.cases import content, damaged, gradient, photos
from tests.features.conftest import MeanColour
from tests.processes import in_threads

pytestmark = pytest.mark.usefixtures("own_cache")


def grey(path: Path, value: int) -> Path:
    Image.new("RGB", (30, 20), (value, value, value)).save(path)
    return path


def test_every_picture_has_its_regions(tmp_path: Path, mean_colour: type[MeanColour]) -> None:
    pictures = [grey(tmp_path / f"{value}.png", value) for value in (90, 10, 50, 70, 30)]
    (tmp_path / "again.png").write_bytes(pictures[1].read_bytes())
    stored = extract_pictures([*pictures, tmp_path / "again.png"], DEFAULT_SOURCE).stored
    values = [load_regions(place, DEFAULT_SOURCE)[0, 0] for place in stored.values()]
    assert list(stored) == [*pictures, tmp_path / "again.png"]
    assert values == [90, 10, 50, 70, 30, 10]
    assert mean_colour.seen() == 5


def test_a_second_grid_extracts_nothing(tmp_path: Path, mean_colour: type[MeanColour]) -> None:
    picture = grey(tmp_path / "a.png", 90)
    for grid in GRIDS:
        source = RegionSource(grid=grid)
        (place,) = extract_pictures([picture], source).stored.values()
        assert load_regions(place, source).shape == (grid * grid, 1280)
    assert mean_colour.seen() == 1


def test_processes_extract_a_share_each_and_refuse_the_same(
    tmp_path: Path, mean_colour: type[MeanColour]
) -> None:
    pictures = [grey(tmp_path / f"{value}.png", value) for value in (90, 10, 50, 70, 30)]
    alone = extract_pictures(pictures[:1], DEFAULT_SOURCE)

    def extract_all(processes: Processes) -> Extraction:
        return extract_in_shares(pictures, DEFAULT_SOURCE, processes=processes)

    first, second = in_threads(extract_all)
    assert first == second
    assert list(first.stored) == pictures
    assert first.stored[pictures[0]] == alone.stored[pictures[0]]
    assert mean_colour.seen() == 5

    pictures.append(tmp_path / "damaged.jpg")
    pictures[-1].write_bytes(content(gradient((300, 300)), "JPEG")[:1000])

    def refuse(processes: Processes) -> str:
        with pytest.raises(UserError) as error:
            extract_all(processes)
        return str(error.value)

    (sentence,) = set(in_threads(refuse))
    assert "damaged.jpg" in sentence


@pytest.mark.parametrize("workers", [0, 1])
def test_an_interrupted_extraction_goes_on_where_it_stopped(
    tmp_path: Path,
    mean_colour: type[MeanColour],
    monkeypatch: pytest.MonkeyPatch,
    own_cache: Path,
    workers: int,
) -> None:
    pictures = [grey(tmp_path / f"{value}.png", value) for value in range(10)]
    places = []

    def interrupted(place: Path, rows: Any) -> None:
        places.append(place)
        if len(places) > extract.BATCH:
            raise KeyboardInterrupt
        keep(place, rows)

    keep = extract.keep_array
    monkeypatch.setattr(extract, "keep_array", interrupted)
    with pytest.raises(KeyboardInterrupt):
        extract_pictures(pictures, DEFAULT_SOURCE, workers=workers)
    kept = [path for path in own_cache.rglob("*") if path.is_file()]
    assert sorted(kept) == sorted(places[: extract.BATCH])
    monkeypatch.setattr(extract, "keep_array", keep)
    mean_colour.batches.clear()
    extract_pictures(pictures, DEFAULT_SOURCE)
    assert mean_colour.seen() == len(pictures) - extract.BATCH


def test_a_killed_extraction_keeps_what_was_done_and_leaves_no_process(
    tmp_path: Path, tiny_models: Path, own_cache: Path
) -> None:
    pictures = photos(tmp_path / "photos", 60)
    program = f"""
import time
from pathlib import Path
from aoq.features import extract
from aoq.features.regions import RegionSource
if __name__ == "__main__":
    keep_array = extract.keep_array
    def slowly(place, rows):
        keep_array(place, rows)
        time.sleep(0.2)
    extract.keep_array = slowly
    source = RegionSource.of_backbone({str(tiny_models / "vit")!r})
    pictures = sorted(Path({str(tmp_path / "photos")!r}).iterdir())
    extract.extract_pictures(pictures, source, workers=1)
"""
    (tmp_path / "program.py").write_text(program)
    running = subprocess.Popen([sys.executable, tmp_path / "program.py"], start_new_session=True)
    deadline = time.monotonic() + 60
    while len(list(own_cache.rglob("*.npy"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    running.kill()
    running.wait()
    while _members(running.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert _members(running.pid) == []
    kept = len(list(own_cache.rglob("*.npy")))
    assert 3 <= kept < len(pictures)
    source = RegionSource.of_backbone(str(tiny_models / "vit"))
    stored = extract_pictures(pictures, source).stored
    assert all(load_regions(place, source).shape == (36, 32) for place in stored.values())
    assert len(list(own_cache.rglob("*.npy"))) == len(pictures)


def _members(group: int) -> list[int]:
    """Processes of a group that still live."""
    living = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            living.append(int(status.parent.name))
    return living


def test_regions_are_the_same_for_any_batch_thread_and_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_models: Path
) -> None:
    """To the last bit, for the network of the default and for a transformer."""
    pictures = photos(tmp_path / "photos", 7)
    for backbone in ("efficientnet-lite0", str(tiny_models / "clip")):
        source = RegionSource.of_backbone(backbone)
        results = []
        for threads, workers, chosen in (
            (1, 0, pictures),
            (2, 0, pictures[::-1]),
            (2, 2, pictures),
        ):
            monkeypatch.setenv("AOQ_CACHE", str(tmp_path / f"{threads}-{workers}-{source.id}"))
            torch.set_num_threads(threads)
            stored = extract_pictures(chosen[:2], source, workers=workers).stored
            stored |= extract_pictures(chosen, source, workers=workers).stored
            results.append(np.stack([load_regions(stored[path], source) for path in pictures]))
        torch.set_num_threads(1)
        np.testing.assert_array_equal(results[0], results[1])
        np.testing.assert_array_equal(results[0], results[2])


def test_the_cache_knows_a_picture_by_its_content(
    tmp_path: Path, mean_colour: type[MeanColour], own_cache: Path
) -> None:
    picture = grey(tmp_path / "a.png", 40)
    extract_pictures([picture], DEFAULT_SOURCE)
    extract_pictures([picture.rename(tmp_path / "moved.png")], DEFAULT_SOURCE)
    assert mean_colour.seen() == 1
    (stored,) = own_cache.rglob("*.npy")
    assert stored.parent.parent == own_cache / "features" / DEFAULT_SOURCE.id
    assert stored.name.startswith(stored.parent.name)
    extract_pictures([grey(tmp_path / "moved.png", 41)], DEFAULT_SOURCE)
    assert mean_colour.seen() == 2


def test_a_picture_that_changes_while_it_is_read_is_not_kept_as_the_old_one(
    tmp_path: Path, mean_colour: type[MeanColour], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = grey(tmp_path / "first.png", 10), grey(tmp_path / "second.png", 20)
    old, decode = first.read_bytes(), extract.decode

    def decode_late(picture: Path, canvas: Any) -> Any:
        if picture == first:
            grey(first, 90)
        return decode(picture, canvas)

    monkeypatch.setattr(extract, "decode", decode_late)
    extraction = extract_pictures([first, second], DEFAULT_SOURCE)
    assert list(extraction.stored) == [second]
    assert extraction.skipped[first].reason == "was changed while it was read"
    monkeypatch.setattr(extract, "decode", decode)
    first.write_bytes(old)
    (place,) = extract_pictures([first], DEFAULT_SOURCE).stored.values()
    assert load_regions(place, DEFAULT_SOURCE)[0, 0] == 10


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AOQ_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert extract.cache_folder() == Path("/elsewhere/aoq")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert extract.cache_folder() == Path.home() / ".cache" / "aoq"


@pytest.mark.parametrize(
    "damage",
    [
        lambda place: place.write_bytes(place.read_bytes()[:1000]),
        lambda place: place.write_bytes(b""),
        lambda place: place.write_bytes(b"PK\x03\x04 no archive"),
        lambda place: np.save(place, np.zeros((4, 1280), np.float16)),
        lambda place: np.save(place, np.zeros((36, 1280), np.float64)),
        lambda place: np.save(place, np.array([{}]), allow_pickle=True),
    ],
)
def test_what_is_damaged_in_the_cache_is_extracted_again(
    tmp_path: Path, mean_colour: type[MeanColour], damage: Callable[[Path], object]
) -> None:
    pictures = [grey(tmp_path / "a.png", 40), grey(tmp_path / "b.png", 50)]
    place, _ = extract_pictures(pictures, DEFAULT_SOURCE).stored.values()
    damage(place)
    with pytest.raises(UserError, match=f"{place} in the cache is damaged or gone; start again"):
        load_regions(place, DEFAULT_SOURCE)
    extract_pictures(pictures, DEFAULT_SOURCE)
    assert load_regions(place, DEFAULT_SOURCE)[0, 0] == 40
    assert mean_colour.seen() == 3


@pytest.mark.parametrize("kept", [1, 2])
def test_regions_of_another_width_are_extracted_again(
    tmp_path: Path, mean_colour: type[MeanColour], kept: int
) -> None:
    """Beside sound ones, and beside pictures that are not extracted yet."""
    pictures = [grey(tmp_path / "a.png", 40), grey(tmp_path / "b.png", 50)]
    place, *_ = extract_pictures(pictures[:kept], DEFAULT_SOURCE).stored.values()
    np.save(place, np.zeros((36, 7), np.float16))
    stored = extract_pictures(pictures, DEFAULT_SOURCE).stored
    assert [load_regions(at, DEFAULT_SOURCE).shape for at in stored.values()] == [(36, 1280)] * 2


def test_a_name_that_is_not_utf8_is_left_out(tmp_path: Path, mean_colour: type[MeanColour]) -> None:
    unnameable = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.png"))
    grey(unnameable, 1)
    good = grey(tmp_path / "café.png", 2)
    extraction = extract_pictures([unnameable, good], DEFAULT_SOURCE)
    assert list(extraction.stored) == [good]
    assert extraction.skipped[unnameable].reason == "has a name that is not UTF-8"
    assert extraction.problems[0].endswith("; rename it.")


def test_what_cannot_be_used_is_left_out_with_its_reason(
    tmp_path: Path, mean_colour: type[MeanColour]
) -> None:
    text, empty, cut = damaged(tmp_path)
    (tmp_path / "cut again.jpg").write_bytes(cut.read_bytes())
    (tmp_path / "loop.jpg").symlink_to("loop.jpg")
    os.mkfifo(tmp_path / "pipe.jpg")
    others = [tmp_path / name for name in ("cut again.jpg", "loop.jpg", "pipe.jpg", "none.jpg")]
    good = grey(tmp_path / "a.png", 1)
    extraction = extract_pictures([text, good, empty, cut, *others], DEFAULT_SOURCE)
    assert list(extraction.stored) == [good]
    assert {path.name: fault.reason for path, fault in extraction.skipped.items()} == {
        "text.jpg": "is not a picture that can be read",
        "empty.png": "is not a picture that can be read",
        "cut.jpg": "is damaged or truncated",
        "cut again.jpg": "is damaged or truncated",
        "loop.jpg": "cannot be read",
        "pipe.jpg": "is not a file",
        "none.jpg": "cannot be read",
    }
    assert extraction.problems[3].startswith(f"{tmp_path / 'cut again.jpg'} is damaged or trunc")


def test_a_build_refuses_what_is_not_a_picture_before_anything_is_computed(
    tmp_path: Path, mean_colour: type[MeanColour], own_cache: Path
) -> None:
    text, empty, cut = damaged(tmp_path)
    pictures = [grey(tmp_path / "a.png", 1), text, empty, cut]
    with pytest.raises(UserError) as caught:
        extract_pictures(pictures, DEFAULT_SOURCE, skip=False)
    assert [problem.split()[0] for problem in caught.value.problems] == [str(text), str(empty)]
    assert mean_colour.seen() == 0
    assert not own_cache.exists()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_build_refuses_truncated_pictures_and_the_others_are_kept(
    tmp_path: Path, mean_colour: type[MeanColour], own_cache: Path, workers: int
) -> None:
    *_, cut = damaged(tmp_path)
    pictures = [cut, grey(tmp_path / "a.png", 1)]
    with pytest.raises(UserError, match=f"{cut} is damaged or truncated"):
        extract_pictures(pictures, DEFAULT_SOURCE, skip=False, workers=workers)
    assert len(list(own_cache.rglob("*.npy"))) == mean_colour.seen() == 1


def test_a_worker_that_dies_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extract, "decode_pictures", _die)
    with pytest.raises(UserError, match=r"process that decodes .* died.*--workers"):
        extract_pictures([grey(tmp_path / "a.png", 1)], DEFAULT_SOURCE, workers=1)


def _die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_nothing_is_ever_far_ahead_of_what_is_stored(
    tmp_path: Path, mean_colour: type[MeanColour], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many pictures there are, few are decoded at any moment."""
    monkeypatch.setattr(extract, "UNDER_WAY", 3)
    started, ahead = [], []
    work = extract.partial
    monkeypatch.setattr(extract, "partial", lambda *call: started.append(call) or work(*call))

    def counting(place: Path, rows: Any) -> None:
        keep(place, rows)
        ahead.append(len(started) * extract.BATCH - len(ahead))

    keep = extract.keep_array
    monkeypatch.setattr(extract, "keep_array", counting)
    extract_pictures([grey(tmp_path / f"{n}.png", n) for n in range(80)], DEFAULT_SOURCE)
    assert len(ahead) == 80
    assert max(ahead) <= (3 + 1) * extract.BATCH
