"""The OpenAPI document keeps its word: schemathesis sends what it allows, and what it does not.

Every check of schemathesis is on. A request that fits the document may still be refused where the
document cannot say what is needed: words that the model knows, bytes that are a picture, one of
two parameters, a model with attention (409 and 422), or which token is accepted (401). The name of
a run is given to it, because hardly one that it would make up exists.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from aoq.web.access import Gate, Tokens
from aoq.web.app import make_app
from aoq.web.limits import Limits
from aoq.web.server import running

_CONFIG = """
[parameters]
run = "{run}"

[checks.positive_data_acceptance]
expected-statuses = ["2xx", "404", "409", "422"]

[[operations]]
include-name = "POST /api/session"
[operations.checks.positive_data_acceptance]
expected-statuses = ["2xx", "401"]
"""


def examine(server: str, run: str, folder, *, examples: int, token: str | None = None) -> None:
    """All phases of `schemathesis run`; its report is the message of the failure."""
    config = folder / "schemathesis.toml"
    config.write_text(_CONFIG.format(run=run))
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(config), "run"]
    command += [f"{server}/openapi.json", "--max-examples", str(examples)]
    command += ["--generation-deterministic", "--no-color"]
    if token is not None:
        command += ["--header", f"Authorization: Bearer {token}"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    routes = 17 if token is None else 18
    assert f"{routes} selected / {routes} total" in done.stdout


def test_answers_are_what_the_document_promises(server, tmp_path):
    examine(server, "bfan-round-two", tmp_path, examples=5)


@pytest.mark.slow
@pytest.mark.parametrize("run", ["vsrn-round-two", "bfan-round-two", "nobody"])
def test_many_more_answers_are_what_the_document_promises(server, run, tmp_path):
    examine(server, run, tmp_path, examples=500)


@pytest.mark.slow
def test_a_server_that_wants_a_token_keeps_its_word_too(matchers, tmp_path):
    token = "correct-horse-battery"
    app = make_app(matchers, gate=Gate(Tokens({token: "anna"})))
    with running(app, Limits()) as server:
        examine(server, "bfan-round-two", tmp_path, examples=20, token=token)
