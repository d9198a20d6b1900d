"""Folders of photos: indexed when they are searched, and brought up to date by what has changed."""

from __future__ import annotations

import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from aoq.errors import UserError
from aoq.retrieval import sync
from aoq.retrieval.build import Contents, build_index
from aoq.retrieval.index import Index, IndexChangedError
from aoq.retrieval.matcher import Matcher
from aoq.retrieval.sync import Synced, remove_photos, sync_photos
from aoq.retrieval.target import open_target, photo_index
from aoq.storage import locked
from tests.commands import aoq
from tests.kills import die
from tests.retrieval.conftest import draw_photo


@pytest.fixture
def run(world):
    return world.runs["vse"]


@pytest.fixture
def photos(tmp_path):
    """Four photos, two of them in a folder."""
    for seed, name in enumerate(("a.png", "b.png", "trips/c.png", "trips/d.png")):
        draw_photo(tmp_path / "photos" / name, seed=200 + seed)
    return tmp_path / "photos"


def opened(target):
    return Index.open(target.index)


def vectors_by_id(index):
    rows = index.rows("images")[:].vectors.numpy()
    return {image.id: rows[image.number] for image in index.images}


def assert_as_if_made_anew(target, tmp_path):
    """The index holds what one of the same photos that is made anew holds."""
    index = opened(target)
    fresh = build_index(
        target.run, Contents(with_data=False, pictures=[target.photos]), out=tmp_path / "fresh"
    )
    assert {(i.id, i.content, i.picture) for i in index.images} == {
        (i.id, i.content, i.picture) for i in fresh.images
    }
    mine, theirs = vectors_by_id(index), vectors_by_id(fresh)
    assert all(np.allclose(mine[name], theirs[name], atol=1e-6) for name in theirs)
    for name in theirs:
        numbers = [next(i.number for i in each.images if i.id == name) for each in (index, fresh)]
        assert index.metadata.row(numbers[0]) == fresh.metadata.row(numbers[1])
    shutil.rmtree(tmp_path / "fresh")


def test_a_folder_is_indexed_when_it_is_first_searched_and_nothing_is_written_there(
    run, photos, capsys
):
    before = {path: path.stat().st_mtime_ns for path in [photos, *photos.rglob("*")]}
    target = open_target(photos, run=run)
    assert target.synced == Synced(added=4)
    assert target.index == photo_index(photos, run)
    assert before == {path: path.stat().st_mtime_ns for path in [photos, *photos.rglob("*")]}
    hits = Matcher.load(target.run, index=target.index).search("a red dog", top=9).hits
    assert {hit.id for hit in hits} == {"a.png", "b.png", "trips/c.png", "trips/d.png"}
    again = open_target(photos, run=run)
    assert (again.index, again.synced) == (target.index, Synced())


def test_what_changed_in_a_folder_changes_in_its_index(run, photos, tmp_path, monkeypatch):
    open_target(photos, run=run)
    draw_photo(photos / "e.png", seed=300)
    draw_photo(photos / "a.png", seed=301)
    (photos / "b.png").rename(photos / "trips" / "was b.png")
    (photos / "trips" / "d.png").unlink()
    os.utime(photos / "trips" / "c.png", (1, 1))
    shutil.copy(photos / "e.png", photos / "e again.png")
    target = open_target(photos, run=run)
    assert target.synced == Synced(added=1, changed=1, moved=1, removed=1)
    assert_as_if_made_anew(target, tmp_path)
    monkeypatch.setattr(sync, "hash_file", lambda path: pytest.fail("it is known by size and time"))
    assert open_target(photos, run=run).synced == Synced()


def test_a_removal_and_a_move_need_no_model(run, photos, monkeypatch):
    target = open_target(photos, run=run)
    (photos / "b.png").rename(photos / "moved.png")
    (photos / "a.png").unlink()
    monkeypatch.setattr("aoq.retrieval.target.QueryEncoder", None)
    assert open_target(photos, run=run).synced == Synced(moved=1, removed=1)
    assert [image.id for image in opened(target).images] == [
        "moved.png",
        "trips/c.png",
        "trips/d.png",
    ]


def test_without_sync_the_index_is_searched_as_it_is(run, photos):
    open_target(photos, run=run)
    (photos / "a.png").unlink()
    target = open_target(photos, run=run, sync=False)
    assert len(opened(target).images) == 4


def test_files_that_are_no_pictures_are_reported_once(run, photos, capsys):
    (photos / "broken.png").write_bytes(b"no picture")
    assert open_target(photos, run=run).synced == Synced(added=4, unusable=1)
    assert "broken.png" in capsys.readouterr().err
    assert open_target(photos, run=run).synced == Synced()
    assert "broken.png" not in capsys.readouterr().err
    draw_photo(photos / "broken.png", seed=302)
    assert open_target(photos, run=run).synced == Synced(added=1)


