"""Metrics and the access log: every request is counted once, by its route."""

from __future__ import annotations

import json

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from aoq.web.app import make_app
from aoq.web.monitoring import open_access_log
from tests.web.cases import VSRN, assert_refused


@pytest.fixture
def logged(matchers, tmp_path):
    """A client, and a function that reads the lines that were logged."""
    file = tmp_path / "access.jsonl"
    log = open_access_log(str(file))
    app = make_app(matchers, access_log=log)
    with TestClient(app, base_url="http://localhost", raise_server_exceptions=False) as client:
        yield client, lambda: [json.loads(line) for line in file.read_text().splitlines()], file
    for handler in log.handlers:
        handler.close()


def samples(client) -> dict[tuple[str, ...], float]:
    families = text_string_to_metric_families(client.get("/metrics").text)
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


def test_requests_are_counted_by_route_and_never_by_address(logged):
    client, lines, _ = logged
    paths = [f"/api/runs/{VSRN}/entries/image/{number}" for number in range(3)]
    paths += [f"/{number}" for number in range(3)] + ["/static/main.js", "/", "/healthz"]
    for path in paths:
        client.get(path)
    found = samples(client)
    counts = {key[1:]: value for key, value in found.items() if key[0] == "aoq_requests_total"}
    assert counts == {
        ("GET", "/api/runs/{run}/entries/{kind}/{number}", "200"): 3,
        ("GET", "other", "404"): 3,
        ("GET", "/static", "200"): 1,
        ("GET", "/", "200"): 1,
        ("GET", "/healthz", "200"): 1,
    }
    assert found["aoq_request_seconds_count", "/healthz"] == 1
    assert found["aoq_jobs",] == 0
    assert found["process_resident_memory_bytes",] > 1e6
    assert found["aoq_entries", "image", VSRN] > 0
    assert [line["path"] for line in lines()] == [*paths, "/metrics"]


def test_a_defect_is_counted_and_logged_as_one(logged, monkeypatch):
    client, lines, _ = logged
    monkeypatch.setattr("aoq.web.service.Service.describe", lambda service: 1 / 0)
    assert_refused(client.get("/api/status"), 500)
    assert lines()[0]["status"] == 500
    assert samples(client)["aoq_requests_total", "GET", "/api/status", "500"] == 1


def test_a_log_that_was_moved_is_begun_again(logged):
    client, lines, file = logged
    client.get("/healthz")
    file.rename(file.with_name("rotated"))
    client.get("/healthz")
    assert len(lines()) == 1


def test_a_hostile_address_stays_one_line(logged):
    client, lines, _ = logged
    client.get('/a%0A{"status": 200}%0D%E2%80%A8"%7F')
    (line,) = lines()
    assert line["status"] == 404
