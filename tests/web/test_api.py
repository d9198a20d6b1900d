"""Every route of the API, held against what the matcher and the run's files say."""

from __future__ import annotations

import asyncio
import io
import json
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial
from threading import Barrier

import httpx
import pytest
from PIL import Image
from starlette.exceptions import HTTPException
from starlette.testclient import TestClient

import aoq
from aoq.data.splits import open_dataset
from aoq.errors import UserError
from aoq.features.regions import PictureReader
from aoq.mining.candidates import CandidateLists
from aoq.retrieval.build import Contents, build_index
from aoq.retrieval.matcher import Matcher
from aoq.runs.checkpoint import hash_model
from aoq.runs.directory import RunDirectory
from aoq.runs.summary import RunSummary
from aoq.storage import append_json_line, hash_file, read_json_lines
from aoq.training.two_rounds import run_recipe
from aoq.web import history
from aoq.web.app import make_app
from aoq.web.limits import Limits
from aoq.web.server import running
from aoq.web.uploads import Uploads
from tests.conftest import write_precomp
from tests.training.cases import small_recipe
from tests.web.conftest import picture_bytes, proposed_by_vsrn

VSRN, BFAN = "vsrn-round-two", "bfan-round-two"
RUNS = pytest.mark.parametrize(("at", "run"), [(0, VSRN), (1, BFAN)], ids=["vsrn", "bfan"])


def asked(client, path: str, status: int = 200, **parameters) -> dict:
    answer = client.get(f"/api/runs/{path}", params=parameters)
    assert answer.status_code == status, answer.text
    return answer.json()


def test_the_status_tells_runs_and_limits(client, matchers, served_runs):
    status = client.get("/api/status").json()
    assert status["version"] == aoq.__version__
    assert status["limits"] == {
        "upload_bytes": 10_000_000,
        "pixels": 40_000_000,
        "query_characters": 500,
        "top": 100,
    }
    vsrn, bfan = status["runs"]
    assert [vsrn["name"], bfan["name"]] == [VSRN, BFAN]
    assert [vsrn["label"], bfan["label"]] == ["VSRN + AdapOffQuin", "BFAN + AdapOffQuin"]
    assert (vsrn["images"], vsrn["texts"]) == (80, 400)
    assert vsrn["splits"] == ["train", "dev", "test"]
    assert vsrn["test"] == RunSummary.read(served_runs.vsrn).test
    assert (
        vsrn["test_data"] == bfan["test_data"] == open_dataset(served_runs.data, "test").fingerprint
    )
    assert vsrn["has_negatives"]
    assert bfan["has_negatives"]
    assert not vsrn["has_attention"]
    assert "one vector" in vsrn["attention_reason"]
    assert bfan["has_attention"]
    assert bfan["attention_reason"] is None


@RUNS
def test_images_for_a_sentence_are_the_matchers(client, matchers, at, run):
    answer = asked(client, f"{run}/images", text="a red flower and a zyxxy", top=5)
    expected = matchers[at].images_for("a red flower and a zyxxy", top=5)
    assert answer["query"] == {"text": "a red flower and a zyxxy", "number": None}
    assert [hit["number"] for hit in answer["hits"]] == [hit.number for hit in expected.hits]
    assert [hit["score"] for hit in answer["hits"]] == pytest.approx(
        [hit.score for hit in expected.hits], abs=1e-5
    )
    assert answer["unknown_words"] == ["zyxxy"]
    assert answer["exact"]
    assert {hit["correct"] for hit in answer["hits"]} == {None}


@RUNS
def test_images_for_a_text_of_the_index_are_ticked(client, matchers, at, run):
    answer = asked(client, f"{run}/images", text_number=7, top=80)
    text = matchers[at].index.texts[7]
    assert answer["query"] == {"text": text.text, "number": 7}
    correct = [hit["number"] for hit in answer["hits"] if hit["correct"]]
    assert correct == list(text.images)
    assert len(answer["hits"]) == 80


