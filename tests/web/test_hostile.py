"""Damaged and hostile requests: each is refused with a sentence, and the server goes on."""

from __future__ import annotations

import asyncio
import io
import socket
import struct
import zlib
from contextlib import suppress
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest
from fastapi import Depends, FastAPI
from PIL import Image
from starlette.exceptions import HTTPException

from aoq.features.pictures import open_picture, upright
from aoq.web.security import LOOPBACK_NAMES, SECURITY_HEADERS, KnownVisitors
from aoq.web.thumbnails import Thumbnails, make_thumbnail
from tests.web.cases import MULTIPART, UPLOAD, VSRN, assert_refused, parsed
from tests.web.conftest import picture_bytes

MB = 1_000_000


@pytest.fixture(autouse=True)
def still_answers(client):
    """Whatever was sent, the next visitor is served."""
    yield
    assert client.get("/api/status").status_code == 200


def png_claiming(width: int, height: int) -> bytes:
    """A PNG whose header promises more than it holds."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        checked = kind + data
        return struct.pack(">I", len(data)) + checked + struct.pack(">I", zlib.crc32(checked))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"\0" * 1000)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels)


JPEG = picture_bytes()
NO_PICTURES = {
    "empty": b"",
    "one byte": b"\xff",
    "zeros": b"\0" * 10_000,
    "truncated JPEG": JPEG[: len(JPEG) // 2],
    "JPEG head only": JPEG[:20],
    "truncated PNG": picture_bytes("PNG")[:60],
    "damaged PNG": picture_bytes("PNG").replace(b"IDAT", b"IDIT"),
    "PNG of 50,000 x 50,000": png_claiming(50_000, 50_000),
    "PNG of 7,000 x 7,000": png_claiming(7_000, 7_000),
    "PNG of 1 x 2,000,000,000": png_claiming(1, 2_000_000_000),
    "PNG of no pixels": png_claiming(0, 0),
    "PNG that promises more than it holds": png_claiming(500, 500),
    "SVG": b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>',
    "HTML": b"<!doctype html><script>alert(1)</script>",
    "PostScript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n(x) run\n",
    "ZIP": b"PK\x03\x04" + b"\0" * 100,
    "gzip bomb": zlib.compress(b"\0" * 5 * MB, wbits=31),
    "pickle": b"\x80\x04cos\nsystem\n(S'true'\ntR.",
    "ELF": b"\x7fELF" + b"\0" * 100,
    "PDF": b"%PDF-1.7\n1 0 obj\n<<>>\nendobj\n",
    "text": "a dog in the snow ü".encode(),
}


@pytest.mark.parametrize("content", NO_PICTURES.values(), ids=NO_PICTURES)
def test_a_file_that_is_not_a_picture_is_refused(client, content):
    assert_refused(client.post(UPLOAD, files={"picture": content}), 413, 422)


def test_a_picture_that_is_something_else_too_is_only_a_picture(client):
    """A JPEG with a page behind it: what comes back is JSON, and what is kept is not served."""
    polyglot = JPEG + b"<!doctype html><script>alert(1)</script>"
    answer = client.post(UPLOAD, files={"picture": ("a.html", polyglot, "text/html")})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert client.get(f"/api/runs/{VSRN}/pictures/{answer.json()['upload']}").status_code == 422


@pytest.mark.parametrize(
    "name",
    [
        "../../../etc/passwd",
        "a\0b.jpg",
        "/etc/passwd",
        "..\\..\\boot.ini",
        "C:\\x.jpg",
        "%2e%2e",
        "",
    ],
)
def test_file_names_mean_nothing(client, matchers, name):
    """Whatever a file is called, its own content is answered."""
    own = matchers[0].index.images[3].picture.read_bytes()
    body = form(PART.replace(b"a.jpg", name.encode()).replace(JPEG, own))
    answer = client.post(UPLOAD, content=body, headers={"content-type": MULTIPART})
    assert answer.status_code == 200, answer.text
    by_number = client.get(UPLOAD, params={"image": 3}).json()["hits"]
    assert [hit["id"] for hit in answer.json()["hits"]] == [hit["id"] for hit in by_number]


def form(*parts: bytes, end: bytes = b"--x--\r\n") -> bytes:
    return b"".join(b"--x\r\n" + part + b"\r\n" for part in parts) + end


PART = b'Content-Disposition: form-data; name="picture"; filename="a.jpg"\r\n\r\n' + JPEG
OTHER = b'Content-Disposition: form-data; name="other"; filename="a.jpg"\r\n\r\n' + JPEG
FIELD = b'Content-Disposition: form-data; name="picture"\r\n\r\nwords'
NAMELESS = b"Content-Disposition: form-data\r\n\r\n" + JPEG
HUGE_NAME = PART.replace(b"a.jpg", b"a" * 2 * MB)
MANY_HEADERS = b"".join(b"X-%d: y\r\n" % n for n in range(5000)) + PART
WRONG_FORMS = {
    "nothing": (MULTIPART, b""),
    "no end": (MULTIPART, form(PART, end=b"")),
    "cut": (MULTIPART, form(PART)[:200]),
    "no field": (MULTIPART, b"--x--\r\n"),
    "two pictures": (MULTIPART, form(PART, PART)),
    "another field": (MULTIPART, form(OTHER)),
    "a picture and a field": (MULTIPART, form(PART, FIELD)),
    "a field that is no file": (MULTIPART, form(FIELD)),
    "no name": (MULTIPART, form(NAMELESS)),
    "a huge name": (MULTIPART, form(HUGE_NAME)),
    "many headers": (MULTIPART, form(MANY_HEADERS)),
    "ten thousand parts": (MULTIPART, form(*[FIELD] * 10_000)),
    "no boundary": ("multipart/form-data", form(PART)),
    "another boundary": ("multipart/form-data; boundary=y", form(PART)),
    "a long boundary": (f"multipart/form-data; boundary={'x' * 5000}", form(PART)),
    "JSON": ("application/json", b'{"picture": "x"}'),
    "a bare picture": ("image/jpeg", JPEG),
    "no type": ("", JPEG),
    "URL-encoded": ("application/x-www-form-urlencoded", b"picture=x"),
    "rubbish": ("multipart/form-data; boundary=\xff\xfe", b"\xff\xfe"),
}


@pytest.mark.parametrize(("kind", "body"), WRONG_FORMS.values(), ids=WRONG_FORMS)
def test_a_form_that_is_not_one_picture_is_refused(client, kind, body):
    headers = {"content-type": kind.encode("latin-1")} if kind else {}
    assert_refused(client.post(UPLOAD, content=body, headers=headers), 422)


def in_chunks(body: bytes, size: int = 65_536):
    """A body of unknown length: httpx sends it chunked."""
    for start in range(0, len(body), size):
        yield body[start : start + size]


def test_an_upload_that_is_too_large_is_refused(client):
    body = form(PART + b"\0" * 10 * MB)
    headers = {"content-type": MULTIPART}
    for content in (body, in_chunks(body)):
        answer = client.post(UPLOAD, content=content, headers=headers)
        assert "10 MB" in assert_refused(answer, 413)


def test_a_picture_of_just_the_limit_is_taken_and_one_byte_more_is_not(client):
    exact = JPEG + b"\0" * (10 * MB - len(JPEG))
    assert client.post(UPLOAD, files={"picture": exact}).status_code == 200
    assert_refused(client.post(UPLOAD, files={"picture": exact + b"\0"}), 413)


def send(server: str, request: bytes, *, seconds: float = 10.0) -> bytes:
    """Raw bytes, as no client would send them; all that comes back."""
    place = urlsplit(server)
    with socket.create_connection((place.hostname, place.port), timeout=seconds) as connection:
        connection.sendall(request)
        received = b""
        while piece := connection.recv(65_536):
            received += piece
    return received


def test_a_declared_length_that_is_too_large_is_refused_before_it_is_sent(server):
    head = (
        f"POST {UPLOAD} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {MULTIPART}\r\n"
        "Content-Length: 10000000000\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n"
    )
    received = send(server, head.encode())
    assert received.startswith(b"HTTP/1.1 413 ")
    assert b"larger than 10 MB" in received


@pytest.mark.parametrize(
    "request_line",
    [b"GET", b"\x16\x03\x01\x02\x00\x01", b"GET  / HTTP/1.1", b"\0" * 100],
)
def test_what_is_not_http_ends_the_connection(server, request_line):
    received = send(server, request_line + b"\r\nHost: localhost\r\n\r\n")
    assert parsed(received).status_code == 400


def test_a_body_whose_chunks_are_rubbish_ends_the_connection(server):
    head = (
        f"POST {UPLOAD} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {MULTIPART}\r\n"
        "Transfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\nno number\r\n"
    )
    assert parsed(send(server, head.encode())).status_code == 400


def test_a_body_of_two_lengths_is_refused(server):
    """Proxies and servers that disagree on where a request ends let others be smuggled in."""
    head = (
        f"POST {UPLOAD} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {MULTIPART}\r\n"
        "Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef"
    )
    assert parsed(send(server, head.encode())).status_code == 400


def test_rubbish_after_an_answer_ends_the_connection_without_a_traceback(server, caplog):
    head = "POST /api/status HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    place = urlsplit(server)
    with socket.create_connection((place.hostname, place.port), timeout=10) as connection:
        connection.sendall(head.encode())
        answer = b""
        while not answer.endswith(b"}"):  # head and body may come one after the other
            answer += connection.recv(65_536)
        assert answer.startswith(b"HTTP/1.1 405 ")
        connection.sendall(b"no number\r\n")
        with suppress(ConnectionError):
            assert connection.recv(65_536) == b""
    assert caplog.text == ""


WRONG_ADDRESSES = {
    404: [
        "/../../etc/passwd",
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static/..%2fapp.py",
        "/static/..%5capp.py",
        "/static//etc/passwd",
        "/static/%00",
        "/static/index.html%00.js",
        "/static/" + "a" * 5000,
        "/static",
        "/%00",
        "/%ff%fe",
        "/api",
        "/api/",
        "/api/runs",
        "/api/runs/../../etc/passwd",
        "/api/runs/%2e%2e/curves",
        "/api/runs/%00/curves",
        "/api/runs/" + "a" * 5000 + "/curves",
        "/api/runs/nobody/curves",
        f"/api/runs/{VSRN}/pictures/../../../../etc/passwd",
        f"/api/runs/{VSRN}/pictures/%2e%2e%2f%2e%2e%2fetc%2fpasswd",
        f"/api/runs/{VSRN}/pictures//etc/passwd",
        f"/api/runs/{VSRN}/pictures/80",
        f"/api/runs/{VSRN}/pictures/3/",
        f"/api/runs/{VSRN}/negatives/text/400",
        f"/api/runs/{VSRN}/images?text_number=400",
        f"/api/runs/{VSRN}/texts?image=80",
        "/api/runs/bfan-round-two/attention?upload=nobody&text=a",
        f"/api/runs/{VSRN}/score?image=80&text=a",
        f"/api/runs/{VSRN}/pictures/80?size=original",
        "/api/runs/nobody/columns",
        "/healthz/",
        "/metrics/..",
    ],
    409: [
        f"/api/runs/{VSRN}/attention?image=1&text=a",
    ],
    422: [
        f"/api/runs/{VSRN}/pictures/..%5c..%5cboot.ini",
        f"/api/runs/{VSRN}/pictures/-1",
        f"/api/runs/{VSRN}/pictures/99999999999999999999",
        f"/api/runs/{VSRN}/pictures/{'9' * 5000}",
        f"/api/runs/{VSRN}/pictures/NaN",
        f"/api/runs/{VSRN}/pictures/1e3",
        f"/api/runs/{VSRN}/pictures/0x10",
        f"/api/runs/{VSRN}/pictures/%D9%A1x",
        f"/api/runs/{VSRN}/pictures/3%00",
        f"/api/runs/{VSRN}/pictures/3?size=huge",
        f"/api/runs/{VSRN}/negatives/file/1",
        f"/api/runs/{VSRN}/negatives/image/-1",
        f"/api/runs/{VSRN}/negatives/text/1?depth=0",
        f"/api/runs/{VSRN}/images",
        f"/api/runs/{VSRN}/images?text=",
        f"/api/runs/{VSRN}/images?text=%20",
        f"/api/runs/{VSRN}/images?text=%00",
        f"/api/runs/{VSRN}/images?text=zyxxy",
        f"/api/runs/{VSRN}/images?text={'a' * 501}",
        f"/api/runs/{VSRN}/images?text=a&text_number=1",
        f"/api/runs/{VSRN}/images?text=a&top=0",
        f"/api/runs/{VSRN}/images?text=a&top=101",
        f"/api/runs/{VSRN}/images?text=a&top=NaN",
        f"/api/runs/{VSRN}/images?text=a&top=1e9",
        f"/api/runs/{VSRN}/texts",
        f"/api/runs/{VSRN}/texts?image=-1",
        f"/api/runs/{VSRN}/entries?kind=file",
        f"/api/runs/{VSRN}/entries?split=../test",
        f"/api/runs/{VSRN}/entries?limit=101",
        f"/api/runs/{VSRN}/entries?offset=-1",
        f"/api/runs/{VSRN}/entries?sample=-1",
        f"/api/runs/{VSRN}/pictures/3?size=Original",
        "/api/runs/bfan-round-two/attention?image=1",
        "/api/runs/bfan-round-two/attention?text=a",
        "/api/runs/bfan-round-two/attention?image=1&upload=x&text=a",
        f"/api/runs/bfan-round-two/attention?upload={'x' * 65}&text=a",
        f"/api/runs/{VSRN}/score?image=1&text=zyxxy",
    ],
}
PATHS = [(status, path) for status, paths in WRONG_ADDRESSES.items() for path in paths]


@pytest.mark.parametrize(("status", "path"), PATHS, ids=[path[:60] for _, path in PATHS])
def test_wrong_addresses_are_refused(server, status, path):
    """Sent as they are: a client would tidy them up."""
    received = send(
        server, f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
    )
    assert_refused(parsed(received), status)


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "TRACE", "OPTIONS", "BREW"])
def test_other_methods_are_refused(client, method):
    for path, allowed in (("/api/status", "GET"), (UPLOAD, "GET, POST")):
        answer = client.request(method, path)
        assert_refused(answer, 405)
        assert answer.headers["allow"] == allowed


@pytest.mark.parametrize(
    "path", ["/", "/openapi.json", "/static/main.js", "/api/status", f"{UPLOAD}?image=1"]
)
def test_every_answer_has_the_security_headers(client, path):
    answer = client.get(path)
    assert answer.status_code == 200
    for name, value in SECURITY_HEADERS.items():
        assert answer.headers[name] == value
    assert "server" not in answer.headers


def test_pictures_come_from_this_server_only(client):
    policy = client.get("/").headers["content-security-policy"]
    assert "default-src 'self';" in policy
    assert not {"img-src", "data:", "blob:"} & set(policy.split())


# Other sites


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "127.0.0.1.nip.io:80"])
def test_a_name_that_was_pointed_at_this_machine_is_refused(client, host):
    assert_refused(client.get("/api/status", headers={"host": host}), 400)


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8000", "127.0.0.1", "[::1]:8000", "192.168.0.7", "[fe80::1]"]
)
def test_the_names_of_this_machine_are_taken(client, host):
    assert client.get("/api/status", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:1"},
        {"origin": "http://["},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
    ids=str,
)
def test_a_page_of_another_site_cannot_upload(client, headers):
    assert_refused(client.post(UPLOAD, files={"picture": JPEG}, headers=headers), 403)


def test_a_page_of_this_server_can_upload(client, server):
    headers = {"origin": server, "sec-fetch-site": "same-origin"}
    assert client.post(UPLOAD, files={"picture": JPEG}, headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"},
        {"sec-fetch-site": "same-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"},
        {"origin": "https://evil.example"},
    ],
    ids=str,
)
def test_a_page_of_another_site_cannot_make_the_server_work(client, headers):
    path = "/api/runs/bfan-round-two/images?text=a+red+flower"
    assert_refused(client.get(path, headers=headers), 403)
    assert client.get("/static/mark.svg", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {
            "sec-fetch-site": "cross-site",
            "sec-fetch-mode": "navigate",
            "sec-fetch-dest": "document",
        },
        {"sec-fetch-site": "none", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"},
        {"sec-fetch-site": "same-origin", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"},
    ],
    ids=str,
)
def test_links_and_the_pages_of_this_server_are_answered(client, headers):
    assert client.get("/api/status", headers=headers).status_code == 200


def sent(host: str, origin: str, *, hosts: set[str]) -> int:
    """The status of what a page of `origin` sends to a server that a proxy calls `host`."""

    app = FastAPI(dependencies=[Depends(KnownVisitors(frozenset(hosts)).check)])

    @app.post("/")
    async def answer() -> None: ...

    async def ask() -> int:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            headers = {"host": host, "origin": origin}
            return (await client.post("/", headers=headers)).status_code

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("status", "host", "origin"),
    [
        (200, "photos.example", "https://photos.example"),
        (200, "photos.example:443", "https://photos.example"),
        (200, "photos.example", "https://photos.example:443"),
        (200, "photos.example", "https://PHOTOS.example:8443"),
        (200, "127.0.0.1:8000", "https://photos.example"),
        (200, "localhost:8000", "http://localhost:8000"),
        (200, "192.168.0.7", "http://192.168.0.7:80"),
        (403, "127.0.0.1:8000", "https://evil.example"),
        (403, "127.0.0.1:8000", "http://localhost:3000"),
        (403, "photos.example", "https://photos.example.evil.example"),
        (403, "192.168.0.7", "http://192.168.0.8"),
        (403, "photos.example", "https://photos.example:no"),
        (400, "evil.example", "https://evil.example"),
    ],
)
def test_uploads_pass_a_proxy_that_goes_by_an_allowed_name(status, host, origin):
    assert sent(host, origin, hosts={*LOOPBACK_NAMES, "photos.example"}) == status


# Pictures of the index


def test_a_shown_picture_has_no_hidden_data_and_stands_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held upright
    exif[0x010E] = "a secret place"
    path = tmp_path / "a.jpg"
    path.write_bytes(picture_bytes(size=(64, 48), exif=exif, comment=b"a secret word"))
    made = make_thumbnail(path, 320)
    assert b"secret" not in made
    picture = Image.open(io.BytesIO(made))
    assert picture.size == (48, 64)
    assert not picture.getexif()


@pytest.mark.parametrize(
    ("mode", "kind"),
    [("RGB", "PNG"), ("RGBA", "PNG"), ("L", "TIFF"), ("CMYK", "JPEG"), ("RGB", "JPEG")],
)
@pytest.mark.parametrize("orientation", [1, 6])
def test_a_large_picture_is_made_small_before_it_is_copied(
    tmp_path, monkeypatch, mode, kind, orientation
):
    from aoq.web import thumbnails

    exif = Image.Exif()
    exif[0x0112] = orientation
    noise = np.random.default_rng(0).integers(0, 256, (12, 30, len(mode)), np.uint8)
    cells = Image.frombytes(mode, (30, 12), noise.tobytes())
    path = tmp_path / "large"
    cells.resize((3000, 1200), Image.Resampling.BILINEAR).save(path, kind, exif=exif)
    copied = []
    monkeypatch.setattr(
        thumbnails, "upright", lambda image: copied.append(max(image.size)) or upright(image)
    )
    made = Image.open(io.BytesIO(make_thumbnail(path, 320)))
    assert copied == [320]
    with open_picture(path) as image:
        image.load()
        expected = upright(image)
    expected.thumbnail((320, 320))
    assert made.size == expected.size
    difference = np.asarray(made, np.float64) - np.asarray(expected)
    assert np.abs(difference).mean() < 3


@pytest.mark.parametrize("size", [(4000, 4000), (10_000, 500)])
def test_a_large_jpeg_is_not_even_decoded_whole(tmp_path, monkeypatch, size):
    decoded = []
    thumbnail = Image.Image.thumbnail
    monkeypatch.setattr(
        Image.Image,
        "thumbnail",
        lambda self, *args: decoded.append(self.size) or thumbnail(self, *args),
    )
    path = tmp_path / "large.jpg"
    path.write_bytes(picture_bytes(size=size))
    make_thumbnail(path, 320)
    assert max(decoded[0]) <= max(size) / 4


def test_no_link_leads_out_of_the_folders_of_the_index(tmp_path):
    secret, photos = tmp_path / "elsewhere" / "secret.png", tmp_path / "photos"
    secret.parent.mkdir()
    secret.write_bytes(picture_bytes("PNG"))
    photos.mkdir()
    link, circle, folder = photos / "a.png", photos / "b.png", photos / "c.png"
    link.symlink_to(secret)
    circle.symlink_to(circle)
    folder.mkdir()
    (photos / "d.png").write_text("no picture")
    inside = photos / "e.png"
    inside.write_bytes(picture_bytes("PNG"))
    shown = Thumbnails(photos.iterdir(), make_thumbnail)
    for path in (link, circle, folder, photos / "d.png", photos / "missing.png"):
        with pytest.raises(HTTPException) as refused:
            shown.jpeg(path, side=320)
        assert refused.value.status_code == 404
    assert shown.jpeg(inside, side=320)
