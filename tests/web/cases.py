"""Requests that a server has to refuse, and how it does."""

from __future__ import annotations

import httpx

from aoq.web.security import SECURITY_HEADERS

RUN = "vsrn-round-two"
UPLOAD = f"/api/runs/{RUN}/texts"
MULTIPART = "multipart/form-data; boundary=x"


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
