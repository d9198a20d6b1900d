"""Indexes: whole or absent, of one model, and the same whichever way photos got in."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from aoq.data.splits import open_dataset
from aoq.errors import UserError
from aoq.manifest import record
from aoq.retrieval.build import (
    Contents,
    Proposing,
    add_photos,
    build_index,
    change_proposals,
)
from aoq.retrieval.index import Index, IndexChangedError
from aoq.retrieval.matcher import Matcher
from aoq.runs.best_round import best_round
from aoq.runs.checkpoint import hash_model
from aoq.runs.encodings import kept_encodings
from aoq.runs.judge import evaluate_run
from aoq.runs.mine import mine_run
from aoq.storage import hash_file, locked
from aoq.training.inputs import open_training_data
from aoq.training.two_rounds import run_recipe, train_round
from tests.conftest import write_precomp
from tests.kills import die
from tests.retrieval.conftest import SIZES, draw_photo
from tests.training.cases import small_recipe


@pytest.fixture
def run(world, tmp_path):
    """A copy of the cheapest run, without an index, to do anything with."""
    return copied(world.runs["vse"], tmp_path / "run")


def copied(run, to):
    return shutil.copytree(run, to, ignore=shutil.ignore_patterns("index", "encodings"))


@pytest.fixture
def album(world, tmp_path):
    """Two photos that are nowhere else, one of them twice, and one of the data set."""
    folder = tmp_path / "album"
    draw_photo(folder / "one.png", seed=100)
    draw_photo(folder / "more" / "two.png", seed=101)
    shutil.copy(folder / "one.png", folder / "more" / "one again.png")
    shutil.copy(world.photos / "test-0.png", folder / "known.png")
    return folder


def names(index):
    return [image.id for image in index.images]


def vectors(index, kind):
    return index.rows(kind)[:].vectors


def part_of(index, split):
    """The folder of a split inside an index."""
    (folder,) = index.glob(f"{split}-*")
    return folder


# What is in it


def test_an_index_holds_all_splits_in_order(world, run):
    index = build_index(run)
    assert index.folder == run / "index"
    assert [part.split for part in index.manifest.parts] == ["train", "dev", "test"]
    datasets = [open_dataset(world.data, split) for split in SIZES]
    assert names(index) == [name for dataset in datasets for name in dataset.image_ids]
    assert [text.text for text in index.texts] == [
        caption for dataset in datasets for caption in dataset.captions
    ]
    assert index.manifest.fingerprints == {d.split: d.fingerprint for d in datasets}
    assert index.manifest.data == str(world.data)


def test_an_index_can_hold_some_splits_only_and_keeps_what_is_known_of_the_model(run):
    result = evaluate_run(run, split="test")
    index = build_index(run, Contents(splits=["test"]))
    assert len(index.images) == SIZES["test"]
    assert index.manifest.results["test"]["rsum"] == pytest.approx(result.rsum, abs=1e-3)
    twice = build_index(run, Contents(splits=["test", "test"]), force=True)
    assert twice.images == index.images
    index = twice
    with pytest.raises(UserError, match="no split 'nowhere'"):
        build_index(run, Contents(splits=["nowhere"]), force=True)
    assert Index.open(run / "index").manifest == index.manifest


def test_the_best_round_of_a_run_is_indexed_and_found_by_either_name(world, tmp_path):
    run_recipe(tmp_path / "run", small_recipe(world.data))
    index = build_index(tmp_path / "run", Contents(splits=["test"]))
    best = best_round(tmp_path / "run").path
    assert index.folder == best / "index"
    for name in ("run", f"run/{best.name}"):
        matcher = Matcher.load(tmp_path / name)
        assert matcher.run == best
        assert matcher.name == f"run-{best.name}"


def test_what_mining_encoded_is_taken_over_and_not_encoded_again(world, run, monkeypatch):
    alone = build_index(run, out=run / "alone")
    mine_run(run, run / "lists.safetensors")
    assert kept_encodings(
        run, open_dataset(world.data, "train"), model_hash=hash_model(run)
    ).is_dir()
    encoded = []
    real = type(open_training_data(small_recipe(world.data)).train).regions
    monkeypatch.setattr(
        "aoq.data.collate.Collator.regions",
        lambda self, ids: encoded.append(self.dataset.split) or real(self, ids),
    )
    index = build_index(run)
    assert set(encoded) == {"dev", "test"}
    assert torch.equal(vectors(index, "images"), vectors(alone, "images"))


def test_a_precomp_folder_can_be_searched_in_words_but_pictures_cannot_be_read(tmp_path):
    recipe = small_recipe(write_precomp(tmp_path / "precomp"))
    train_round(tmp_path / "run", recipe, open_training_data(recipe), which="one")
    build_index(tmp_path / "run")
    matcher = Matcher.load(tmp_path / "run")
    assert len(matcher.search("red ball", top=3).hits) == 3
    photo = draw_photo(tmp_path / "photo.png", seed=1)
    with pytest.raises(UserError, match="cannot read pictures, because nothing says"):
        matcher.texts_for(photo)
    (tmp_path / "precomp").rename(tmp_path / "moved")
    with pytest.raises(UserError, match=r"data set .*precomp is not there.*bring it"):
        Matcher.load(tmp_path / "run").texts_for(photo)


# Photos


def test_a_split_that_another_contains_is_not_indexed_twice(tmp_path):
    data = write_precomp(tmp_path / "precomp")
    for part in ("ims.npy", "caps.txt"):
        shutil.copy(data / f"test_{part}", data / f"testall_{part}")
    recipe = small_recipe(data)
    train_round(tmp_path / "run", recipe, open_training_data(recipe), which="one")
    found = build_index(tmp_path / "run")
    assert [part.split for part in found.manifest.parts] == ["train", "dev", "testall"]
    found = build_index(tmp_path / "run", Contents(splits=("test", "testall")), force=True)
    assert [part.split for part in found.manifest.parts] == ["test", "testall"]


def test_adding_photos_gives_what_indexing_them_at_once_gives(run, album):
    before = build_index(run, out=run / "later")
    added = add_photos(run, album, index=run / "later")
    assert (added.added, added.present) == (2, 2)
    later = Index.open(run / "later")
    at_once = build_index(run, Contents(pictures=[album]))
    assert later.images == at_once.images
    assert names(later) == [*names(before), "more/one again.png", "more/two.png"]
    assert torch.equal(vectors(later, "images"), vectors(at_once, "images"))
    assert later.images[-1].texts == ()
    assert later.images[-1].split is None


def test_photos_that_are_there_are_not_added_twice(run, album):
    build_index(run)
    add_photos(run, album)
    once = Index.open(run / "index")
    again = add_photos(run, album)
    assert (again.added, again.present) == (0, 4)
    assert Index.open(run / "index").manifest == once.manifest
    draw_photo(album / "three.png", seed=102)
    assert add_photos(run, album).added == 1
    assert names(Index.open(run / "index")) == [*names(once), "three.png"]


def test_photos_that_moved_are_known_by_their_content(run, album):
    index = build_index(run, Contents(pictures=[album]))
    assert all(image.content == hash_file(image.picture) for image in index.images)
    moved = album.rename(album.parent / "moved")
    assert add_photos(run, moved).added == 0


def test_a_link_to_a_photo_is_indexed_as_the_photo_it_leads_to(run, tmp_path):
    photo = draw_photo(tmp_path / "elsewhere" / "photo.png", seed=100)
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "link.png").symlink_to(photo)
    index = build_index(run, Contents(with_data=False, pictures=[tmp_path / "links"]))
    assert [(image.id, image.picture) for image in index.images] == [("link.png", photo.resolve())]


def test_photos_alone_can_be_indexed_and_have_no_texts_to_find(run, album):
    index = build_index(run, Contents(with_data=False, pictures=[album]))
    matcher = Matcher.load(run)
    assert sorted(hit.id for hit in matcher.search("red ball").hits) == sorted(names(index))
    assert all(hit.text == "" for hit in matcher.search("red ball").hits)
    with pytest.raises(UserError, match="holds no texts"):
        matcher.texts_for(0)


def test_a_photo_that_was_added_is_found_by_itself_like_any_image(world, tmp_path, album):
    run = copied(world.runs["bfan"], tmp_path / "bfan")
    build_index(run)
    add_photos(run, album)
    matcher = Matcher.load(run)
    entry = matcher.index.images[-1]
    encoded = matcher.encoder.encode_picture(entry.picture).vectors
    torch.testing.assert_close(encoded[0], vectors(matcher.index, "images")[-1], atol=1e-5, rtol=0)
    assert matcher.attention(entry.number, "red ball").boxes.shape == (4, 4)


def test_pictures_that_cannot_be_used_are_left_out_and_named(run, album, capsys):
    (album / "broken.jpg").write_bytes(b"no picture")
    build_index(run)
    assert add_photos(run, album).added == 2
    assert "broken.jpg" in capsys.readouterr().err
    (album.parent / "phone").mkdir()
    (album.parent / "phone/one.heic").write_bytes(b"a format of phones")
    with pytest.raises(UserError, match=r"does not end like a picture \(.heic 1\)"):
        add_photos(run, album.parent / "phone")


# Teachers


def of_split(entries, split):
    return [entry for entry in entries if entry.split == split]


def test_a_teacher_that_proposes_everything_has_a_recall_of_one(world, tmp_path):
    run = copied(world.runs["bfan"], tmp_path / "bfan")
    proposing = Proposing(teacher=world.runs["vse"], proposals=1000)
    index = build_index(run, proposing=proposing)
    perfect = {"r1": 1, "r5": 1, "r10": 1}
    assert index.manifest.teacher.recall == {
        "t2i": {"queries": len(of_split(index.texts, "test")), **perfect},
        "i2t": {"queries": len(of_split(index.images, "test")), **perfect},
    }


@pytest.mark.parametrize(
    ("splits", "tried"), [((), "test"), (("train", "dev"), "dev"), (("train",), None)]
)
def test_recall_is_that_of_entries_the_model_was_not_trained_on(world, tmp_path, splits, tried):
    index = build_index(
        world.runs["bfan"],
        Contents(splits=splits),
        out=tmp_path / "index",
        proposing=Proposing(teacher=world.runs["vse"], proposals=2),
    )
    record = index.manifest.teacher
    assert record == Index.open(tmp_path / "index").manifest.teacher
    assert record.recall_split == tried
    queries = of_split(index.images, tried) if tried else index.images
    assert record.recall["i2t"]["queries"] == len(queries)


def test_recall_is_the_share_of_the_exact_answers_that_is_found(world, tmp_path, matchers):
    run = copied(world.runs["bfan"], tmp_path / "bfan")
    build_index(run, proposing=Proposing(teacher=world.runs["vse"], proposals=12))
    matcher, exact = Matcher.load(run), matchers["bfan"]
    assert matcher.proposer.run == world.runs["vse"]
    recall = matcher.index.manifest.teacher.recall
    found = {depth: [] for depth in (1, 5, 10)}
    tried = of_split(matcher.index.texts, "test")
    for text in tried:
        answer = matcher.images_for(text.number, top=10)
        assert not answer.exact
        for depth, shares in found.items():
            ids = {hit.number for hit in answer.hits[:depth]}
            best = {hit.number for hit in exact.images_for(text.number, top=depth).hits}
            shares.append(len(ids & best) / depth)
    assert recall["t2i"]["queries"] == len(tried)
    for depth, shares in found.items():
        assert recall["t2i"][f"r{depth}"] == pytest.approx(np.mean(shares), abs=1e-3)
    assert 0 < recall["t2i"]["r10"] < 1

    more = change_proposals(run, 1000).manifest.teacher
    assert more == Index.open(run / "index").manifest.teacher
    assert more.proposals == 1000
    assert more.recall["i2t"]["r10"] == 1
    assert Matcher.load(run).search("red ball").exact


def test_a_teacher_that_cannot_help_is_refused(world, tmp_path):
    run = copied(world.runs["bfan"], tmp_path / "bfan")
    with pytest.raises(UserError, match="as slow to score"):
        build_index(run, proposing=Proposing(teacher=world.runs["scan"]))
    with pytest.raises(UserError, match="without a teacher"):
        build_index(world.runs["vse"], out=tmp_path / "x", proposing=Proposing(teacher=run))
    build_index(run)
    with pytest.raises(UserError, match="has no teacher"):
        change_proposals(run, 3)
    assert not (tmp_path / "x").exists()


def test_photos_are_added_for_the_teacher_too(world, tmp_path, album):
    run = copied(world.runs["bfan"], tmp_path / "bfan")
    build_index(run, proposing=Proposing(teacher=world.runs["vse"], proposals=50))
    assert add_photos(run, album).unmeasured == 50
    matcher = Matcher.load(run)
    assert matcher.index.manifest.teacher.recall == {}
    assert len(matcher.search("red ball", top=100).hits) == len(matcher.index.images) == 24


def test_a_teacher_that_changed_since_is_refused(world, tmp_path):
    run, teacher = (copied(world.runs[name], tmp_path / name) for name in ("bfan", "vse"))
    build_index(run, proposing=Proposing(teacher=teacher, sample=2))
    shutil.copy(world.runs["vsrn"] / "vocabulary.json", teacher / "vocabulary.json")
    path = teacher / "vocabulary.json"
    path.write_text(path.read_text() + " ")
    record(path)
    with pytest.raises(UserError, match="holds another model than the teacher"):
        Matcher.load(run)


def test_a_teacher_that_moved_is_named_as_what_it_is(world, tmp_path):
    run, teacher = (copied(world.runs[name], tmp_path / name) for name in ("bfan", "vse"))
    build_index(run, proposing=Proposing(teacher=teacher, sample=2))
    teacher.rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=f"{teacher} is the teacher that .* bring it back"):
        Matcher.load(run)


# Refused


def test_without_an_index_a_sentence_says_how_to_make_one(run):
    with pytest.raises(UserError, match=f"aoq index {run}"):
        Matcher.load(run)


def test_an_index_is_never_replaced_unless_asked_for_and_nothing_else_ever_is(run):
    build_index(run)
    with pytest.raises(UserError, match="--force"):
        build_index(run)
    build_index(run, Contents(splits=["dev"]), force=True)
    assert len(Index.open(run / "index").images) == SIZES["dev"]
    (run.parent / "mine").mkdir()
    (run.parent / "mine" / "diary.txt").write_text("dear diary")
    with pytest.raises(UserError, match="aoq did not write it as its index"):
        build_index(run, out=run.parent / "mine", force=True)
    assert (run.parent / "mine" / "diary.txt").read_text() == "dear diary"
    (run / "index" / "diary.txt").write_text("dear diary")
    with pytest.raises(UserError, match=r"diary\.txt, which aoq did not write"):
        build_index(run, force=True)
    assert (run / "index" / "diary.txt").read_text() == "dear diary"


def test_an_index_that_is_being_written_is_not_written_by_another(run, album):
    with pytest.raises(UserError, match="holds no index"):
        add_photos(run, album)
    build_index(run)
    with locked(run / "index"):
        for write in (
            lambda: build_index(run, force=True),
            lambda: add_photos(run, album),
            lambda: change_proposals(run, 3),
        ):
            with pytest.raises(UserError, match="is being written by another process"):
                write()


def test_an_index_of_another_model_is_refused(world, run):
    build_index(run)
    other = world.runs["vsrn"]
    with pytest.raises(UserError, match="another model"):
        Matcher.load(other, index=run / "index")
    with pytest.raises(UserError, match="another model"):
        add_photos(other, world.photos, index=run / "index")


def test_features_of_another_width_are_refused(run, precomp):
    with pytest.raises(UserError, match="width 6"):
        build_index(run, Contents(data=precomp))
    assert not (run / "index").exists()


def cut(path):
    path.write_bytes(path.read_bytes()[:-7])


def edit(**changes):
    def apply(path):
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return apply


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("index.json", cut),
        ("index.json", edit(parts=[])),
        ("index.json", edit(parts=[{"name": "train"}])),
        ("index.json", edit(surprise=1)),
        ("index.json", edit(source={"grid": 77})),
        ("index.json", lambda path: path.write_bytes(b"\xff\xfe")),
        ("TRAIN/entries.json", cut),
        ("TRAIN/entries.json", Path.unlink),
        ("TRAIN/images-00000.safetensors", cut),
        ("TRAIN/images-00000.safetensors", Path.unlink),
        ("TRAIN/texts-00000.safetensors", lambda path: path.write_bytes(b"")),
    ],
)
def test_a_damaged_index_is_refused_with_the_way_out(run, file, damage):
    build_index(run)
    damage(run / "index" / file.replace("TRAIN", part_of(run / "index", "train").name))

    def search():
        matcher = Matcher.load(run)
        matcher.search("red ball")
        matcher.texts_for(0)

    with pytest.raises(UserError, match=r"damaged .* `aoq index RUN --force`"):
        search()


def test_an_index_of_another_version_is_refused_and_can_be_made_again(run):
    build_index(run)
    edit(version=99)(run / "index" / "index.json")
    record(run / "index" / "index.json")
    with pytest.raises(UserError, match=r"of version 99, .* `aoq index RUN --force`"):
        Matcher.load(run)
    assert_whole(build_index(run, force=True))
    assert len(list((run / "index").glob("train-*"))) == 1


def test_parts_of_an_index_lie_nowhere_else(run):
    build_index(run)
    path = run / "index" / "index.json"
    path.write_text(path.read_text().replace('"name": "train', '"name": "../index/train'))
    with pytest.raises(UserError, match="damaged"):
        Index.open(run / "index")


def test_images_of_other_splits_exchanged_are_noticed(run):
    build_index(run)
    train, dev = (part_of(run / "index", split) for split in ("train", "dev"))
    shutil.copy(dev / "images-00000.safetensors", train)
    with pytest.raises(UserError, match="damaged"):
        Matcher.load(run).search("red ball")


# Changed under a reader


@pytest.mark.parametrize("name", ["vse", "bfan"])
def test_an_index_made_again_is_noticed_by_whoever_has_it_open(world, tmp_path, name):
    run = copied(world.runs[name], tmp_path / "run")
    build_index(run)
    fresh, asked = Matcher.load(run), Matcher.load(run)
    asked.search("red ball")
    build_index(run, Contents(splits=["test", "train"]), force=True)
    for matcher in (fresh, asked):
        for ask in (
            lambda matcher: matcher.search("red ball"),
            lambda matcher: matcher.texts_for(0),
            lambda matcher: matcher.score(0, ["red ball"]),
        ):
            with pytest.raises(IndexChangedError, match="made again"):
                ask(matcher)
    assert Matcher.load(run).search("red ball").hits


def test_an_index_made_again_while_it_is_read_is_noticed(run):
    index = build_index(run)
    rows = index.rows("images")

    def read_too_late():
        with index.unchanged():
            build_index(run, force=True)
            rows[:]

    with pytest.raises(IndexChangedError):
        read_too_late()


def test_photos_that_are_added_leave_those_who_read_what_they_had(run, album):
    build_index(run)
    matcher = Matcher.load(run)
    before = matcher.search("red ball", top=100)
    add_photos(run, album)
    assert matcher.search("red ball", top=100) == before
    assert matcher.texts_for(0).hits


# Killed

REPLACED = ("aoq.retrieval.finish", "remove_folder", 1)


@pytest.mark.parametrize(
    "moment",
    [
        ("aoq.scoring.encoding_files", "save_file", 4),
        pytest.param(("aoq.retrieval.part_writer", "hash_file", 2), marks=pytest.mark.slow),
        pytest.param(("aoq.retrieval.index", "write_json", 1), marks=pytest.mark.slow),
    ],
)
def test_killed_while_writing_leaves_the_index_as_it_was_or_none(run, moment):
    die(moment, "index", run)
    with pytest.raises(UserError, match="holds no index; make one with"):
        Matcher.load(run)
    before = build_index(run, Contents(splits=["dev"]))
    die(moment, "index", run, "--force")
    assert Index.open(run / "index").images == before.images
    assert_whole(build_index(run, force=True))


def test_killed_when_the_old_parts_go_the_other_index_is_whole(run):
    build_index(run, Contents(splits=["dev"]))
    die(REPLACED, "index", run, "--force")
    assert_whole(Index.open(run / "index"))
    assert_whole(build_index(run, force=True))
    assert len(list((run / "index").glob("*/entries.json"))) == len(SIZES)
    assert len(list((run / "index").glob("captions-*"))) == 1


def assert_whole(index):
    """All splits are there and can be searched."""
    assert len(index.images) == sum(SIZES.values())
    found = Matcher.load(index.folder.parent).search("red ball", top=100).hits
    assert len(found) == len(index.images)


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param(("aoq.scoring.encoding_files", "save_file", 1), marks=pytest.mark.slow),
        ("aoq.retrieval.index", "write_json", 1),
    ],
)
def test_killed_while_photos_are_added_the_index_is_what_it_was(run, album, moment):
    before = build_index(run)
    die(moment, "index", run, "--add", album)
    index = Index.open(run / "index")
    assert index.images == before.images
    assert len(Matcher.load(run).search("red ball", top=100).hits) == len(before.images)
    assert add_photos(run, album).added == 2
    assert len(Index.open(run / "index").images) == len(before.images) + 2