def test_a_folder_without_a_usable_picture_is_refused(run, tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "broken.png").write_bytes(b"no picture")
    with pytest.raises(UserError, match="holds no picture that can be used"):
        open_target(folder, run=run)


def test_photos_are_indexed_and_saved_some_at_a_time(run, photos, tmp_path, monkeypatch):
    monkeypatch.setattr(sync, "PHOTOS_AT_ONCE", 3)
    target = open_target(photos, run=run)
    assert [part.n_images for part in opened(target).manifest.parts] == [3, 1]
    (photos / "b.png").unlink()
    open_target(photos, run=run)
    assert [part.n_images for part in opened(target).manifest.parts] == [2, 1]
    assert_as_if_made_anew(target, tmp_path)


def test_many_small_parts_are_joined(run, photos, tmp_path, monkeypatch):
    monkeypatch.setattr(sync, "_SMALL_PARTS", 2)
    target = open_target(photos, run=run)
    for seed in (310, 311, 312):
        draw_photo(photos / f"{seed}.png", seed=seed)
        open_target(photos, run=run)
    assert [part.n_images for part in opened(target).manifest.parts] == [6, 1]
    assert_as_if_made_anew(target, tmp_path)


def test_killed_while_a_folder_is_indexed_the_same_command_continues(run, photos, tmp_path):
    for seed in range(3):
        draw_photo(photos / f"more-{seed}.png", seed=320 + seed)
    moment = ("aoq.retrieval.sync", "save_index", 2)
    die(moment, "index", photos, "--run", run, at_start="module.PHOTOS_AT_ONCE = 3")
    target = open_target(photos, run=run)
    assert target.synced == Synced(added=4), "three were saved"
    assert_as_if_made_anew(target, tmp_path)


# Captions and columns


def write_captions(path, *rows):
    path.write_text("\n".join(["image,caption,split,Lens Model,rating", *rows]) + "\n")
    return path


def test_a_captions_file_gives_texts_and_columns(run, photos, tmp_path):
    captions = write_captions(
        tmp_path / "captions.csv",
        "a.png,a red dog,test,Nokton,5",
        "a.png,a dog,test,Nokton,5",
        "trips/c.png,a tree,train,,3",
    )
    target = open_target(photos, run=run, captions=captions)
    index = opened(target)
    assert {(t.text, tuple(index.images[i].id for i in t.images)) for t in index.texts} == {
        ("a red dog", ("a.png",)),
        ("a dog", ("a.png",)),
        ("a tree", ("trips/c.png",)),
    }
    assert index.metadata.row(0) == {
        "folder": "",
        "name": "a.png",
        "date": None,
        "width": 96,
        "height": 96,
        "split": "test",
        "lens_model": "Nokton",
        "rating": 5,
    }
    found = index.allowed("rating >= 3 and folder = trips", "images")
    assert [index.images[number].id for number in found.numbers] == ["trips/c.png"]
    texts = index.allowed("lens_model = Nokton", "texts")
    assert {index.texts[number].text for number in texts.numbers} == {"a red dog", "a dog"}
    write_captions(captions, "b.png,a blue cup,,Zeiss,1")
    changed = open_target(photos, run=run)
    assert changed.synced == Synced(changed=4)
    assert [text.text for text in opened(changed).texts] == ["a blue cup"]
    assert open_target(photos, run=run).synced == Synced()


def test_a_captions_file_that_is_gone_is_named(run, photos, tmp_path):
    path = write_captions(tmp_path / "captions.csv", "a.png,a red dog,,,")
    open_target(photos, run=run, captions=path)
    path.unlink()
    with pytest.raises(UserError, match=r"the captions of .*, is gone; bring it back"):
        open_target(photos, run=run)
    assert len(opened(open_target(photos, run=run, sync=False)).texts) == 1


def test_an_index_is_not_written_among_other_files(run, photos):
    with pytest.raises(UserError, match="aoq did not write it as its index"):
        open_target(photos, run=run, index=photos)
    assert sorted(path.name for path in photos.iterdir()) == ["a.png", "b.png", "trips"]


def test_an_index_that_is_being_written_is_not_made_again(run, photos):
    folder = open_target(photos, run=run).index
    with locked(folder), pytest.raises(UserError, match="being written by another process"):
        open_target(photos, run=run, force=True)
    assert len(opened(open_target(photos, run=run)).images) == 4


def test_an_index_that_is_made_again_stays_until_the_other_is_complete(run, photos, monkeypatch):
    target = open_target(photos, run=run)
    assert target.index is not None
    before = (target.index / "index.json").read_bytes()
    monkeypatch.setattr("aoq.retrieval.sync.PHOTOS_AT_ONCE", 3)

    def full_disk(*arguments, **options):
        raise UserError("no space is left")

    with monkeypatch.context() as broken:
        broken.setattr("aoq.retrieval.sync.save_index", full_disk)
        with pytest.raises(UserError, match="no space is left"):
            open_target(photos, run=run, force=True)
    assert (target.index / "index.json").read_bytes() == before
    reader = opened(target)
    assert open_target(photos, run=run, force=True).synced == Synced(added=4)
    assert len(opened(target).images) == 4
    with pytest.raises(IndexChangedError), reader.unchanged():
        pass


