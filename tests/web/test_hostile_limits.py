"""Too many, too slow, too long: what is bounded by number and by time."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from urllib.parse import urlsplit

import httpx
import pytest
from starlette.requests import Request
from starlette.testclient import TestClient

from aoq.errors import UserError
from aoq.web.app import make_app
from aoq.web.limits import Limits
from aoq.web.server import running
from aoq.web.uploads import Uploads
from tests.web.cases import MULTIPART, UPLOAD, assert_refused, parsed
from tests.web.conftest import many_scans, picture_bytes

ENTRIES = "/api/runs/vsrn-round-two/entries"


def until(condition: Callable[[], bool]) -> None:
    """Wait for what has to happen soon, on a busy machine too."""
    given_up = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < given_up
        time.sleep(0.02)


def is_served(address: str) -> bool:
    try:
        return httpx.get(address + ENTRIES).status_code == 200
    except httpx.TransportError:
        return False


@contextmanager
def busy(app, requests: int) -> Iterator[None]:
    """So many requests under way or in line, until the block ends."""
    workers, are_placed, release = app.state.service.workers, threading.Event(), threading.Event()

    async def hold() -> None:
        held = [asyncio.create_task(workers.run(release.wait)) for _ in range(requests)]
        await asyncio.sleep(0)  # each begins by taking its place
        are_placed.set()
        await asyncio.gather(*held, return_exceptions=True)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, hold())
        assert are_placed.wait(30)
        try:
            yield
        finally:
            release.set()


def test_when_the_queue_is_full_visitors_are_asked_to_come_back(matchers):
    limits = Limits(working=1, waiting=1)
    app = make_app(matchers, limits=limits)
    with running(app, limits) as address:
        with busy(app, 2):
            answer = httpx.get(address + ENTRIES)
            assert "busy" in assert_refused(answer, 429)
            assert int(answer.headers["retry-after"]) > 0
            assert httpx.get(f"{address}/openapi.json").status_code == 200, "the loop is free"
        assert httpx.get(address + ENTRIES).status_code == 200


def test_a_request_in_line_is_served_when_its_turn_comes(matchers):
    limits = Limits(working=1, waiting=1)
    app = make_app(matchers, limits=limits)
    with running(app, limits) as address, ThreadPoolExecutor(1) as pool:
        with busy(app, 1):
            waiting = pool.submit(httpx.get, address + ENTRIES)
            time.sleep(0.3)
            assert not waiting.done()
        assert waiting.result().status_code == 200


def test_an_answer_that_takes_too_long_is_given_up(matchers):
    limits = Limits(working=1, waiting=1, seconds=0.3)
    app = make_app(matchers, limits=limits)
    with running(app, limits) as address:
        with busy(app, 1):
            assert "0.3 seconds" in assert_refused(httpx.get(address + ENTRIES), 503)
        assert httpx.get(address + ENTRIES).status_code == 200


def test_work_that_was_given_up_keeps_its_place_until_it_ends(matchers):
    limits = Limits(working=1, waiting=0, seconds=0.2)
    app = make_app(matchers, limits=limits)
    with running(app, limits) as address:
        with busy(app, 1):
            time.sleep(0.4)
            assert_refused(httpx.get(address + ENTRIES), 429)
        assert httpx.get(address + ENTRIES).status_code == 200


def connect(address: str) -> socket.socket:
    place = urlsplit(address)
    return socket.create_connection((place.hostname, place.port), timeout=10)


def received(connection: socket.socket) -> bytes:
    """All that comes until the other side ends it."""
    pieces = []
    while piece := connection.recv(65_536):
        pieces.append(piece)
    return b"".join(pieces)


def begin_upload(connection: socket.socket) -> None:
    head = (
        f"POST {UPLOAD} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {MULTIPART}\r\n"
        "Content-Length: 1000\r\n\r\n--x\r\n"
    )
    connection.sendall(head.encode())


@pytest.fixture(scope="module")
def hasty(matchers) -> Iterator[str]:
    """A server with little patience."""
    limits = Limits(upload_seconds=1.0, head_seconds=1.0)
    with running(make_app(matchers, limits=limits), limits) as address:
        yield address


def test_a_body_that_comes_too_slowly_is_given_up(hasty):
    with connect(hasty) as connection:
        begin_upload(connection)
        started = time.monotonic()
        assert "1 seconds" in assert_refused(parsed(received(connection)), 408)
        assert 0.9 < time.monotonic() - started < 9


def test_an_upload_too_many_is_asked_to_come_back_until_the_first_has_gone(matchers):
    limits = Limits(uploads=1)
    app = make_app(matchers, limits=limits)
    uploads = app.state.service.uploads
    with running(app, limits) as address:
        post = partial(httpx.post, address + UPLOAD, files={"picture": picture_bytes()})
        with connect(address) as connection:
            begin_upload(connection)
            until(lambda: uploads.held == 1)
            assert_refused(post(), 429)
            assert is_served(address), "others are"
        until(lambda: uploads.held == 0)
        assert post().status_code == 200


def test_an_upload_has_its_place_until_it_is_answered(matchers):
    """Those in line are held in memory like those that arrive."""
    limits = Limits(uploads=1, working=1, waiting=20)
    app = make_app(matchers, limits=limits)
    with running(app, limits) as address, ThreadPoolExecutor(1) as pool:
        post = partial(httpx.post, address + UPLOAD, files={"picture": picture_bytes()}, timeout=30)
        with busy(app, 1):
            waiting = pool.submit(post)
            until(lambda: app.state.service.uploads.held == 1)
            assert_refused(post(), 429)
            assert not waiting.done()
        assert waiting.result().status_code == 200
        assert post().status_code == 200


def test_a_body_is_gone_with_its_place():
    """Work that was given up stands in line until a thread comes to it, with what it was given."""
    uploads = Uploads(Limits(uploads=1))
    form = (
        b'--x\r\nContent-Disposition: form-data; name="picture"; filename="a"\r\n\r\nabc\r\n--x--'
    )
    scope = {"type": "http", "headers": [(b"content-type", MULTIPART.encode())]}

    async def body():
        return {"type": "http.request", "body": form}

    async def give_up() -> None:
        for _ in range(2):
            with suppress(TimeoutError):
                async with uploads.receive(Request(scope, body)) as held:
                    assert held.read() == b"abc"
                    raise TimeoutError
            assert held.closed

    asyncio.run(give_up())


def test_a_head_that_never_ends_is_given_up(hasty):
    with connect(hasty) as connection:
        started = time.monotonic()
        connection.sendall(b"GET / HTTP/1.1\r\n")
        with suppress(ConnectionError):
            while time.monotonic() - started < 9:  # a header now and then does not help
                connection.sendall(b"X-Slow: 1\r\n")
                time.sleep(0.1)
        assert 0.9 < time.monotonic() - started < 9


def test_a_silent_connection_is_closed(hasty):
    with connect(hasty) as connection:
        assert received(connection) == b""


def test_a_connection_too_many_is_rejected(matchers):
    limits = Limits(connections=3, head_seconds=30)
    with running(make_app(matchers, limits=limits), limits) as address:
        with ExitStack() as patient:
            for _ in range(limits.connections):
                patient.enter_context(connect(address))
            until(lambda: httpx.get(address).status_code == 503)
        until(lambda: is_served(address))


def test_who_asks_and_never_reads_is_cut_off(matchers):
    """More answers than the system's buffers hold, of requests that fit into one buffer."""
    limits = Limits(seconds=0.5, upload_seconds=0.5, answer_seconds=0.5, head_seconds=0.5)
    request = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with running(make_app(matchers, limits=limits), limits) as address:
        answer = len(httpx.get(f"{address}/openapi.json").content)
        with connect(address) as deaf:
            deaf.sendall(request * 300)
            time.sleep(3)
            taken = 0
            with suppress(ConnectionError):
                while piece := deaf.recv(65_536):
                    taken += len(piece)
            assert taken < 300 * answer


