"""A model of a user's own, trained in Python, is searched and judged by commands with --model."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file

import aoq
from aoq.data.build import build_dataset
from aoq.errors import QueryError, UserError
from aoq.features.regions import RegionSource
from aoq.mining.candidates import CandidateLists
from aoq.retrieval.build import Contents, build_index
from aoq.retrieval.index import IndexManifest
from aoq.retrieval.ranking import FullRanker
from aoq.retrieval.vector_ranking import VectorRanker
from aoq.runs.query_reader import QueryReader
from aoq.web.app import make_app
from aoq.web.limits import Limits
from aoq.web.server import running
from tests.commands import aoq as command
from tests.retrieval.conftest import draw_photo, photo_records
from tests.training.cases import small_recipe
from tests.web.conftest import picture_bytes

MODULE = "own_search_model"
MODEL = f"{MODULE}:make_model"
SOURCE = """
import aoq, numpy as np
from torch import nn

def read_picture(picture):
    return np.asarray(picture.resize((4, 4))).transpose(2, 0, 1)

def encode_words(text):
    return [1] + [2 + sum(map(ord, word)) % 30 for word in text.split()]

READER = aoq.QueryReader(tokenizer=encode_words, read_picture=read_picture)

class Towers(aoq.InnerProduct, nn.Module):
    def __init__(self, reader=READER):
        super().__init__()
        self.images, self.words = nn.Linear(48, 8), nn.Embedding(32, 8)
        self.reader = reader

    def encode_images(self, regions):
        return aoq.Encoding(nn.functional.normalize(self.images(regions.flatten(1) / 255), dim=1))

    def encode_texts(self, texts):
        words = (self.words(texts.tokens) * texts.mask[:, :, None]).sum(1)
        return aoq.Encoding(nn.functional.normalize(words, dim=1))

    def query_reader(self):
        return self.reader

def make_model():
    return Towers()

def without_pictures():
    return Towers(aoq.QueryReader(tokenizer=encode_words))

def without_texts():
    return Towers(aoq.QueryReader(read_picture=read_picture))

def with_another_reader():
    return Towers("a reader")

def wider():
    model = Towers()
    model.words = nn.Embedding(33, 8)
    return model

def failing():
    raise RuntimeError("the weights are on another disk")

def no_module():
    return {"model": 1}

class Half(nn.Module):
    def encode_images(self, regions): ...
    def encode_texts(self, texts): ...

LIMIT = 3
"""


@dataclass(frozen=True)
class OwnWorld:
    """A model's file, its run of two rounds, the photos, and a built data set of these."""

    folder: Path
    run: Path
    photos: Path
    data: Path

    def aoq(self, *arguments, model=MODEL):
        named = () if model is None else ("--model", model)
        return command(*arguments, *named, cwd=self.folder)

    def function(self, name):
        return getattr(__import__(MODULE), name)


def assert_refused(done, *sentences):
    """One sentence, after the line that says which round is used."""
    *before, error = done.stderr.strip().splitlines()
    assert done.returncode == 2
    assert all("is used" in line for line in before), before
    assert error.startswith("error: ")
    for sentence in sentences:
        assert sentence in error


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    (folder / f"{MODULE}.py").write_text(SOURCE, encoding="utf-8")
    records = photo_records(folder / "photos")
    build_dataset(records, folder / "data", name="squares", source=RegionSource(grid=1))
    path = sys.path[:]
    sys.path.insert(0, str(folder))
    module = __import__(MODULE)

    def split(name):
        images = [record for record in records if record.split == name]
        captions = [caption for record in images for caption in record.captions]
        owners = np.repeat(np.arange(len(images)), [len(record.captions) for record in images])
        dataset = aoq.PairDataset.of(
            module.READER.images([record.picture for record in images]),
            captions,
            np.stack([owners, np.arange(len(captions))], axis=1),
            split=name,
        )
        return module.READER.collator(dataset)

    recipe = small_recipe("")
    data = aoq.TrainingData(*map(split, ("train", "dev", "test")))
    aoq.run_recipe(folder / "run", recipe, data=data, make_model=module.make_model)
    yield OwnWorld(folder, folder / "run", folder / "photos", folder / "data")
    sys.path[:] = path
    del sys.modules[MODULE]


