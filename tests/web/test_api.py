"""Status, search, attention and scores, held against what the matcher says."""

from __future__ import annotations

import re
import shutil

import pytest
from starlette.testclient import TestClient

import aoq
from aoq.data.splits import open_dataset
from aoq.errors import UserError
from aoq.retrieval.build import Contents, build_index
from aoq.retrieval.matcher import Matcher
from aoq.runs.summary import RunSummary
from aoq.web.app import make_app
from tests.web.cases import BFAN, RUNS, VSRN, asked
from tests.web.conftest import picture_bytes


def test_the_status_lists_runs_and_limits(client, matchers, served_runs):
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
    assert [vsrn["label"], bfan["label"]] == ["scenes · VSRN", "scenes · BFAN"]
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


def test_the_page_its_files_and_the_documents_are_served(client):
    assert "text/html" in client.get("/").headers["content-type"]
    page = client.get("/").text
    files = re.findall(r'(?:src|href)="(/static/[^"#]+)', page)
    assert files
    for file in files:
        assert client.get(file).status_code == 200, file
    assert "/api/runs/{run}/images" in client.get("/openapi.json").json()["paths"]
    assert 'href="/openapi.json"' in page


def test_the_openapi_document_has_answers_and_errors_of_every_route(client):
    document = client.get("/openapi.json").json()
    routes = {
        (path, method): route
        for path, methods in document["paths"].items()
        for method, route in methods.items()
    }
    assert len(routes) == 17
    for name, route in routes.items():
        assert route["description"], name
        if not name[0].startswith("/api/"):
            continue
        assert {"200", "422", "429", "503"} <= route["responses"].keys(), name
        failure = route["responses"]["422"]["content"]["application/json"]["schema"]
        assert failure == {"$ref": "#/components/schemas/Failure"}


def test_runs_of_the_same_name_and_label_are_distinguished(bare):
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


@RUNS
def test_a_score_is_the_matchers(client, matchers, at, run):
    text = matchers[at].index.texts[15].text
    (expected,) = matchers[at].score(3, [text])
    for said in ({"text_number": 15}, {"text": text}):
        answer = asked(client, f"{run}/score", image=3, **said)
        score = pytest.approx(expected, abs=1e-5)
        assert answer == {"score": score, "probability": None, "unknown_words": []}
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


def test_what_is_wrong_with_a_run_is_for_its_owner_only(client, matchers, monkeypatch, caplog):
    def damaged(*args, **kwargs):
        raise UserError("/srv/runs/secret/index.json is damaged; make it again.")

    monkeypatch.setattr(matchers[0], "images_for", damaged)
    refused = asked(client, f"{VSRN}/images", 500, text="a red flower")
    assert refused["error"] == "This cannot be answered; the server's log says why."
    assert "/srv/runs/secret" in caplog.text


@pytest.mark.parametrize("path", ["/", "/static/main.js"])
def test_the_page_can_be_asked_whether_it_is_there(client, path):
    answer = client.head(path)
    assert answer.status_code == 200
    assert answer.content == b""
    assert int(answer.headers["content-length"]) == len(client.get(path).content)
