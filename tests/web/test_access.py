"""Tokens, sessions and rates: who may ask, and how often."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from starlette.testclient import TestClient

from aoq.errors import UserError
from aoq.web import access
from aoq.web.access import Gate, Rate, Tokens, choose_tokens
from aoq.web.app import make_app
from tests.web.cases import VSRN, assert_refused

TOKEN, OTHER = "correct-horse-battery", "staple-of-the-other-one"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


def test_a_file_names_the_holders_of_tokens(tmp_path):
    file = tmp_path / "tokens"
    file.write_text(f"# who may search\n\nanna {TOKEN}\n{OTHER}\n")
    tokens = Tokens.read(file)
    assert (tokens.named(TOKEN), tokens.named(OTHER)) == ("anna", "token 2")
    assert tokens.named(TOKEN[:-1]) is None
    assert tokens.named("ü" * 20) is None


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"# none\n", "holds no token"),
        (b"short", "16 to 512"),
        (b"anna smith correct-horse-battery", "line 1: .* 3 words"),
        ("ein-schlüssel-zum-haus".encode(), "ASCII"),
        (b"\xff\xfe", "not text"),
        (None, "No such file"),
    ],
)
def test_a_file_that_is_no_list_of_tokens_is_refused(tmp_path, content, problem):
    file = tmp_path / "tokens"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UserError, match=problem) as error:
        Tokens.read(file)
    assert "correct-horse" not in str(error.value), "errors are logged"


def test_only_a_server_that_others_can_reach_makes_a_token_unasked(tmp_path):
    def is_guarded(token: str | None, *, private: bool) -> tuple[bool, bool]:
        tokens, made = choose_tokens(token, None, private=private)
        if tokens is not None and made is not None:
            assert tokens.named(made)
        return tokens is not None, made is not None

    assert is_guarded(None, private=True) == (False, False)
    assert is_guarded(None, private=False) == (True, True)
    assert is_guarded("none", private=False) == (False, False)
    assert is_guarded("auto", private=True) == (True, True)
    assert is_guarded(TOKEN, private=True) == (True, False)
    with pytest.raises(UserError, match="exclude each other"):
        choose_tokens(TOKEN, tmp_path, private=True)


@pytest.fixture(scope="module")
def guarded(matchers):
    """A client of a server that wants one of two tokens."""
    app = make_app(matchers, gate=Gate(Tokens({TOKEN: "anna", OTHER: "bert"})))
    with TestClient(app, base_url="http://localhost") as client:
        yield client


@pytest.fixture
def stranger(guarded):
    """The same, without a session."""
    guarded.cookies.clear()
    return guarded


API = ["/api/status", f"/api/runs/{VSRN}/images?text=a", f"/api/runs/{VSRN}/pictures/0", "/metrics"]


@pytest.mark.parametrize("path", API)
def test_nothing_is_told_without_a_token(stranger, path):
    answer = stranger.get(path)
    assert "token" in assert_refused(answer, 401)
    assert answer.headers["www-authenticate"] == "Bearer"
    assert stranger.get(path, headers=BEARER).status_code == 200
    assert_refused(stranger.get(path, headers={"Authorization": f"Bearer {TOKEN}x"}), 401)
    assert_refused(stranger.get(path, headers={"Authorization": f"Basic {TOKEN}"}), 401)
    assert_refused(stranger.get(path, params={"token": TOKEN}), 401)


def test_an_upload_is_not_even_received_without_a_token(stranger):
    assert_refused(stranger.post(f"/api/runs/{VSRN}/texts", content=b"x" * 2_000_000), 401)


@pytest.mark.parametrize("path", ["/", "/static/main.js", "/healthz", "/openapi.json"])
def test_the_page_and_the_health_check_are_for_everybody(stranger, path):
    assert stranger.get(path).status_code == 200


def test_a_browser_exchanges_its_token_for_a_session(stranger):
    answer = stranger.post("/api/session", json={"token": TOKEN})
    assert answer.status_code == 204
    cookie = answer.headers["set-cookie"].lower()
    assert TOKEN not in cookie
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "secure" not in cookie
    for path in API:
        assert stranger.get(path).status_code == 200, path
    ((name, value),) = stranger.cookies.items()
    stranger.cookies.clear()
    stranger.cookies.set(name, value[::-1])
    assert_refused(stranger.get("/api/status"), 401)


def test_a_session_begun_over_tls_is_never_sent_without(matchers):
    app = make_app(matchers, gate=Gate(Tokens({TOKEN: "anna"})), hosts={"photos.example"})
    with TestClient(app, base_url="http://photos.example") as client:
        origin = {"Origin": "https://photos.example"}
        answer = client.post("/api/session", json={"token": TOKEN}, headers=origin)
    assert answer.status_code == 204
    assert "secure" in answer.headers["set-cookie"].lower()


@pytest.mark.parametrize(
    ("body", "status"),
    [({"token": OTHER[:-1]}, 401), ({"token": ""}, 422), ({}, 422), ([], 422), ("ü", 422)],
)
def test_another_token_begins_no_session(stranger, body, status):
    answer = stranger.post("/api/session", json=body)
    assert_refused(answer, status)
    assert "set-cookie" not in answer.headers


def test_another_site_cannot_begin_a_session(stranger):
    headers = {"Origin": "http://evil.example"}
    assert_refused(stranger.post("/api/session", json={"token": TOKEN}, headers=headers), 403)


def test_a_token_that_was_issued_is_accepted_by_this_server_only():
    tokens = Tokens({TOKEN: "anna"})
    issued = tokens.issue("aoq search")
    assert tokens.named(issued) == "aoq search"
    assert Tokens({TOKEN: "anna"}).named(issued) is None


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(access.time, "monotonic", lambda: clock.now)
    return clock


def test_a_rate_allows_a_burst_and_then_its_number_per_second(clock):
    rate = Rate(2)
    assert [rate.wait("anna") for _ in range(20)] == [0.0] * 20
    assert rate.wait("anna") == pytest.approx(0.5)
    assert rate.wait("bert") == 0.0
    clock.now += 0.5
    assert rate.wait("anna") == 0.0
    assert rate.wait("anna") > 0
    clock.now += 1000
    assert [rate.wait("anna") for _ in range(20)] == [0.0] * 20
    assert rate.wait("anna") > 0, "a quiet visitor saves up no more than a burst"


def test_a_slow_rate_allows_one_request_at_a_time(clock):
    rate = Rate(0.05)
    assert rate.wait("anna") == 0.0
    assert rate.wait("anna") == pytest.approx(20)


def test_each_token_has_a_rate_of_its_own_and_strangers_have_that_of_their_address(matchers):
    gate = Gate(Tokens({TOKEN: "anna", OTHER: "bert"}), Rate(0.1))
    with TestClient(make_app(matchers, gate=gate), base_url="http://localhost") as client:
        assert client.get("/api/status", headers=BEARER).status_code == 200
        late = client.get("/api/status", headers=BEARER)
        assert_refused(late, 429)
        assert 0 < int(late.headers["retry-after"]) <= 10
        other = {"Authorization": f"Bearer {OTHER}"}
        assert client.get("/api/status", headers=other).status_code == 200
        assert client.post("/api/session", json={"token": "guess"}).status_code == 401
        assert client.post("/api/session", json={"token": "guess"}).status_code == 429
        assert client.get("/healthz").status_code == 200