@pytest.fixture
def one_round(own, tmp_path):
    """A copy of round two without an index."""
    ignored = shutil.ignore_patterns("index", "encodings")
    return shutil.copytree(own.run / "round-two", tmp_path / "run", ignore=ignored)


@pytest.fixture(scope="module")
def index(own):
    """The index of the built data set."""
    made = own.aoq("index", own.run, "--data", own.data)
    assert made.returncode == 0, made.stderr
    assert "indexed 22 images and" in made.stderr
    assert f"next: aoq search {own.run} --model {MODEL} " in made.stderr
    return aoq.Matcher.load(own.run, make_model=own.function("make_model"))


# Indexing and searching


def test_a_sentence_finds_pictures_by_the_model_s_own_tokenizer(own, index):
    found = own.aoq("search", own.run, "red ball", "--words", "off", "--top", 5, "--json")
    assert found.returncode == 0, found.stderr
    hits = json.loads(found.stdout)["hits"]
    expected = [hit.score for hit in index.search("red ball", top=5).hits]
    assert [hit["score"] for hit in hits] == pytest.approx(expected)
    assert all(hit["picture"] == str(own.photos / hit["id"]) for hit in hits)


def test_scores_are_those_of_the_model_on_the_data_it_was_trained_with(own, index):
    model = aoq.load_own_model(own.run, own.function("make_model"))
    reader = own.function("READER")
    files = [image.picture for image in index.index.images]
    captions = [text.text for text in index.index.texts]
    pairs = [(image, text) for image in index.index.images for text in image.texts]
    dataset = aoq.PairDataset.of(
        reader.images(files), captions, [(image.number, text) for image, text in pairs]
    )
    encoded = aoq.encode_dataset(model, reader.collator(dataset))
    expected = model.score_matrix(encoded.images[:], encoded.texts[:]).numpy()
    for text in range(0, len(captions), 7):
        for query in (text, captions[text]):
            hits = index.images_for(query, top=len(files)).hits
            found = [hit.score for hit in sorted(hits, key=lambda hit: hit.number)]
            np.testing.assert_allclose(found, expected[:, text], atol=1e-5)
    hits = index.texts_for(files[3], top=len(captions)).hits
    found = [hit.score for hit in sorted(hits, key=lambda hit: hit.number)]
    np.testing.assert_allclose(found, expected[3], atol=1e-5)


def test_a_picture_finds_sentences(own, index):
    picture = index.index.images[3].picture
    found = own.aoq("search", own.run, "--image", picture, "--json")
    assert found.returncode == 0, found.stderr
    scores = [hit["score"] for hit in json.loads(found.stdout)["hits"]]
    assert scores == pytest.approx([hit.score for hit in index.texts_for(3).hits], abs=1e-5)


def test_a_picture_is_scored_and_files_of_vectors_are_written(own, index, tmp_path):
    picture = index.index.images[3].picture
    found = own.aoq("score", own.run, picture, "red ball", "--json")
    (row,) = json.loads(found.stdout)["scores"]
    assert row["score"] == pytest.approx(index.score(3, ["red ball"])[0], abs=1e-5)
    (tmp_path / "lines.txt").write_text("red ball\na blue cup\n", encoding="utf-8")
    texts, pictures = tmp_path / "texts.safetensors", tmp_path / "pictures.safetensors"
    for done in (
        own.aoq("encode", own.run, "--texts", tmp_path / "lines.txt", "--out", texts),
        own.aoq("encode", own.run, "--pictures", own.photos, "--out", pictures),
    ):
        assert done.returncode == 0, done.stderr
    scores = load_file(pictures)["vectors"] @ load_file(texts)["vectors"].T
    best = index.search("red ball", top=22).hits
    assert np.sort(scores[:, 0])[::-1] == pytest.approx([hit.score for hit in best], abs=1e-5)