@RUNS
def test_texts_for_an_image_of_the_index_are_ticked(client, matchers, at, run):
    answer = asked(client, f"{run}/texts", image=3, top=100)
    expected = matchers[at].texts_for(3, top=100)
    assert [hit["number"] for hit in answer["hits"]] == [hit.number for hit in expected.hits]
    own = matchers[at].index.images[3].texts
    assert all(hit["correct"] == (hit["number"] in own) for hit in answer["hits"])
    assert answer["upload"] is None


@RUNS
def test_an_uploaded_picture_finds_what_its_image_in_the_index_finds(client, matchers, at, run):
    image = matchers[at].index.images[3]
    uploaded = client.post(
        f"/api/runs/{run}/texts",
        params={"top": 5},
        files={"picture": image.picture.read_bytes()},
    )
    assert uploaded.status_code == 200, uploaded.text
    indexed = asked(client, f"{run}/texts", image=3, top=5)
    found = [(hit["number"], hit["text"]) for hit in uploaded.json()["hits"]]
    assert found == [(hit["number"], hit["text"]) for hit in indexed["hits"]]
    assert {hit["correct"] for hit in uploaded.json()["hits"]} == {None}


def test_attention_is_the_matchers_for_numbers_words_and_uploads(client, matchers):
    bfan = matchers[1]
    text, picture = bfan.index.texts[15].text, bfan.index.images[3].picture
    expected = bfan.attention(3, 15)
    token = client.post(f"/api/runs/{BFAN}/texts", files={"picture": picture.read_bytes()}).json()
    for shown in ({"image": 3}, {"upload": token["upload"]}):
        for said in ({"text_number": 15}, {"text": text}):
            answer = asked(client, f"{BFAN}/attention", **shown, **said)
            assert [word["word"] for word in answer["words"]] == list(expected.words)
            assert answer["boxes"] == expected.boxes.tolist()
            for name in ("by_word", "by_region"):
                given, wanted = answer[name], getattr(expected, name)
                assert (given is None) == (wanted is None)
                if given is not None:
                    assert [x for row in given for x in row] == pytest.approx(
                        wanted.ravel().tolist(), abs=1e-4
                    )
            assert answer["score"] == pytest.approx(bfan.score(3, [text])[0], abs=1e-4)


def test_attention_names_unknown_words(client):
    words = asked(client, f"{BFAN}/attention", image=3, text="a zyxxy")["words"]
    assert words == [{"word": "a", "known": True}, {"word": "zyxxy", "known": False}]


def test_a_model_without_attention_says_why(client):
    assert "one vector" in asked(client, f"{VSRN}/attention", 409, image=3, text="a dog")["error"]


@RUNS
def test_negatives_are_those_of_the_lists(client, matchers, served_runs, at, run):
    lists = CandidateLists.load(served_runs.lists)
    index = matchers[at].index
    answer = asked(client, f"{run}/negatives/image/3", depth=4)
    assert answer["anchor"]["number"] == 3
    assert [entry["number"] for entry in answer["positives"]] == list(index.images[3].texts)
    # The training split is the first part of the index, so that numbers are the lists' own.
    assert [entry["number"] for entry in answer["candidates"]] == lists.i2t[3, :4].tolist()
    assert [entry["score"] for entry in answer["candidates"]] == pytest.approx(
        lists.i2t_scores[3, :4].tolist()
    )
    assert ["rules", "none"] in answer["provenance"]
    texts = asked(client, f"{run}/negatives/text/20", depth=4)
    assert [entry["number"] for entry in texts["candidates"]] == lists.t2i[20, :4].tolist()
    assert all(entry["picture"] for entry in texts["candidates"])


def test_negatives_of_another_split_are_refused_with_the_reason(client):
    refused = asked(client, f"{VSRN}/negatives/image/79", 404)
    assert "training split" in refused["error"]


def test_negatives_of_other_data_than_the_index_are_not_shown(tmp_path):
    """Ids are the same in all precomp folders, so they do not tell."""
    own, other = (write_precomp(tmp_path / name, seed=seed) for seed, name in enumerate("ab"))
    run_recipe(tmp_path / "run", small_recipe(own))
    matchers = []
    for data in (own, other):
        index = tmp_path / f"index-{data.name}"
        build_index(tmp_path / "run", Contents(data=data), out=index)
        matchers.append(Matcher.load(tmp_path / "run", index=index))
    with TestClient(make_app(matchers), base_url="http://localhost") as client:
        runs = client.get("/api/status").json()["runs"]
        refused = asked(client, f"{runs[1]['name']}/negatives/image/0", 409)
    assert [run["has_negatives"] for run in runs] == [True, False]
    assert "another data set" in runs[1]["negatives_reason"]
    assert refused["error"] == runs[1]["negatives_reason"]


