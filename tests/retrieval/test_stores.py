"""Stores: the same answers from each, whatever comes and goes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from aoq.errors import UserError
from aoq.retrieval import engines
from aoq.retrieval.allowed import Allowed
from aoq.retrieval.build import Contents, build_index
from aoq.retrieval.filters import Filter
from aoq.retrieval.index import Index
from aoq.retrieval.matcher import Matcher
from aoq.retrieval.metadata import Metadata
from aoq.retrieval.stores.embedded import FlatStore, IvfStore
from aoq.retrieval.stores.milvus import MilvusAddress, MilvusStore
from aoq.retrieval.stores.protocol import Selection
from aoq.retrieval.sync import Synced, remove_photos
from aoq.retrieval.target import open_target
from aoq.retrieval.vector_ranking import EncodedQuery, VectorRanker
from aoq.types import Encoding
from tests.kills import die
from tests.retrieval.conftest import draw_photo

WIDTH = 24


def units(count, *, seed=0):
    vectors = np.random.default_rng(seed).standard_normal((count, WIDTH)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def rows_of(count):
    """Columns with numbers, texts and missing values."""
    return Metadata(
        {
            "folder": tuple(("", "trips", "trips/2023", "trips_2023")[n % 4] for n in range(count)),
            "name": tuple(f"IMG_{n}.jpg" if n % 3 else f'a "{n}"%.png' for n in range(count)),
            "date": tuple(
                None if n % 5 == 0 else f"2023-0{n % 9 + 1}-01T0{n % 9}:00:00" for n in range(count)
            ),
            "width": tuple(None if n % 7 == 0 else n for n in range(count)),
            "height": (None,) * count,
            "split": tuple((None, "test", "dev")[n % 3] for n in range(count)),
            "rating": tuple(None if n % 4 == 0 else n / 2 for n in range(count)),
            "camera": tuple((None, "fuji x", "fuji_x", "leica")[n % 4] for n in range(count)),
            "place": tuple(("München", "Zürich", "Bern", None)[n % 4] for n in range(count)),
            "key": tuple(f"a{n % 3}" for n in range(count)),
        }
    )


@pytest.fixture
def lite(tmp_path):
    """The address of a Milvus Lite file."""
    return MilvusAddress.parse(str(tmp_path / "store" / "lists.db"))


def flat(keys, vectors):
    store = FlatStore(WIDTH)
    store.add(keys, vectors)
    return store


def ivf(keys, vectors):
    """An inverted file that looks into all its groups."""
    by_key = dict(zip(keys.tolist(), vectors, strict=True))

    def fetch(wanted):
        return np.stack([by_key[key] for key in wanted.tolist()])

    store = IvfStore.train(vectors, groups=8, fetch=fetch, longest=1.0)
    store.add(keys, vectors)
    store.probes = 8
    return store


def answers(store, keys, queries, *, top=10, allowed=None):
    query = EncodedQuery(Encoding(torch.from_numpy(queries)))
    return VectorRanker(store, keys).rank(query, top=top, allowed=allowed)


def assert_same(found, expected):
    assert np.array_equal(found.ids, expected.ids)
    assert np.array_equal(found.scores, expected.scores)


KEYS = np.random.default_rng(9).permutation(2**62 - np.arange(1, 801) ** 5)
FILTERS = [
    "split = test",
    "split != test and width >= 100",
    "not (folder = trips or camera = leica)",
    "folder = trips",
    "date >= 2023-05 and date < 2023-08",
    "date = none or rating > 200.5",
    "name like IMG_1*",
    "name like a*%*",
    "camera like fuji_*",
    "folder = 'f_r' or place = München or place like Zü*",
    'name = "a \\"3\\"%.png"',
    'camera in ("fuji x", none) and not rating <= 10',
    "height = none and width != none",
    "key = a1",
]


@pytest.mark.parametrize("kind", ["ivf", "milvus"])
def test_every_store_answers_as_the_flat_one(kind, lite):
    vectors, queries, metadata = units(800), units(5, seed=1), rows_of(800)
    exact = flat(np.arange(800), vectors)
    if kind == "ivf":
        store = ivf(KEYS, vectors)
    else:
        store = MilvusStore.create(lite, "images", model_hash="m", width=WIDTH, expected=800)
        store.add(KEYS, vectors, metadata)
    assert len(store) == 800
    assert np.array_equal(store.keys(), np.sort(KEYS))
    assert_same(answers(store, KEYS, queries), answers(exact, None, queries))
    for text in FILTERS:
        where = Filter.parse(text)
        mask = where.mask(metadata.columns)
        assert 0 < mask.sum() < 800, text
        for allowed in (Allowed(mask, where, metadata.columns), Allowed.of_mask(mask)):
            found = answers(store, KEYS, queries, allowed=allowed)
            assert_same(found, answers(exact, None, queries, allowed=allowed))
            assert mask[found.ids].all(), text
    left = np.delete(np.arange(800), np.arange(0, 800, 3))
    store.remove(np.setdiff1d(KEYS, KEYS[left]))
    assert len(store) == len(left)
    few = flat(np.arange(len(left)), vectors[left])
    assert_same(answers(store, KEYS[left], queries), answers(few, None, queries))
    store.add(KEYS[:3], vectors[:3], metadata.rows(range(3)))
    assert np.array_equal(store.vectors(KEYS[:3]), vectors[:3])
    store.close()


@pytest.mark.slow
def test_eight_thousand_vectors_in_milvus_lite_are_found_as_in_memory(lite):
    """As many as Flickr8k has photos, in groups of similar ones as photos are."""
    random = np.random.default_rng(0)
    groups = random.standard_normal((400, 512)).astype(np.float32)
    vectors = groups[random.integers(0, 400, 8000)]
    vectors = vectors + 0.3 * random.standard_normal(vectors.shape).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    metadata, queries = rows_of(8000), vectors[::400] + np.float32(0.01)
    exact = VectorRanker.of_rows(Encoding(torch.from_numpy(vectors)))
    store = MilvusStore.create(lite, "images", model_hash="m", width=512, expected=8000)
    keys = np.arange(8000) * 3 + 1
    store.add(keys, vectors, metadata)
    ranker, query = VectorRanker(store, keys), EncodedQuery(Encoding(torch.from_numpy(queries)))
    assert_same(ranker.rank(query, top=50), exact.rank(query, top=50))
    for text in FILTERS:
        where = Filter.parse(text)
        allowed = Allowed(where.mask(metadata.columns), where, metadata.columns)
        found = (each.rank(query, top=20, allowed=allowed) for each in (ranker, exact))
        assert_same(*found)


def test_what_nothing_may_be_found_of_gives_nothing(lite):
    exact = flat(np.arange(9), units(9))
    found = answers(exact, None, units(2), allowed=Allowed.of_mask(np.zeros(9, bool)))
    assert found.ids.shape == (2, 0)


def test_a_flat_store_is_changed_in_place():
    keys, vectors = np.array([7, 3, 11]), units(3)
    store = flat(keys, vectors)
    assert np.array_equal(store.vectors(keys), vectors)
    store.add(np.array([3, 5]), units(2, seed=4))
    assert store.keys().tolist() == [3, 5, 7, 11]
    assert np.array_equal(store.vectors(np.array([3, 11])), [units(2, seed=4)[0], vectors[2]])
    found = store.search(vectors[:1], top=2, among=Selection(np.array([5, 7])))
    assert found.keys[0, 0] == 7


# Engines


def test_an_engine_is_measured_and_follows_its_index(tmp_path):
    vectors, rows = units(3000), Encoding(torch.from_numpy(units(3000)))
    keys = np.arange(3000) * 17
    path = tmp_path / "images.ivf"
    record = engines.build_engine(rows, keys, units(64, seed=1), path, asked_with="texts")
    assert record.recall >= engines.TARGET
    assert 1 < record.probes <= record.groups == 128
    store = engines.open_engine(path, record, rows, keys)
    found = answers(store, keys, units(64, seed=1)).ids
    exact = answers(flat(np.arange(3000), vectors), None, units(64, seed=1)).ids
    assert engines.recall_of(found, exact) == pytest.approx(record.recall, abs=1e-4)
    left = slice(100, 2900)
    fewer, fewer_keys = rows[left], keys[left]
    changed = engines.update_engine(record, path, tmp_path / "b.ivf", fewer, fewer_keys)
    store = engines.open_engine(tmp_path / "b.ivf", changed, fewer, fewer_keys)
    assert np.array_equal(store.keys(), fewer_keys)
    far = slice(0, 1000)
    assert engines.update_engine(record, path, path, rows[far], keys[far]) is None


def test_an_index_of_many_has_an_engine_that_finds_what_is_near(world, tmp_path, monkeypatch):
    run = world.runs["vse"]
    exact = Matcher.load(run, index=build_index(run, out=tmp_path / "exact").folder)
    monkeypatch.setattr(engines, "FLAT_UP_TO", 20)
    monkeypatch.setattr("aoq.retrieval.finish._QUERIES", 10)
    index = build_index(run, out=tmp_path / "index")
    assert set(index.manifest.engines) == {"images", "texts"}
    matcher = Matcher.load(run, index=index.folder)
    assert not matcher.ranker("images").exact
    hits = matcher.search("a red dog", top=5).hits
    assert hits[0] == exact.search("a red dog", top=5).hits[0]
    files = {path.name for path in index.folder.glob("*.ivf")}
    remove_photos(run, ["test-1.png"], index=index.folder)
    after = Index.open(index.folder)
    assert {path.name for path in index.folder.glob("*.ivf")} == {
        engine.file for engine in after.manifest.engines.values()
    }
    assert files.isdisjoint({after.manifest.engines["images"].file})


# Milvus


def image_hits(matcher, *, top=30):
    hits = matcher.search("a red dog", top=top).hits
    return [(hit.id, hit.score) for hit in hits]


def test_an_index_in_milvus_answers_as_one_in_a_folder(world, tmp_path):
    run = world.runs["vse"]
    here = Matcher.load(run, index=build_index(run, out=tmp_path / "here").folder)
    there = build_index(run, Contents(store=str(tmp_path / "lists.db")), out=tmp_path / "there")
    assert not list(there.folder.rglob("*.safetensors")), "vectors are in the store alone"
    matcher = Matcher.load(run, index=there.folder)
    assert image_hits(matcher) == image_hits(here)
    picture = world.photos / "test-0.png"
    assert matcher.search(picture, top=9).hits == here.search(picture, top=9).hits
    assert matcher.images_for(3, top=9).hits == here.images_for(3, top=9).hits
    allowed = [matcher.index.allowed("split = test", "images") for matcher in (matcher, here)]
    queries = [matcher.entry_query("texts", [0, 1]) for matcher in (matcher, here)]
    assert_same(
        *(
            m.ranker("images").rank(q, top=4, allowed=a)
            for m, q, a in zip((matcher, here), queries, allowed, strict=True)
        )
    )


def test_a_folder_in_milvus_is_synced_and_photos_are_removed(world, tmp_path):
    photos, run = tmp_path / "photos", world.runs["vse"]
    for seed in range(5):
        draw_photo(photos / f"{seed}.png", seed=400 + seed)
    where = {"run": run, "index": tmp_path / "index"}
    open_target(photos, **where, store=str(tmp_path / "lists.db"))
    draw_photo(photos / "new.png", seed=410)
    (photos / "1.png").unlink()
    (photos / "2.png").rename(photos / "moved.png")
    assert open_target(photos, **where).synced == Synced(added=1, moved=1, removed=1)
    remove_photos(run, ["0.png"], index=tmp_path / "index")
    matcher = Matcher.load(run, index=tmp_path / "index")
    names = {"3.png", "4.png", "moved.png", "new.png"}
    assert {name for name, _ in image_hits(matcher)} == names
    rows = matcher.index.rows("images")
    assert len(rows.store) == 4
    pages = rows.store._client.query("aoq_images", filter='name == "moved.png"', limit=9)
    assert [(row["name"], row["width"]) for row in pages] == [("moved.png", 96)]


def test_a_matcher_that_opens_its_index_again_keeps_the_client_of_the_store(world, tmp_path):
    photos, run = tmp_path / "photos", world.runs["vse"]
    where = {"run": run, "index": tmp_path / "index"}
    draw_photo(photos / "0.png", seed=400)
    open_target(photos, **where, store=str(tmp_path / "lists.db"))
    matcher = Matcher.load(run, index=tmp_path / "index")
    assert len(image_hits(matcher)) == 1
    client = matcher.ranker("images")._store._client
    draw_photo(photos / "1.png", seed=401)
    open_target(photos, **where)
    again = matcher.reopened()
    assert len(image_hits(again)) == 2
    assert again.ranker("images")._store._client is client


def test_killed_while_it_is_stored_the_same_command_continues(world, tmp_path):
    photos, run = tmp_path / "photos", world.runs["vse"]
    for seed in range(5):
        draw_photo(photos / f"{seed}.png", seed=420 + seed)
    arguments = ("index", photos, "--run", run, "--out", tmp_path / "index")
    moment = ("aoq.retrieval.sync", "save_index", 2)
    store = ("--store", tmp_path / "lists.db")
    die(moment, *arguments, *store, at_start="module.PHOTOS_AT_ONCE = 2")
    upload = ("aoq.retrieval.finish", "_tidy_store", 1)
    die(upload, *arguments, at_start="import aoq.retrieval.sync as s; s.PHOTOS_AT_ONCE = 2")
    where = {"run": run, "index": tmp_path / "index"}
    assert open_target(photos, **where).synced == Synced(added=1)
    here = Matcher.load(run, index=open_target(photos, run=run).index)
    there = Matcher.load(run, index=tmp_path / "index")
    assert len(there.index.rows("images").store) == 5
    assert dict(image_hits(there)) == pytest.approx(dict(image_hits(here)), abs=1e-6)


def test_a_store_of_another_model_is_refused(world, lite):
    store = MilvusStore.create(lite, "images", model_hash="one", width=WIDTH, expected=1)
    store.add(np.array([1]), units(1), rows_of(1))
    store.close()
    with pytest.raises(UserError, match="vectors of another model"):
        MilvusStore.open(lite, "images", model_hash="two", longest=1.0)
    with pytest.raises(UserError, match="no collection aoq_texts"):
        MilvusStore.open(lite, "texts", model_hash="one", longest=1.0)


def test_the_collections_of_another_index_are_refused_and_stay(world, tmp_path):
    run, contents = world.runs["vse"], Contents(store=str(tmp_path / "lists.db"))
    first = build_index(run, contents, out=tmp_path / "first")
    with pytest.raises(UserError, match=r"another index, .*first; name another one"):
        build_index(run, contents, out=tmp_path / "second")
    build_index(run, contents, out=tmp_path / "first", force=True)
    assert len(Index.open(first.folder).rows("images").store) == len(first.images)


def test_a_store_that_fails_is_named(lite):
    store = MilvusStore.create(lite, "images", model_hash="m", width=WIDTH, expected=1)
    store.add(np.array([1]), units(1), rows_of(1))
    store._client.drop_collection("aoq_images")
    for ask in (
        lambda: store.search(units(1), top=1),
        lambda: store.vectors(np.array([1])),
        lambda: store.remove(np.array([1])),
        store.keys,
    ):
        with pytest.raises(UserError, match="cannot be used"):
            ask()


def test_an_index_does_not_change_its_store_unasked(world, tmp_path):
    photos, run = tmp_path / "photos", world.runs["vse"]
    draw_photo(photos / "a.png", seed=430)
    open_target(photos, run=run)
    with pytest.raises(UserError, match="keeps its vectors in the index itself"):
        open_target(photos, run=run, store=str(tmp_path / "lists.db"))


@pytest.mark.parametrize(
    ("text", "uri", "collection"),
    [
        ("milvus://localhost:19530/photos", "http://localhost:19530", "photos_images"),
        ("milvus://db.example.org", "http://db.example.org:19530", "aoq_images"),
        ("milvus+tls://db:443/a_b", "https://db:443", "a_b_images"),
        ("milvus:///tmp/a.db", "/tmp/a.db", "aoq_images"),
    ],
)
def test_an_address_names_a_server_or_a_file(text, uri, collection):
    address = MilvusAddress.parse(text)
    assert (address.uri, address.collection("images")) == (uri, collection)


@pytest.mark.parametrize(
    "text", ["http://db", "lists.txt", "milvus://db/my-photos", "milvus:///tmp/file"]
)
def test_what_is_no_address_is_refused(text):
    with pytest.raises(UserError, match="expected milvus://HOST:PORT/COLLECTION or a file"):
        MilvusAddress.parse(text)


def test_a_model_that_scores_pairs_and_a_missing_package_are_refused(world, tmp_path, monkeypatch):
    contents = Contents(store=str(tmp_path / "lists.db"))
    with pytest.raises(UserError, match="scores pairs"):
        build_index(world.runs["scan"], contents, out=tmp_path / "index")
    monkeypatch.setattr("aoq.errors.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r'pip install "aoq\[milvus\]"'):
        build_index(world.runs["vse"], contents, out=tmp_path / "index")


def test_a_server_that_is_not_there_is_named(world, tmp_path):
    contents = Contents(store="milvus://127.0.0.1:1/photos")
    with pytest.raises(UserError, match=r"milvus://127.0.0.1:1/photos cannot be used"):
        build_index(world.runs["vse"], contents, out=tmp_path / "index")