def test_a_folder_that_another_process_indexes_is_waited_for(run, photos):
    folder = photo_index(photos, run)
    folder.mkdir(parents=True)
    with ThreadPoolExecutor() as pool:
        with locked(folder):
            second = pool.submit(open_target, photos, run=run)
            with pytest.raises(TimeoutError):
                second.result(timeout=2)
        assert second.result(timeout=60).synced == Synced(added=4)
    assert open_target(photos, run=run).synced == Synced()


def test_captions_are_not_ignored_when_photos_are_added(run, photos, tmp_path):
    path = write_captions(tmp_path / "captions.csv", "a.png,a red dog,,,")
    done = aoq("index", run, "--add", photos, "--captions", path)
    assert done.returncode == 2
    assert "--add can only be combined with --out" in done.stderr


def test_captions_of_other_photos_are_refused(run, photos, tmp_path):
    captions = write_captions(tmp_path / "captions.csv", "z.png,a dog,,,")
    with pytest.raises(UserError, match="names none of the photos"):
        open_target(photos, run=run, captions=captions)


def test_the_date_of_a_photo_is_read_from_its_head(run, photos):
    picture = Image.open(draw_photo(photos / "dated.png", seed=330))
    exif = Image.Exif()
    exif.get_ifd(0x8769)[0x9003] = "2023:06:01 10:20:30"
    picture.convert("RGB").save(photos / "dated.jpg", exif=exif)
    (photos / "dated.png").unlink()
    index = opened(open_target(photos, run=run))
    found = index.allowed("date = 2023-06", "images")
    assert [index.images[number].id for number in found.numbers] == ["dated.jpg"]
    assert index.metadata.row(int(found.numbers[0]))["date"] == "2023-06-01T10:20:30"


# Removal


def test_photos_are_removed_by_path_folder_and_pattern_and_stay_removed(run, photos, tmp_path):
    target = open_target(photos, run=run)
    assert remove_photos(target.run, [str(photos / "a.png")], index=target.index) == 1
    assert remove_photos(target.run, ["trips"], index=target.index) == 2
    assert [image.id for image in opened(target).images] == ["b.png"]
    assert open_target(photos, run=run).synced == Synced()
    with pytest.raises(UserError, match="is no photo of"):
        remove_photos(target.run, ["nowhere/*"], index=target.index)
    with pytest.raises(UserError, match="would remove all photos"):
        remove_photos(target.run, ["*"], index=target.index)
    assert open_target(photos, run=run, force=True).synced == Synced(added=4)


def test_images_of_a_split_are_removed_with_their_texts(world, run, tmp_path):
    index = build_index(run, out=tmp_path / "index")
    vectors = vectors_by_id(index)
    assert remove_photos(run, ["test-*"], index=index.folder) == 5
    left = Index.open(index.folder)
    assert [part.split for part in left.manifest.parts] == ["train", "dev"]
    assert all(np.array_equal(v, vectors[name]) for name, v in vectors_by_id(left).items())
    remove_photos(run, ["train-3.png"], index=index.folder)
    left = Index.open(index.folder)
    matcher = Matcher.load(run, index=left.folder)
    assert all(left.images[i].texts for text in left.texts for i in text.images)
    for text in left.texts[:5]:
        hits = matcher.images_for(text.number, top=99).hits
        assert [hit.correct for hit in hits].count(True) == len(text.images)


def test_a_run_s_photos_are_synced_where_its_index_is(world, run, photos, tmp_path):
    index = build_index(run, Contents(pictures=[photos]), out=tmp_path / "index")
    n_images = len(index.images)
    draw_photo(photos / "e.png", seed=340)
    (photos / "a.png").unlink()
    assert sync_photos(run, index=index.folder) == Synced(added=1, removed=1)
    assert len(Index.open(index.folder).images) == n_images
    build_index(run, out=tmp_path / "other")
    with pytest.raises(UserError, match="no photos of a folder"):
        sync_photos(run, index=tmp_path / "other")


def test_an_index_without_columns_filters_by_what_its_entries_say(run, tmp_path):
    index = build_index(run, out=tmp_path / "index")
    for path in index.folder.glob("*/columns.json"):
        assert json.loads(path.read_text())["width"]
        path.unlink()
    index = Index.open(index.folder)
    assert len(index.allowed("split = test and name like test-*", "images")) == 5
    assert len(index.allowed("width > 1", "images")) == 0