def test_negatives_are_found_where_ids_are_repeated(tmp_path):
    data = write_precomp(tmp_path / "precomp")
    (data / "train_ids.txt").write_text("\n".join(f"photo-{n // 2}" for n in range(12)))
    run_recipe(tmp_path / "run", small_recipe(data))
    lists = CandidateLists.load(tmp_path / "run" / "candidates.safetensors")
    build_index(tmp_path / "run")
    app = make_app([Matcher.load(tmp_path / "run")])
    with TestClient(app, base_url="http://localhost") as client:
        name = client.get("/api/status").json()["runs"][0]["name"]
        for image in range(12):
            found = asked(client, f"{name}/negatives/image/{image}", depth=3)
            assert [text["number"] for text in found["candidates"]] == lists.i2t[image, :3].tolist()
        for text in range(60):
            found = asked(client, f"{name}/negatives/text/{text}", depth=3)
            assert [image["number"] for image in found["candidates"]] == lists.t2i[
                text, :3
            ].tolist()


def test_curves_are_those_of_both_rounds(client, served_runs):
    vsrn = asked(client, f"{VSRN}/curves")["rounds"]
    assert [shown["name"] for shown in vsrn] == ["round-one", "round-two"]
    dev = RunSummary.read(served_runs.vsrn).dev
    best = vsrn[1]["epochs"][dev.epoch - 1]
    assert (best["epoch"], best["rsum"]) == (dev.epoch, dev.metrics["rsum"])
    assert all(point["loss"] > 0 for shown in vsrn for point in shown["epochs"])
    assert [shown["name"] for shown in asked(client, f"{BFAN}/curves")["rounds"]] == ["round-two"]


def test_results_come_with_the_settings_that_are_not_the_papers(client, served_runs):
    answer = asked(client, f"{BFAN}/results")
    assert answer["settings"]["model.name"] == "bfan"
    assert answer["settings"]["round_two.epochs"] == 2
    assert "round_two.loss.alpha" not in answer["settings"]
    assert not {"data", "candidates"} & answer["settings"].keys(), "places on this machine"
    (result,) = answer["results"]
    expected = RunSummary.read(served_runs.bfan).test
    assert result == {"split": "test", "intervals": None, **expected}


def test_results_are_those_of_the_runs_own_weights_and_data(served_runs, tmp_path):
    path = shutil.copytree(RunSummary.read(served_runs.bfan).path, tmp_path / "run")
    run = RunDirectory(path)
    (test,) = read_json_lines(run.results)
    dev = {**test, "split": "dev", "data": json.loads(run.origin.read_text())["dev"], "rsum": 7.0}
    for line in (
        {**dev, "data": "other", "rsum": 1.0},
        dev,
        {**dev, "data": "other", "rsum": 2.0},
        {**test, "model": f"{test['model']}+{test['model']}", "rsum": 3.0},
        {**test, "data": "other", "rsum": 4.0},
        {**test, "model": "replaced", "rsum": 5.0},
    ):
        append_json_line(run.results, line)
    found = {result.split: result.model_dump() for result in history.results(path).results}
    assert found.keys() == {"test", "dev"}
    assert (found["test"]["rsum"], found["dev"]["rsum"]) == (test["rsum"], 7.0)
    run.model.write_bytes(b"trained further")
    assert history.results(path).results == []


def test_weights_are_not_read_again_for_every_visitor(served_runs, tmp_path, monkeypatch):
    path = shutil.copytree(RunSummary.read(served_runs.bfan).path, tmp_path / "run")
    hashed = []
    monkeypatch.setattr(history, "hash_model", lambda run: hashed.append(run) or hash_model(run))
    first = history.results(path)
    assert history.results(path) == first
    assert first.results
    assert hashed == [path]


