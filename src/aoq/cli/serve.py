"""`aoq serve`: serve a page and an HTTP API for trained runs."""

from __future__ import annotations

import os
import signal
import socket
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from aoq.cli.base import (
    Count,
    ModelFunction,
    TerminatedError,
    Which,
    app,
    own_model,
    trained_rounds,
)


@app.command
def serve(
    *runs: Path,
    host: str = "127.0.0.1",
    port: Annotated[int, Parameter(validator=Number(gte=0, lte=65535))] = 8000,
    index: Path | None = None,
    round: Which = None,  # noqa: A002
    model: ModelFunction = None,
    max_upload: str = "10MB",
    max_pixels: Count = 40_000_000,
    workers: Count | None = None,
    waiting: Annotated[int, Parameter(validator=Number(gte=0))] = 64,
    timeout: Annotated[float, Parameter(validator=Number(gt=0))] = 30.0,
    allow_host: tuple[str, ...] = (),
    token: Annotated[str | None, Parameter(env_var="AOQ_TOKEN")] = None,
    token_file: Path | None = None,
    rate: Annotated[float | None, Parameter(validator=Number(gt=0))] = None,
    proxy: tuple[str, ...] = ("127.0.0.1", "::1"),
    access_log: str | None = None,
    grace: Annotated[float, Parameter(validator=Number(gt=0))] = 5.0,
) -> None:
    """Serve a page on which photos can be searched, and runs compared and inspected.

    Nothing is sent elsewhere, and visitors cannot change anything. Only this machine can reach the
    page unless --host says otherwise; visitors from elsewhere then need a token.

    Parameters
    ----------
    runs
        Folders of trained models, each with the index that `aoq index` makes.
    host
        Address to listen on; 0.0.0.0 for all addresses of this machine.
    port
        Port to listen on; 0 for any that is free.
    index
        Index to use, for a single run; default: the one in the run's folder.
    round
        Round to use of runs with two: one or two; default: the better one on dev.
    max_upload
        Largest picture that can be uploaded, such as 10MB.
    max_pixels
        Maximum number of pixels of an uploaded picture, up to 100 million.
    workers
        Requests that are computed at the same time; default: one per core.
    waiting
        Requests that may wait for a worker; more get status 429.
    timeout
        Seconds after which a request is abandoned.
    allow_host
        Name that visitors or a proxy use for this server, unless it is a numeric address; can
        be repeated. A server behind a proxy needs it.
    token
        Token that visitors have to send: `auto` makes one and shows it once, `none` lets everybody
        in; default: auto unless only this machine can reach the server. Other users of this machine
        can see it in the list of processes; AOQ_TOKEN and --token-file hide it.
    token_file
        File with a token in each line, or a name and a token; the access log shows the names.
    rate
        Requests per second of each token, or of each address without tokens; ten seconds' worth may
        come at once, more get status 429. Default: no bound.
    proxy
        Address or network of a proxy, whose X-Forwarded-For is believed; can be repeated. Default:
        this machine.
    access_log
        File to which a line of JSON is appended for each request, or - for the standard output.
    grace
        Seconds that running requests have to end when the server is stopped.
    """
    from aoq.config import parse_memory
    from aoq.errors import UserError, require_packages
    from aoq.progress import say, warn

    require_packages(
        *("fastapi", "uvicorn", "python_multipart", "cachetools", "prometheus_client", "PIL"),
        extra="web",
    )
    if index is not None and len(runs) > 1:
        raise UserError("--index is for a single run; drop it, or name one run.")
    from aoq.retrieval.matcher import Matcher
    from aoq.web.access import Gate, Rate, choose_tokens
    from aoq.web.app import make_app
    from aoq.web.limits import Limits
    from aoq.web.monitoring import open_access_log
    from aoq.web.security import LOOPBACK_NAMES
    from aoq.web.server import address_for_visitors, address_of, is_loopback, listen, make_server

    chosen = {} if workers is None else {"working": workers}
    limits = Limits(
        upload_bytes=parse_memory(max_upload),
        pixels=max_pixels,
        waiting=waiting,
        seconds=timeout,
        grace_seconds=grace,
        **chosen,
    )
    log = None if access_log is None else open_access_log(access_log)
    make_model = own_model(model, trained_rounds(runs, round))  # prints which rounds are used
    with listen(host, port) as listener:
        is_private = is_loopback(listener)
        tokens, made = choose_tokens(token, token_file, private=is_private)
        gate = Gate(tokens, None if rate is None else Rate(rate))
        matchers = [
            Matcher.load(run, index=index, round=round, make_model=make_model) for run in runs
        ]
        own_name = () if is_private else (socket.gethostname(),)
        hosts = {host, *LOOPBACK_NAMES, *own_name, *allow_host}
        web_app = make_app(matchers, limits=limits, hosts=hosts, gate=gate, access_log=log)
        server = make_server(web_app, limits, proxies=proxy)
        if tokens is None and not is_private:
            warn(
                f"anyone who can reach {host} can search these runs, see their pictures and "
                "upload some; there is no token."
            )
        address = address_of(listener)
        say(f"serving {', '.join(map(str, runs))} at {address} (Ctrl-C stops it)")
        if made is not None:
            say(f"visitors need this token, which is not shown again: {made}")
            say(f"they can open {address_for_visitors(listener)}/#token={made}")
        with suppress(KeyboardInterrupt, TerminatedError):  # uvicorn raises it again
            server.run(sockets=[listener])
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        say("stopped")
        os._exit(0)  # do not wait for abandoned jobs