def test_photos_alone_are_indexed_and_more_are_added(own, one_round, tmp_path):
    more = tmp_path / "more"
    draw_photo(more / "new.png", seed=100)
    shutil.copy(own.photos / "dev-0.png", more / "known.png")
    (more / "damaged.png").write_bytes((own.photos / "dev-0.png").read_bytes()[:-40])
    made = own.aoq("index", one_round, "--pictures", own.photos)
    assert "indexed 22 images and 0 texts" in made.stderr
    added = own.aoq("index", one_round, "--add", more)
    assert "added 1 photo of" in added.stderr
    assert "1 was there already" in added.stderr
    assert "is damaged or truncated (damaged.png)" in " ".join(added.stderr.split())
    found = own.aoq("search", one_round, "red ball", "--top", 23, "--json")
    assert "new.png" in {hit["id"] for hit in json.loads(found.stdout)["hits"]}


def test_a_run_of_data_made_in_python_says_what_to_index(own, one_round):
    assert_refused(own.aoq("index", one_round), "names no data set", "--data FOLDER, --pictures")
    assert not (one_round / "index").exists()
    assert_refused(own.aoq("evaluate", one_round), "names no data set; add --data FOLDER")


def test_a_model_with_a_score_of_its_own_is_not_searched_by_inner_products(
    own, index, one_round, monkeypatch
):
    kind = own.function("Towers")
    assert isinstance(index.ranker("images"), VectorRanker)

    def by_distance(self, images, texts):
        return -(images.vectors[:, None] - 2 * texts.vectors[None]).square().sum(2)

    monkeypatch.setattr(kind, "score_matrix", by_distance, raising=False)
    make_model = own.function("make_model")
    build_index(one_round, Contents(data=own.data), make_model=make_model)
    matcher = aoq.Matcher.load(one_round, make_model=make_model)
    assert isinstance(matcher.ranker("images"), FullRanker)
    hits = matcher.search("red ball", top=22).hits
    expected = [matcher.score(hit.number, ["red ball"])[0] for hit in hits]
    assert [hit.score for hit in hits] == pytest.approx(expected, abs=1e-5)


# The page


def test_a_server_searches_by_sentences_and_uploads(own, index):
    limits = Limits()
    with (
        running(make_app([index], limits=limits), limits) as address,
        httpx.Client(base_url=address, timeout=30) as client,
    ):
        (run,) = client.get("/api/status").json()["runs"]
        assert run["reads_pictures"]
        assert not run["has_attention"]
        assert "one vector" not in run["attention_reason"]
        place = f"/api/runs/{run['name']}"
        found = client.get(f"{place}/images", params={"text": "red ball", "top": 5}).json()
        expected = index.search("red ball", top=5).hits
        assert [hit["number"] for hit in found["hits"]] == [hit.number for hit in expected]
        content = picture_bytes()
        answer = client.post(f"{place}/texts", files={"picture": content}).json()
        scores = [hit["score"] for hit in answer["hits"]]
        expected = index.texts_for(content, top=12).hits
        assert scores == [hit.score for hit in expected]
        fits = {"upload": answer["upload"], "text": "red ball"}
        score = client.get(f"{place}/score", params=fits).json()["score"]
        assert score == pytest.approx(index.score(content, ["red ball"])[0])


def test_a_page_says_what_a_model_cannot_read(own, index, one_round):
    def served(name):
        loaded = aoq.Matcher.load(own.run, make_model=own.function(name))
        limits = Limits()
        return running(make_app([loaded], limits=limits), limits)

    with served("without_pictures") as address:
        place = f"{address}/api/runs/{httpx.get(f'{address}/api/status').json()['runs'][0]['name']}"
        refused = httpx.post(f"{place}/texts", files={"picture": picture_bytes()})
        assert refused.status_code == 409
        assert "its model does not say how" in refused.json()["error"]
    with served("without_texts") as address:
        place = f"{address}/api/runs/{httpx.get(f'{address}/api/status').json()['runs'][0]['name']}"
        refused = httpx.get(f"{place}/images", params={"text": "red ball"})
        assert refused.status_code == 422
        assert "The model cannot read texts" in refused.json()["error"]
        score = httpx.get(f"{place}/score", params={"text": "red", "image": 0})
        assert score.status_code == 422