def test_entries_are_listed_page_by_page(client, matchers):
    pages = [
        asked(client, f"{VSRN}/entries", kind="text", split="dev", offset=offset, limit=50)
        for offset in (0, 50)
    ]
    assert [page["total"] for page in pages] == [80, 80]
    listed = [entry["number"] for page in pages for entry in page["entries"]]
    texts = matchers[0].index.texts
    assert listed == [text.number for text in texts if text.split == "dev"]


def test_a_split_that_is_not_indexed_has_no_entries(client):
    assert asked(client, f"{VSRN}/entries", split="testall") == {"total": 0, "entries": []}


def test_every_split_that_the_status_lists_can_be_asked_for(tmp_path):
    data = write_precomp(tmp_path / "precomp")
    for file in ("ims.npy", "caps.txt"):
        (data / f"test_{file}").rename(data / f"testall_{file}")
    run_recipe(tmp_path / "run", replace(small_recipe(data), rounds="one"))
    build_index(tmp_path / "run", Contents(splits=["dev", "testall"]))
    app = make_app([Matcher.load(tmp_path / "run")])
    with TestClient(app, base_url="http://localhost") as client:
        (run,) = client.get("/api/status").json()["runs"]
        found = [asked(client, f"{run['name']}/entries", split=split) for split in run["splits"]]
    assert run["splits"] == ["dev", "testall"]
    assert [page["total"] for page in found] == [6, 6]


def test_entries_can_be_searched_by_the_beginnings_of_words(client, matchers):
    found = asked(client, f"{VSRN}/entries", kind="text", query="RED flow", limit=100)
    wanted = re.compile(r"(?=.*(^|\s)red)(?=.*\sflow)", re.IGNORECASE)
    texts = matchers[0].index.texts
    assert [entry["number"] for entry in found["entries"]] == [
        text.number for text in texts if wanted.match(text.text)
    ]
    assert 0 < found["total"] < len(texts)


def test_an_entry_comes_with_what_belongs_to_it(client, matchers):
    index = matchers[0].index
    image, text = index.images[3], index.texts[index.images[3].texts[-1]]
    answer = asked(client, f"{VSRN}/entries/image/{image.number}")
    assert answer["entry"]["id"] == image.id
    assert answer["entry"]["content"] == hash_file(image.picture)
    assert [partner["number"] for partner in answer["partners"]] == list(image.texts)
    assert answer["partners"][-1]["text"] == text.text
    answer = asked(client, f"{VSRN}/entries/text/{text.number}")
    assert answer["entry"]["text"] == text.text
    assert [partner["id"] for partner in answer["partners"]] == [image.id]
    refused = client.get(f"/api/runs/{VSRN}/entries/text/{len(index.texts)}")
    assert refused.status_code == 404
    assert "There is no text" in refused.json()["error"]


def test_drawn_entries_are_the_same_for_the_same_seed(client):
    def draw(seed):
        drawn = asked(client, f"{VSRN}/entries", sample=seed, limit=12)
        return [entry["number"] for entry in drawn["entries"]]

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)
    assert len(set(draw(1))) == 12


@pytest.mark.parametrize(("size", "side"), [("thumb", 320), ("full", 1280)])
def test_pictures_are_small_jpegs(client, size, side):
    answer = client.get(f"/api/runs/{VSRN}/pictures/3", params={"size": size})
    assert answer.headers["content-type"] == "image/jpeg"
    assert "max-age" in answer.headers["cache-control"]
    picture = Image.open(io.BytesIO(answer.content))
    assert picture.format == "JPEG"
    assert max(picture.size) <= side


def test_the_page_its_files_and_the_documents_are_served(client):
    assert "text/html" in client.get("/").headers["content-type"]
    page = client.get("/").text
    files = re.findall(r'(?:src|href)="(/static/[^"#]+)', page)
    assert files
    for file in files:
        assert client.get(file).status_code == 200, file
    assert "/api/runs/{run}/images" in client.get("/openapi.json").json()["paths"]
    assert 'href="/openapi.json"' in page


