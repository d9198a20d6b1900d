"""Indexes in which a teacher proposes, of other splits, and those made again."""

from __future__ import annotations

from starlette.testclient import TestClient

from aoq.retrieval.build import Contents, build_index
from aoq.retrieval.matcher import Matcher
from aoq.web.app import make_app
from tests.web.cases import BFAN, VSRN, asked
from tests.web.conftest import picture_bytes, proposed_by_vsrn


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
    assert run["teacher"]["label"] == "VSRN"
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
