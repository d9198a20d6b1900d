"""Photos that come and go while a server runs."""

from __future__ import annotations

from PIL import Image
from starlette.testclient import TestClient

from aoq.retrieval.build import Contents, add_photos, build_index
from aoq.retrieval.matcher import Matcher
from aoq.web.app import make_app


def test_a_server_follows_an_index_that_grows_and_notices_photos_that_go(served_runs, tmp_path):
    for folder, colour in (("album", "red"), ("later", "blue")):
        (tmp_path / folder).mkdir()
        Image.new("RGB", (64, 48), colour).save(tmp_path / folder / f"{colour}.png")
    index, run = tmp_path / "index", served_runs.vsrn
    build_index(run, Contents(with_data=False, pictures=[tmp_path / "album"]), out=index)
    app = make_app([Matcher.load(run, index=index)])
    with TestClient(app, base_url="http://localhost") as client:
        (name,) = app.state.service.watched
        growing = app.state.service.watched[name]

        def entries():
            growing.current()
            growing.wait()
            return client.get(f"/api/runs/{name}/entries").json()["entries"]

        (first,) = entries()
        assert client.get(first["picture"]).status_code == 200
        add_photos(run, tmp_path / "later", index=index)
        assert [entry["id"] for entry in entries()] == ["red.png", "blue.png"]
        assert client.get(first["picture"]).status_code == 200  # of the index before
        (tmp_path / "album" / "red.png").unlink()
        red, blue = entries()
        assert (red["picture"], red["picture_gone"]) == (None, True)
        assert blue["picture_gone"] is False
        assert client.get(first["picture"]).status_code == 404  # not from memory either
