"""Uploaded pictures: what they find, how long they are kept, and who receives none."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial
from threading import Barrier

import httpx
import pytest
from starlette.exceptions import HTTPException
from starlette.testclient import TestClient

from aoq.errors import UserError
from aoq.features.regions import PictureReader
from aoq.retrieval.matcher import Matcher
from aoq.web.app import make_app
from aoq.web.limits import Limits
from aoq.web.server import running
from aoq.web.uploads import Uploads
from tests.web.cases import BFAN, RUNS, VSRN, asked
from tests.web.conftest import picture_bytes


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


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"])
def test_pictures_of_all_usual_kinds_can_be_uploaded(client, kind):
    answer = client.post(f"/api/runs/{VSRN}/texts", files={"picture": picture_bytes(kind)})
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["hits"]) == 12


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
