"""Commands that ask a running server: the same output, no model; and a server that watches."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import time
from threading import Event, Thread

import pytest

from aoq.retrieval.build import build_index
from aoq.retrieval.index import Index
from aoq.retrieval.matcher import Matcher
from aoq.retrieval.queries import Query
from aoq.retrieval.running import Served, announced, ask_server
from aoq.retrieval.target import open_target
from aoq.retrieval.watch import watching
from aoq.storage import cache_folder
from aoq.web.app import make_app
from aoq.web.limits import Limits
from aoq.web.server import running
from tests.commands import aoq
from tests.retrieval.conftest import draw_photo


@pytest.fixture
def served(world, tmp_path):
    """A server of a run, that commands can find."""
    index = build_index(world.runs["vse"], out=tmp_path / "index")
    matcher = Matcher.load(world.runs["vse"], index=index.folder)
    target = tmp_path / "run"
    with running(make_app([matcher]), Limits()) as url:
        about = [Served(str(target), matcher.name, str(index.folder))]
        with announced(url, "secret", about):
            yield target, matcher


def test_a_server_answers_as_the_matcher(served):
    target, matcher = served
    for query in (
        {"texts": ["a red ball"], "top": 7},
        {"texts": ["a red ball", "two cup"], "without": ["two"], "where": "split = test", "top": 3},
        {"texts": ["red"], "words": "off", "min_precision": 0.2, "top": 10},
    ):
        expected = matcher.find(Query(**{**query, "texts": tuple(query["texts"])}))
        found = ask_server(target, query)
        assert found is not None
        assert [hit.id for hit in found.hits] == [hit.id for hit in expected.hits]
        assert found == expected


def test_what_the_server_cannot_answer_is_left_to_the_command(served, tmp_path):
    target, _ = served
    assert ask_server(tmp_path / "other", {"texts": ["red"]}) is None
    assert ask_server(target, {"texts": ["red"], "where": "nothing = here"}) is None
    assert ask_server(target, {"texts": []}) is None


def test_a_server_that_is_gone_or_was_killed_is_passed_over(served, tmp_path):
    target, _ = served
    folder = cache_folder() / "servers"
    dead = folder / "999999999.json"
    dead.write_text(json.dumps({"url": "http://127.0.0.1:9", "token": None, "served": []}))
    (folder / "1.json").write_text("{")
    assert ask_server(target, {"texts": ["red"]}) is not None
    assert ask_server(tmp_path / "other", {"texts": ["red"]}) is None  # after all were read
    assert not dead.exists()
    (folder / "1.json").unlink()
    with announced("http://127.0.0.1:9", None, [Served(str(tmp_path / "gone"), "x", "y")]):
        assert ask_server(tmp_path / "gone", {"texts": ["red"]}) is None


def test_a_port_that_speaks_no_http_is_passed_over(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"

        def greet() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"220 mail.example ESMTP\r\n")
                connection.recv(65_536)

        with announced(url, None, [Served(str(tmp_path / "run"), "x", "y")]):
            thread = Thread(target=greet)
            thread.start()
            assert ask_server(tmp_path / "run", {"texts": ["red"]}) is None
            thread.join()


def test_a_server_of_another_model_is_not_asked(served, world, monkeypatch):
    _, matcher = served
    place, index = cache_folder() / "photos", str(matcher.index.folder)
    (announcement,) = (cache_folder() / "servers").glob("*.json")
    about = json.loads(announcement.read_text())
    monkeypatch.setenv("AOQ_MODEL", str(world.runs["vse"]))
    about["served"] = [vars(Served(str(place), matcher.name, index, model=str(world.runs["vse"])))]
    announcement.write_text(json.dumps(about))
    assert ask_server(place, {"texts": ["red"]}) is not None
    monkeypatch.setenv("AOQ_MODEL", str(world.runs["vsrn"]))
    assert ask_server(place, {"texts": ["red"]}) is None
    monkeypatch.setenv("AOQ_MODEL", str(place / "gone"))
    assert ask_server(place, {"texts": ["red"]}) is None


def test_only_its_user_can_read_where_a_server_is(tmp_path):
    with announced("http://127.0.0.1:9", "secret", []):
        path = cache_folder() / "servers" / f"{os.getpid()}.json"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not path.exists()


def test_an_answer_about_a_changed_index_is_not_used(served):
    target, matcher = served
    manifest = matcher.index.folder / "index.json"
    fields = json.loads(manifest.read_text())
    fields["parts"].reverse()
    manifest.write_text(json.dumps(fields))
    assert ask_server(target, {"texts": ["red"]}) is None


def test_the_command_asks_the_server_and_imports_no_torch(served):
    target, matcher = served
    shutil.copytree(matcher.run, target)
    script = (
        "import atexit, sys; from aoq.cli import main;"
        "atexit.register(lambda: print('torch' in sys.modules));"
        f"sys.argv = ['aoq', 'search', {str(target)!r}, 'a red ball', '--top', '2']; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.rstrip().endswith("False"), done.stderr
    assert matcher.find(Query(texts=("a red ball",))).hits[0].id in done.stdout


# Watching


def wait_for(condition, *, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.05)


def test_a_watched_folder_s_changes_are_indexed_while_it_is_served(world, tmp_path, capsys):
    photos = tmp_path / "photos"
    for seed in range(2):
        draw_photo(photos / f"{seed}.png", seed=500 + seed)
    target = open_target(photos, run=world.runs["vse"])
    matcher = Matcher.load(target.run, index=target.index)
    with watching(matcher, seconds=0.05):
        draw_photo(photos / "new.png", seed=510)
        wait_for(lambda: len(Index.open(target.index).images) == 3)
        (photos / "0.png").unlink()
        wait_for(lambda: len(Index.open(target.index).images) == 2)
    hits = Matcher.load(target.run, index=target.index).search("red", top=9).hits
    assert {hit.id for hit in hits} == {"1.png", "new.png"}


def test_a_long_update_does_not_keep_a_server_from_stopping(served, monkeypatch):
    _, matcher = served
    begun, ended = Event(), Event()

    def update(*args, **kwargs):
        begun.set()
        ended.wait(60)

    monkeypatch.setattr("aoq.retrieval.watch.sync_photos", update)
    monkeypatch.setattr("aoq.retrieval.watch._LAST", 0.1)
    started = time.monotonic()
    with watching(matcher, seconds=0.01):
        begun.wait(60)
    assert time.monotonic() - started < 30
    ended.set()


def test_an_update_that_fails_is_tried_again_and_said_once(served, monkeypatch, capsys):
    _, matcher = served
    tries = []

    def update(*args, **kwargs):
        tries.append(kwargs)
        raise RuntimeError("the disk is asleep")

    monkeypatch.setattr("aoq.retrieval.watch.sync_photos", update)
    with watching(matcher, seconds=0.01):
        wait_for(lambda: len(tries) > 2)
    assert capsys.readouterr().err.count("the disk is asleep") == 1


def test_a_folder_is_searched_by_the_command(world, tmp_path):
    photos = tmp_path / "photos"
    draw_photo(photos / "trips" / "a.png", seed=520)
    draw_photo(photos / "b.png", seed=521)
    run = world.runs["vse"]
    found = aoq("search", photos, "a red ball", "--run", run, "--where", "folder = trips")
    assert found.returncode == 0, found.stderr
    assert "trips/a.png" in found.stdout
    assert "b.png" not in found.stdout
    assert len(Index.open(open_target(photos, run=run).index).images) == 2
