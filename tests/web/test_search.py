"""Searches by JSON: what is asked is what the matcher answers, and what is wrong is refused."""

from __future__ import annotations

import io
import json

import pytest
from PIL import Image

from aoq.retrieval.queries import Query
from tests.web.cases import BFAN, RUNS, UPLOAD, VSRN, asked, assert_refused
from tests.web.conftest import picture_bytes

SEARCH = f"/api/runs/{VSRN}/search"
JSON = {"Content-Type": "application/json"}


def found(client, run: str = VSRN, **query) -> dict:
    answer = client.post(f"/api/runs/{run}/search", json=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


@RUNS
@pytest.mark.parametrize(
    "query",
    [
        {"texts": ["a red bird"]},
        {"texts": [7]},
        {"texts": ["a bird", 3], "weights": [2, 0.5], "top": 5},
        {"texts": ["a bird"], "without": ["a tree"], "words": "off"},
        {"texts": ["a bird"], "words": "only", "where": "split = test"},
        {"texts": ["a bird"], "min_score": 0.01, "collapse": True},
        {"like": [3]},
        {"like": [3], "texts": ["a tree"]},
        {"like": [3], "find": "texts"},
    ],
    ids=str,
)
def test_a_search_is_the_matchers(client, matchers, at, run, query):
    answer = found(client, run, **query)
    asked_for = {"top": 12, **query}
    wanted = matchers[at].find(Query(images=asked_for.pop("like", ()), **asked_for))
    hits = answer["hits"]
    assert [hit["number"] for hit in hits] == [hit.number for hit in wanted.hits]
    assert [hit["score"] for hit in hits] == pytest.approx([hit.score for hit in wanted.hits])
    assert [hit["probability"] for hit in hits] == [hit.probability for hit in wanted.hits]
    assert [hit["duplicates"] for hit in hits] == [list(hit.duplicates) for hit in wanted.hits]
    assert answer["ranked_by"] == wanted.ranked_by
    assert answer["nothing_fits"] == wanted.nothing_fits


def test_a_bar_that_nothing_reaches_is_said(client):
    answer = found(client, texts=["a bird"], min_score=1e6)
    assert answer["hits"] == []
    assert answer["nothing_fits"]
    assert answer["bar"] == 1e6


def test_photos_like_an_upload_are_asked_by_its_name(client, matchers):
    picture = matchers[0].index.images[3].picture.read_bytes()
    name = client.post(f"/api/runs/{VSRN}/uploads", files={"picture": picture}).json()["upload"]
    assert name == client.post(UPLOAD, files={"picture": picture}).json()["upload"]
    assert found(client, like=[name])["hits"][0]["number"] == 3
    assert found(client, like=[name, 5], texts=["a bird"])["hits"]
    other = client.post(f"/api/runs/{BFAN}/search", json={"like": [name]})
    assert other.status_code in (200, 404)  # 404 if it looks at pictures in another way


def test_columns_are_those_that_filters_know(client, matchers):
    columns = {column["name"]: column for column in asked(client, f"{VSRN}/columns")["columns"]}
    splits = {value["value"]: value["count"] for value in columns["split"]["values"]}
    assert sum(splits.values()) == len(matchers[0].index.images)
    for split, count in splits.items():
        hits = found(client, texts=["a"], where=f"split = {split}", top=100, words="off")["hits"]
        assert len(hits) == count
    assert columns["width"]["kind"] == "number"
    entry = asked(client, f"{VSRN}/entries/image/3")
    assert entry["entry"]["id"].endswith(entry["columns"]["name"])
    assert entry["columns"]["width"] > 0


def test_a_picture_comes_in_its_own_size(client, matchers):
    with Image.open(matchers[0].index.images[3].picture) as picture:
        size = picture.size
    sent = client.get(f"/api/runs/{VSRN}/pictures/3", params={"size": "original"})
    with Image.open(io.BytesIO(sent.content)) as picture:
        assert (picture.format, picture.size) == ("JPEG", size)


def test_a_picture_of_too_many_pixels_does_not(client, monkeypatch):
    monkeypatch.setattr("aoq.web.thumbnails.ORIGINAL_PIXELS", 100)
    answer = client.get(f"/api/runs/{VSRN}/pictures/3", params={"size": "original"})
    assert "size=full" in assert_refused(answer, 409)


WRONG = {
    "nothing": b"",
    "no JSON": b"{",
    "not UTF-8": b'{"texts": ["\xff"]}',
    "a list": b"[]",
    "null": b"null",
    "no query": b"{}",
    "empty lists": b'{"texts": [], "like": []}',
    "an empty text": b'{"texts": [""]}',
    "a space": b'{"texts": [" "]}',
    "no word that is known": b'{"texts": ["zyxxy"], "words": "off"}',
    "a text that is too long": json.dumps({"texts": ["a" * 501]}).encode(),
    "nine texts": json.dumps({"texts": ["a"] * 9}).encode(),
    "nine photos": json.dumps({"like": [1] * 9}).encode(),
    "a text as such": b'{"texts": "a"}',
    "a number as text": b'{"texts": [1.5]}',
    "a negative number": b'{"texts": [-1]}',
    "a boolean": b'{"like": [true]}',
    "a number like a word": b'{"texts": ["a"], "top": "3"}',
    "no hits": b'{"texts": ["a"], "top": 0}',
    "too many hits": b'{"texts": ["a"], "top": 101}',
    "not a number": b'{"texts": ["a"], "min_score": NaN}',
    "infinity": b'{"texts": ["a"], "weights": [Infinity]}',
    "too few weights": b'{"texts": ["a", "b"], "weights": [1]}',
    "a weight of nothing": b'{"texts": ["a"], "weights": [0]}',
    "certainty": b'{"texts": ["a"], "min_precision": 1}',
    "other things": b'{"texts": ["a"], "find": "files"}',
    "an unknown field": b'{"texts": ["a"], "path": "/etc/passwd"}',
    "a filter of nothing": b'{"texts": ["a"], "where": ""}',
    "a filter that ends early": b'{"texts": ["a"], "where": "split ="}',
    "an unknown column": b'{"texts": ["a"], "where": "password = 1"}',
    "a filter that is code": b'{"texts": ["a"], "where": "__import__(os)"}',
    "a deep filter": json.dumps({"texts": ["a"], "where": "(" * 900}).encode(),
    "a filter of noes": json.dumps({"texts": ["a"], "where": "not " * 240}).encode(),
    "a long filter": json.dumps({"texts": ["a"], "where": "x" * 1001}).encode(),
    "words of a photo": b'{"like": [1], "words": "only"}',
    "duplicates of texts": b'{"like": [1], "find": "texts", "collapse": true}',
    "a deep list": b"[" * 30_000,
    "a long number": b'{"texts": [' + b"9" * 5000 + b"]}",
}


@pytest.mark.parametrize("body", WRONG.values(), ids=WRONG)
def test_a_query_that_is_wrong_is_refused(client, body):
    assert_refused(client.post(SEARCH, content=body, headers=JSON), 422)


@pytest.mark.parametrize(
    "query",
    [{"texts": [400]}, {"like": [80]}, {"like": ["nobody"]}, {"texts": ["a"], "like": [3, 80]}],
    ids=str,
)
def test_what_there_is_not_is_not_found(client, query):
    assert_refused(client.post(SEARCH, json=query), 404)


def test_a_body_that_is_too_large_is_given_up(client):
    body = json.dumps({"texts": ["a"], "where": "x" * 70_000}).encode()
    assert_refused(client.post(SEARCH, content=body, headers=JSON), 413)
    endless = (b" " * 8192 for _ in range(100))
    assert_refused(client.post(SEARCH, content=endless, headers=JSON), 413)


@pytest.mark.parametrize("kind", ["", "text/plain", "multipart/form-data; boundary=x"])
def test_only_json_is_read(client, kind):
    """A form of another site could send these without asking."""
    assert_refused(
        client.post(SEARCH, content=b'{"texts": ["a"]}', headers={"content-type": kind}), 415
    )


def test_a_page_of_another_site_cannot_search(client):
    headers = {"Origin": "http://evil.example"}
    assert_refused(client.post(SEARCH, json={"texts": ["a"]}, headers=headers), 403)


def test_an_upload_to_ask_about_is_bounded_as_any_other(client):
    path = f"/api/runs/{VSRN}/uploads"
    assert_refused(client.post(path, files={"picture": b"no picture"}), 422)
    assert_refused(client.post(path, files={"picture": b"x" * 10_100_000}), 413)
    assert client.post(path, files={"picture": picture_bytes()}).status_code == 200
