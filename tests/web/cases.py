"""Requests to a server, and how it refuses them."""

from __future__ import annotations

import httpx
import pytest

from aoq.web.security import SECURITY_HEADERS

VSRN, BFAN = "vsrn-round-two", "bfan-round-two"
RUNS = pytest.mark.parametrize(("at", "run"), [(0, VSRN), (1, BFAN)], ids=["vsrn", "bfan"])
UPLOAD = f"/api/runs/{VSRN}/texts"
MULTIPART = "multipart/form-data; boundary=x"


def asked(client, path: str, status: int = 200, **parameters) -> dict:
    """Ask for something of a run; return the answer."""
    answer = client.get(f"/api/runs/{path}", params=parameters)
    assert answer.status_code == status, answer.text
    return answer.json()


def assert_refused(answer: httpx.Response, *statuses: int) -> str:
    """Check for a sentence with one of these statuses and all headers; return the sentence."""
    assert answer.status_code in statuses, (answer.status_code, answer.text[:300])
    body = answer.json()
    assert body.keys() == {"error"}
    sentence = body["error"]
    assert sentence[0].isupper() or not sentence[0].isalpha()
    assert sentence.endswith(".")
    assert "Traceback" not in sentence
    assert "/tmp" not in sentence, "a place on this machine"
    for name, value in SECURITY_HEADERS.items():
        assert answer.headers[name] == value
    return sentence


def parsed(received: bytes) -> httpx.Response:
    head, _, body = received.partition(b"\r\n\r\n")
    headers = [tuple(line.split(b": ", 1)) for line in head.split(b"\r\n")[1:]]
    return httpx.Response(int(head.split()[1]), content=body, headers=headers)