# Judging and mining


def test_a_built_data_set_is_evaluated_by_its_photos(own):
    of_training = (own.run / "round-two" / "results.jsonl").read_text(encoding="utf-8")
    expected = json.loads(of_training.splitlines()[0])
    reported = own.aoq("evaluate", own.run, "--data", own.data, "--round", "two", "--json")
    assert reported.returncode == 0, reported.stderr
    figures = json.loads(reported.stdout)
    assert figures.items() <= expected.items()
    make_model = own.function("make_model")
    metrics = aoq.evaluate_run(own.run, data=own.data, round="two", make_model=make_model)
    assert metrics.as_dict() == figures
    folds = own.aoq("evaluate", own.run, "--data", own.data, "--folds", 2)
    assert folds.returncode == 0, folds.stderr


def test_mining_by_a_command_gives_the_lists_of_the_run(own, tmp_path):
    out = tmp_path / "lists.safetensors"
    done = own.aoq("mine", own.run / "round-one", "--data", own.data, "--out", out)
    assert done.returncode == 0, done.stderr
    mined, found = CandidateLists.load(own.run / "candidates.safetensors"), CandidateLists.load(out)
    np.testing.assert_array_equal(found.i2t, mined.i2t)
    np.testing.assert_array_equal(found.t2i, mined.t2i)
    assert found.provenance.teacher == mined.provenance.teacher
    sizes = ("--batch-sizes", 4, "--json")
    share = own.aoq("mine", "share", own.run / "round-one", "--data", own.data, *sizes)
    assert share.returncode == 0, share.stderr


# What is missing


def test_nothing_is_imported_that_the_command_does_not_name(own, index, monkeypatch):
    name = IndexManifest.load(index.index.folder).model_function
    assert name == MODEL
    monkeypatch.delitem(sys.modules, MODULE)
    done = own.aoq("search", own.run, "red ball", model=None)
    assert_refused(done, "a model of your own", f"it was indexed with --model {MODEL}")
    done = own.aoq("evaluate", own.run, "--data", own.data, model=None)
    assert_refused(done, "a model of your own", "with --model MODULE:FUNCTION")
    assert MODULE not in sys.modules


def test_without_a_reader_of_pictures_sentences_still_find_them(own, index, one_round, tmp_path):
    model = f"{MODULE}:without_pictures"
    found = own.aoq("search", own.run, "red ball", model=model)
    assert found.returncode == 0, found.stderr
    sentence = "cannot read pictures, because its model does not say how"
    picture = own.photos / "dev-0.png"
    assert_refused(own.aoq("search", own.run, "--image", picture, model=model), sentence)
    photos = own.aoq("index", one_round, "--pictures", own.photos, model=model)
    assert_refused(photos, sentence, "read_picture")
    data = own.aoq("index", one_round, "--data", own.data, model=model)
    assert_refused(data, "the model was trained on other images", "read_picture")


def test_without_a_tokenizer_pictures_still_find_sentences(own, index, one_round):
    model = f"{MODULE}:without_texts"
    found = own.aoq("search", own.run, "--image", own.photos / "dev-0.png", model=model)
    assert found.returncode == 0, found.stderr
    sentence = "the model cannot read texts"
    assert_refused(own.aoq("search", own.run, "red ball", model=model), sentence, "tokenizer")
    assert_refused(own.aoq("index", one_round, "--data", own.data, model=model), sentence)
    made = own.aoq("index", one_round, "--pictures", own.photos, model=model)
    assert "indexed 22 images" in made.stderr