def test_who_reads_an_answer_slowly_gets_all_of_it(matchers):
    """The time for the next head begins when the answer has been taken."""
    limits = Limits(head_seconds=0.5, answer_seconds=20, connections=1)
    request = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    large = b"x" * 8_000_000

    async def answer(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": large})

    with running(answer, limits) as address:
        place = urlsplit(address)
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            slow.connect((place.hostname, place.port))
            slow.sendall(request)
            time.sleep(2)
            assert len(received(slow)) > len(large)


@pytest.mark.parametrize(
    ("setting", "value", "sentence"),
    [
        ("working", 0, "--workers is 0; it has to be more than 0."),
        ("upload_bytes", 0, "--max-upload is 0; it has to be more than 0."),
        ("waiting", -1, "--waiting is -1; it has to be at least 0."),
        ("uploads", 0, "uploads is 0; it has to be more than 0."),
    ],
)
def test_limits_that_let_nothing_pass_are_refused_by_the_flag_that_sets_them(
    setting, value, sentence
):
    with pytest.raises(UserError, match=f"^{re.escape(sentence)}$"):
        Limits(**{setting: value})


def test_more_pixels_than_are_ever_read_are_refused():
    assert Limits(pixels=100_000_000).pixels == 100_000_000
    with pytest.raises(UserError, match=r"--max-pixels is 100,000,001; .* smaller"):
        Limits(pixels=100_000_001)


def test_a_hostile_picture_keeps_a_worker_for_seconds_only(matchers):
    limits = Limits(working=1, decode_seconds=0.5)
    with running(make_app(matchers, limits=limits), limits) as address:
        answer = httpx.post(address + UPLOAD, files={"picture": many_scans(20_000)}, timeout=30)
        assert "takes too long" in assert_refused(answer, 422)
        answer = httpx.post(address + UPLOAD, files={"picture": picture_bytes()})
        assert answer.status_code == 200


def test_a_response_that_never_ends_is_cut_off(matchers):
    limits = Limits(seconds=0.2, upload_seconds=0.2, answer_seconds=0.2)

    async def endless(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.sleep(60)

    with running(endless, limits) as address:
        started = time.monotonic()
        with pytest.raises(httpx.TransportError):
            httpx.get(address, timeout=30)
        assert time.monotonic() - started < 9


def test_a_defect_is_a_sentence_to_visitors_and_a_traceback_in_the_log(
    matchers, monkeypatch, caplog
):
    def broken(*args, **kwargs):
        raise RuntimeError("secret")

    monkeypatch.setattr(matchers[0], "images_for", broken)
    app = make_app(matchers)
    with TestClient(app, base_url="http://localhost", raise_server_exceptions=False) as client:
        answer = client.get("/api/runs/vsrn-round-two/images", params={"text": "a red flower"})
    assert "secret" not in assert_refused(answer, 500)
    assert "secret" in caplog.text