def test_the_openapi_document_tells_answers_and_errors_of_every_route(client):
    document = client.get("/openapi.json").json()
    routes = {
        (path, method): route
        for path, methods in document["paths"].items()
        for method, route in methods.items()
    }
    assert len(routes) == 12
    for name, route in routes.items():
        assert route["description"], name
        assert {"200", "422", "429", "503"} <= route["responses"].keys(), name
        failure = route["responses"]["422"]["content"]["application/json"]["schema"]
        assert failure == {"$ref": "#/components/schemas/Failure"}


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"])
def test_pictures_of_all_usual_kinds_can_be_uploaded(client, kind):
    answer = client.post(f"/api/runs/{VSRN}/texts", files={"picture": picture_bytes(kind)})
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["hits"]) == 12


@pytest.fixture(scope="module")
def bare_data(tmp_path_factory):
    """Features that came without pictures, and a run on them."""
    folder = tmp_path_factory.mktemp("bare")
    data = write_precomp(folder / "precomp")
    run_recipe(folder / "run", replace(small_recipe(data), rounds="one"))
    return data, folder / "run"


@pytest.fixture(scope="module")
def bare(bare_data):
    """Twice the same run on features that came without pictures, with an index of dev only."""
    _, run = bare_data
    build_index(run, Contents(splits=["dev"]))
    matcher = Matcher.load(run)
    app = make_app([matcher, matcher])
    with TestClient(app, base_url="http://localhost") as client:
        yield client


def test_runs_of_the_same_name_and_label_are_told_apart(bare):
    runs = bare.get("/api/status").json()["runs"]
    names = [run["name"] for run in runs]
    assert names[1] == f"{names[0]}-2"
    assert len({run["label"] for run in runs}) == 2


def test_what_a_run_without_pictures_or_lists_has_not_is_said(bare):
    run = bare.get("/api/status").json()["runs"][0]
    assert not run["reads_pictures"]
    assert not run["has_negatives"]
    assert "aoq mine" in run["negatives_reason"]
    root = f"/api/runs/{run['name']}"
    refusals = [
        (409, bare.post(f"{root}/texts", files={"picture": picture_bytes()}), "which network"),
        (409, bare.get(f"{root}/negatives/image/0"), "aoq mine"),
        (404, bare.get(f"{root}/pictures/0"), "no picture"),
    ]
    for status, answer, words in refusals:
        assert (answer.status_code, words in answer.json()["error"]) == (status, True), answer.text
    hits = bare.get(f"{root}/images", params={"text_number": 0}).json()["hits"]
    assert hits
    assert {hit["picture"] for hit in hits} == {None}