@pytest.mark.parametrize(
    ("model", "sentences"),
    [
        ("nowhere:make_model", ("there is no module nowhere in", "on the Python path")),
        (f"{MODULE}.py:make_model", (f"there is no module {MODULE}.py in",)),
        (f"./{MODULE}.py:make_model", (f"a name such as {MODEL}",)),
        (MODULE, ("is not MODULE:FUNCTION", f"a name such as {MODEL}")),
        (f"{MODULE}:make_modle", ("no function make_modle", f"did you mean {MODEL}?")),
        (f"{MODULE}:LIMIT", ("LIMIT is of the type int; expected a function",)),
        (f"{MODULE}:failing", ("RuntimeError: the weights are on another disk", "py, line ")),
        (f"{MODULE}:no_module", ("no_module returned {'model': 1}, which is not a model",)),
        (f"{MODULE}:Half", ("without score_matrix and score_pairs", "aoq.InnerProduct")),
        (f"{MODULE}:wider", ("holds the weights of another model", "shapes")),
        (f"{MODULE}:with_another_reader", ("returned 'a reader'; expected an aoq.QueryReader",)),
        ("own_broken:make_model", ("own_broken cannot be imported: SyntaxError", "line 2")),
        ("own_needy:make_model", ("own_needy cannot be imported", "no_such_package")),
        ("own_program:make_model", ('below if __name__ == "__main__"',)),
    ],
)
def test_what_is_wrong_with_a_model_is_one_sentence(own, model, sentences):
    for name, source in (
        ("own_broken", "x = 1\nx = = 2\n"),
        ("own_needy", "import no_such_package\n"),
        ("own_program", "raise SystemExit(0)\n"),
    ):
        (own.folder / f"{name}.py").write_text(source, encoding="utf-8")
    assert_refused(own.aoq("evaluate", own.run, "--data", own.data, model=model), *sentences)


def test_a_function_for_a_model_of_the_library_is_refused(own, world):
    done = own.aoq("search", world.runs["vse"], "red ball")
    assert_refused(done, "holds one of the library's; leave --model out")


# What a run keeps


def test_a_run_of_built_data_needs_no_reader(tmp_path, world):
    """Words come from the run's vocabulary, regions from the network that the data set names."""
    recipe = replace(small_recipe(world.data), rounds="one")
    data = aoq.open_training_data(recipe)

    def make_model():
        return aoq.build_model(
            aoq.ModelConfig(name="vse", joint_width=8, word_width=5),
            feature_width=data.feature_width,
            vocabulary_size=len(data.vocabulary),
        )

    aoq.run_recipe(tmp_path / "run", recipe, data=data, make_model=make_model)
    build_index(tmp_path / "run", make_model=make_model)
    matcher = aoq.Matcher.load(tmp_path / "run", make_model=make_model)
    picture = matcher.index.images[2].picture
    by_file, by_number = matcher.texts_for(picture).hits, matcher.texts_for(2).hits
    assert [hit.score for hit in by_file] == pytest.approx([h.score for h in by_number], abs=1e-4)
    assert matcher.search("red zyxxy").unknown_words == ("zyxxy",)
    with pytest.raises(QueryError, match="no attention between words and regions"):
        matcher.attention(0, 0)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"tokenizer": "words"}, "tokenizer is 'words'; expected a function"),
        ({"read_picture": 3}, "read_picture is 3; expected a function"),
        ({"read_picture": len, "source": RegionSource()}, "both read_picture and source"),
    ],
)
def test_a_reader_that_cannot_read_is_refused(options, sentence):
    with pytest.raises(UserError, match=sentence):
        QueryReader(**options)


@pytest.mark.parametrize(
    ("made", "sentence"), [(None, "array of object"), (3, "shape \\(\\)"), ([], "shape \\(0,\\)")]
)
def test_what_is_not_a_picture_of_a_model_is_refused(tmp_path, made, sentence):
    photo = draw_photo(tmp_path / "photo.png", seed=0)
    images = QueryReader(read_picture=lambda picture: made).images([photo])
    with pytest.raises(UserError, match=f"read_picture returned an.*{sentence}"):
        images[np.array([0])]


def test_pictures_of_several_shapes_are_refused(tmp_path):
    photos = [tmp_path / f"{size}.png" for size in (3, 4)]
    for photo, size in zip(photos, (3, 4), strict=True):
        Image.new("RGB", (size, 2)).save(photo)
    images = QueryReader(read_picture=np.asarray).images(photos)
    with pytest.raises(UserError, match=r"shapes \(2, 3, 3\), \(2, 4, 3\); expected"):
        images[np.array([0, 1])]
