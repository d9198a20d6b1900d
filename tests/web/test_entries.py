"""Entries of an index, their pictures, and the negatives of their lists."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from PIL import Image
from starlette.testclient import TestClient

from aoq.mining.candidates import CandidateLists
from aoq.retrieval.build import Contents, build_index
from aoq.retrieval.matcher import Matcher
from aoq.storage import hash_file
from aoq.training.two_rounds import run_recipe
from aoq.web.app import make_app
from tests.conftest import write_precomp
from tests.training.cases import small_recipe
from tests.web.cases import RUNS, VSRN, asked


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