def test_a_run_that_cannot_read_pictures_receives_none(bare):
    name = bare.get("/api/status").json()["runs"][0]["name"]

    async def picture():
        raise AssertionError("the body was read")
        yield b""

    async def post() -> httpx.Response:
        transport = httpx.ASGITransport(bare.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.post(f"/api/runs/{name}/texts", content=picture())

    assert asyncio.run(post()).status_code == 409


def test_an_upload_is_read_once_whatever_is_asked_of_it(client, monkeypatch):
    read = []
    regions = PictureReader.regions
    monkeypatch.setattr(
        PictureReader, "regions", lambda self, one: read.append(one) or regions(self, one)
    )
    picture = picture_bytes(size=(71, 53))
    tokens = [
        client.post(f"/api/runs/{BFAN}/texts", params={"top": top}, files={"picture": picture})
        for top in (1, 12)
    ]
    (token,) = {answer.json()["upload"] for answer in tokens}
    for text in ("a red flower", "a blue ball"):
        asked(client, f"{BFAN}/attention", upload=token, text=text)
        asked(client, f"{BFAN}/score", upload=token, text=text)
    assert len(read) == 1


def test_an_upload_that_is_no_longer_kept_is_asked_for_again(matchers):
    encoder = matchers[0].encoder
    uploads = Uploads(Limits(kept_upload_bytes=150_000))  # one picture has 92,160
    with closing(uploads.decoders):
        first, read = uploads.read(picture_bytes("PNG"), encoder)
        assert uploads.find(first) is read
        assert uploads.read(picture_bytes("PNG"), encoder) == (first, read), "the same, once"
        uploads.read(picture_bytes("BMP"), encoder)
        with pytest.raises(HTTPException, match="upload it again"):
            uploads.find(first)
    others = Uploads(Limits())
    with closing(others.decoders):
        assert others.read(picture_bytes("PNG"), encoder)[0] != first, "nobody can work it out"


def test_an_upload_to_a_run_with_other_eyes_is_asked_for_again(client, matchers, monkeypatch):
    picture = {"picture": picture_bytes()}
    token = client.post(f"/api/runs/{VSRN}/texts", files=picture).json()["upload"]
    assert asked(client, f"{BFAN}/score", upload=token, text="a red flower")["score"]
    other = replace(matchers[1].encoder.source, grid=1)
    monkeypatch.setattr(matchers[1].encoder, "known_source", other)
    refused = asked(client, f"{BFAN}/score", 404, upload=token, text="a red flower")
    assert "another run" in refused["error"]


def test_as_many_uploads_are_read_at_once_as_there_are_workers(matchers, monkeypatch):
    together = Barrier(3)
    read = PictureReader._read

    def meet(self, picture):
        together.wait(timeout=20)
        return read(self, picture)

    monkeypatch.setattr(PictureReader, "_read", meet)
    limits = Limits(working=3)
    with (
        running(make_app(matchers, limits=limits), limits) as address,
        ThreadPoolExecutor(3) as pool,
    ):
        pictures = [picture_bytes(size=(60 + n, 50)) for n in range(3)]
        post = partial(httpx.post, f"{address}/api/runs/{VSRN}/texts", timeout=60)
        answers = list(pool.map(lambda picture: post(files={"picture": picture}), pictures))
    assert [answer.status_code for answer in answers] == [200] * 3


@RUNS
def test_a_score_is_the_matchers(client, matchers, at, run):
    text = matchers[at].index.texts[15].text
    (expected,) = matchers[at].score(3, [text])
    for said in ({"text_number": 15}, {"text": text}):
        answer = asked(client, f"{run}/score", image=3, **said)
        assert answer == {"score": pytest.approx(expected, abs=1e-5), "unknown_words": []}
    zyxxy = asked(client, f"{run}/score", image=3, text="a red zyxxy")
    assert zyxxy["unknown_words"] == ["zyxxy"]


def test_a_text_of_the_index_is_scored_whatever_its_words(bare_data, tmp_path):
    """As it is found, and as its attention is shown."""
    folder, run = bare_data
    other = shutil.copytree(folder, tmp_path / "other")
    captions = (other / "dev_caps.txt").read_text().splitlines()
    (other / "dev_caps.txt").write_text("\n".join(["zyxxy", *captions[1:]]))
    build_index(run, Contents(data=other, splits=["dev"]), out=tmp_path / "index")
    matcher = Matcher.load(run, index=tmp_path / "index")
    with TestClient(make_app([matcher]), base_url="http://localhost") as client:
        name = client.get("/api/status").json()["runs"][0]["name"]
        hits = asked(client, f"{name}/images", text_number=0, top=6)["hits"]
        scored = asked(client, f"{name}/score", image=hits[0]["number"], text_number=0)
        refused = asked(client, f"{name}/score", 422, image=0, text="zyxxy")
    assert scored["score"] == pytest.approx(hits[0]["score"], abs=1e-5)
    assert scored["unknown_words"] == ["zyxxy"]
    assert "knows no word" in refused["error"]


def test_an_entry_is_found_by_its_id_in_any_index(proposing, matchers):
    """The index of the test split numbers anew what the index of all splits holds too."""
    client, bfan = proposing
    text = next(text for text in matchers[1].index.texts if text.split == "test")
    found = asked(client, f"{bfan}/entries", kind="text", id=text.id)
    assert found["total"] == 1
    assert (found["entries"][0]["id"], found["entries"][0]["number"]) == (text.id, 0)
    assert asked(client, f"{bfan}/entries", kind="text", id="nobody") == {"total": 0, "entries": []}


def test_where_a_teacher_proposes_status_and_answers_say_so(proposing):
    client, bfan = proposing
    run = client.get("/api/status").json()["runs"][1]
    assert not run["exact"]
    assert run["teacher"]["label"] == "VSRN + AdapOffQuin"
    assert run["teacher"]["proposals"] == 3
    assert run["teacher"]["recall_split"] == "test"
    assert run["teacher"]["recall"].keys() == {"i2t", "t2i"}
    assert 0 <= run["teacher"]["recall"]["t2i"]["r10"] < 1
    answers = [
        asked(client, f"{bfan}/images", text="a red flower"),
        asked(client, f"{bfan}/images", text_number=0),
        asked(client, f"{bfan}/texts", image=0),
        client.post(f"/api/runs/{bfan}/texts", files={"picture": picture_bytes()}).json(),
    ]
    assert [answer["exact"] for answer in answers] == [False] * 4
    assert all(len(answer["hits"]) == 12 for answer in answers), "more are asked for than proposed"


def test_a_teacher_that_proposes_everything_misses_nothing(served_runs, tmp_path):
    matcher = proposed_by_vsrn(served_runs, tmp_path / "index", proposals=80)
    with TestClient(make_app([matcher]), base_url="http://localhost") as client:
        (run,) = client.get("/api/status").json()["runs"]
        answer = asked(client, f"{run['name']}/texts", image=0)
    assert run["exact"]
    assert answer["exact"]


def test_pictures_of_another_index_have_other_addresses(client, proposing):
    other, bfan = proposing
    here = asked(client, f"{BFAN}/entries", limit=1)["entries"][0]["picture"]
    there = asked(other, f"{bfan}/entries", limit=1)["entries"][0]["picture"]
    assert here.partition("?")[0] == there.partition("?")[0], "the same number"
    assert here != there
    assert client.get(here).headers["content-type"] == "image/jpeg"
    refused = client.get(there)
    assert refused.status_code == 404
    assert "not served here" in refused.json()["error"]


def test_runs_with_indexes_of_the_same_entries_say_so(client, proposing):
    vsrn, bfan = (run["index"] for run in client.get("/api/status").json()["runs"])
    other = proposing[0].get("/api/status").json()["runs"][1]["index"]
    assert vsrn == bfan
    assert other != vsrn


def test_an_index_that_was_made_again_is_not_mixed_with_the_old_one(served_runs, tmp_path):
    index = tmp_path / "index"
    build_index(served_runs.vsrn, Contents(splits=["dev"]), out=index)
    matcher = Matcher.load(served_runs.vsrn, index=index)
    with TestClient(make_app([matcher]), base_url="http://localhost") as client:
        build_index(served_runs.vsrn, Contents(splits=["test"]), out=index, force=True)
        refused = asked(client, f"{VSRN}/images", 503, text="a red flower")
    assert refused["error"].startswith("The index was made again")


def test_what_is_wrong_with_a_run_is_for_its_owner_only(client, matchers, monkeypatch, caplog):
    def damaged(*args, **kwargs):
        raise UserError("/srv/runs/secret/index.json is damaged; make it again.")

    monkeypatch.setattr(matchers[0], "images_for", damaged)
    refused = asked(client, f"{VSRN}/images", 500, text="a red flower")
    assert refused["error"] == "This cannot be answered; the server's log says why."
    assert "/srv/runs/secret" in caplog.text


def test_a_run_whose_network_is_gone_is_served_without_uploads(served_runs, monkeypatch, capsys):
    matcher = Matcher.load(served_runs.vsrn)

    def gone(**bounds):
        raise UserError("/srv/models/vit is gone.")

    monkeypatch.setattr(matcher, "prepare_pictures", gone)
    with TestClient(make_app([matcher]), base_url="http://localhost") as client:
        assert not client.get("/api/status").json()["runs"][0]["reads_pictures"]
        refused = client.post(f"/api/runs/{VSRN}/texts", files={"picture": picture_bytes()})
    assert refused.status_code == 409
    assert "/srv" not in refused.text
    assert "/srv/models/vit is gone" in capsys.readouterr().err


@pytest.mark.parametrize("path", ["/", "/static/main.js"])
def test_the_page_can_be_asked_whether_it_is_there(client, path):
    answer = client.head(path)
    assert answer.status_code == 200
    assert answer.content == b""
    assert int(answer.headers["content-length"]) == len(client.get(path).content)
