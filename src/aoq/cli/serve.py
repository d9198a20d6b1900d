"""`aoq serve`: serve a page and an HTTP API for folders of photos and trained runs."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter
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

if TYPE_CHECKING:
    from aoq.retrieval.matcher import Matcher
    from aoq.retrieval.target import Target

_SERVED = Group("What is served", sort_key=1)
_VISITORS = Group("Who may visit", sort_key=2)
_LIMITS = Group("Limits", sort_key=3)
_Positive = Number(gt=0)


@app.command
def serve(
    *targets: Path,
    host: Annotated[str, Parameter(group=_VISITORS)] = "127.0.0.1",
    port: Annotated[int, Parameter(group=_VISITORS, validator=Number(gte=0, lte=65535))] = 8000,
    allow_host: Annotated[tuple[str, ...], Parameter(group=_VISITORS, show_default=False)] = (),
    token: Annotated[str | None, Parameter(group=_VISITORS, env_var="AOQ_TOKEN")] = None,
    token_file: Annotated[Path | None, Parameter(group=_VISITORS)] = None,
    rate: Annotated[float | None, Parameter(group=_VISITORS, validator=_Positive)] = None,
    proxy: Annotated[tuple[str, ...], Parameter(group=_VISITORS)] = ("127.0.0.1", "::1"),
    access_log: Annotated[str | None, Parameter(group=_VISITORS)] = None,
    run: Annotated[Path | None, Parameter(group=_SERVED)] = None,
    captions: Annotated[Path | None, Parameter(group=_SERVED)] = None,
    sync: Annotated[
        bool, Parameter(group=_SERVED, negative="--no-sync", show_default=False)
    ] = True,
    watch: Annotated[float | None, Parameter(group=_SERVED, validator=_Positive)] = None,
    index: Annotated[Path | None, Parameter(group=_SERVED)] = None,
    round: Annotated[Which, Parameter(group=_SERVED)] = None,  # noqa: A002
    model: Annotated[ModelFunction, Parameter(group=_SERVED)] = None,
    max_upload: Annotated[str, Parameter(group=_LIMITS)] = "10MB",
    max_pixels: Annotated[Count, Parameter(group=_LIMITS)] = 40_000_000,
    workers: Annotated[Count | None, Parameter(group=_LIMITS)] = None,
    waiting: Annotated[int, Parameter(group=_LIMITS, validator=Number(gte=0))] = 64,
    timeout: Annotated[float, Parameter(group=_LIMITS, validator=_Positive)] = 30.0,
    grace: Annotated[float, Parameter(group=_LIMITS, validator=_Positive)] = 5.0,
) -> None:
    """Serve a page on which photos can be searched, and runs compared and inspected.

    Nothing is sent elsewhere, and visitors cannot change anything. Only this machine can reach the
    page unless --host says otherwise; visitors from elsewhere then need a token.

    Parameters
    ----------
    targets
        Folders of photos, and folders of trained models, each with the index that `aoq index`
        makes. The index of a folder of photos is made when it is first served, and kept.
    run
        Trained model for folders of photos; default: the one that `aoq import --default` sets.
    captions
        Captions file of the photos, for a single folder.
    sync
        Bring the indexes of folders of photos up to date first.
    watch
        Look for changed photos again and again, after this many seconds each time.
    index
        Index to use, for a single target; default: `index` beside the model, or the cache.
    round
        Round to use of runs with two: one or two; default: the better one on dev.
    host
        Address to listen on; 0.0.0.0 for all addresses of this machine.
    port
        Port to listen on; 0 for any that is free.
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
    for option, value in (("--index", index), ("--captions", captions)):
        if value is not None and len(targets) > 1:
            raise UserError(f"{option} is for a single run or folder; drop it, or name one.")
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
    with listen(host, port) as listener:
        is_private = is_loopback(listener)
        tokens, made = choose_tokens(token, token_file, private=is_private)
        gate = Gate(tokens, None if rate is None else Rate(rate))
        opened = _open(targets, run, captions, index, round, model, sync=sync)
        matchers = [matcher for _, matcher in opened]
        own_name = () if is_private else (socket.gethostname(),)
        web_app = make_app(
            matchers,
            names=_names(opened),
            limits=limits,
            hosts={host, *LOOPBACK_NAMES, *own_name, *allow_host},
            gate=gate,
            access_log=log,
        )
        server = make_server(web_app, limits, proxies=proxy)
        if tokens is None and not is_private:
            warn(
                f"anyone who can reach {host} can search these photos, see them and upload some; "
                "no token is required."
            )
        address = address_of(listener)
        say(f"serving {', '.join(map(str, targets))} at {address} (Ctrl-C stops it)")
        if made is not None:
            say(f"visitors need this token, which is not shown again: {made}")
            say(f"they can open {address_for_visitors(listener)}/#token={made}")
        own_token = None if tokens is None else tokens.issue("aoq search")
        by_default = index is None and round is None and model is None
        with (
            _announced(listener, own_token, targets, opened, run) if by_default else nullcontext(),
            _watching(opened, watch),
            suppress(KeyboardInterrupt, TerminatedError),  # uvicorn raises it again
        ):
            server.run(sockets=[listener])
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        say("stopped")
        os._exit(0)  # do not wait for abandoned jobs


def _open(
    targets: Sequence[Path],
    run: Path | None,
    captions: Path | None,
    index: Path | None,
    round: Which,  # noqa: A002
    model: ModelFunction,
    *,
    sync: bool,
) -> list[tuple[Target, Matcher]]:
    """Load the models and the indexes of runs and of folders of photos."""
    from aoq.errors import UserError
    from aoq.retrieval.matcher import Matcher
    from aoq.retrieval.target import is_photo_folder, open_target

    runs = tuple(target for target in targets if not is_photo_folder(target))
    if run is not None and len(runs) == len(targets) and targets:
        raise UserError("--run is the model for a folder of photos; name such a folder, too.")
    rounds = trained_rounds(runs, round) if runs or not targets else ()  # prints which are used
    own = [] if model is None or run is None else trained_rounds((run,), round)
    make_model = own_model(model, [*rounds, *own])
    opened = []
    for path in targets:
        is_folder = path not in runs
        target = open_target(
            path,
            run=run if is_folder else None,
            captions=captions,
            index=index,
            round=round,
            make_model=make_model,
            sync=sync,
        )
        matcher = Matcher.load(target.run, index=target.index, round=round, make_model=make_model)
        opened.append((target, matcher))
    return opened


def _names(opened: Sequence[tuple[Target, Matcher]]) -> list[str]:
    """Name what is served, for addresses: a folder of photos by its own name."""
    return [
        matcher.name if target.photos is None else target.photos.resolve().name
        for target, matcher in opened
    ]


@contextmanager
def _announced(
    listener: socket.socket,
    token: str | None,
    targets: Sequence[Path],
    opened: Sequence[tuple[Target, Matcher]],
    run: Path | None,
) -> Iterator[None]:
    """Let `aoq search` of the same user ask this server about what it would search by default."""
    from aoq.retrieval.default_model import default_model
    from aoq.retrieval.running import Served, announced
    from aoq.web.server import own_address
    from aoq.web.service import address_names

    served = [
        Served(
            str(path.absolute()),
            name,
            str(matcher.index.folder.absolute()),
            model=None if target.photos is None else str(default_model()),
        )
        for path, name, (target, matcher) in zip(
            targets, address_names(_names(opened)), opened, strict=True
        )
        if target.photos is None or run is None
    ]
    with announced(own_address(listener), token, served):
        yield


@contextmanager
def _watching(opened: Sequence[tuple[Target, Matcher]], seconds: float | None) -> Iterator[None]:
    """Follow the folders of photos while they are served, if that is asked for."""
    from aoq.retrieval.watch import watching

    with ExitStack() as watches:
        if seconds is not None:
            for target, matcher in opened:
                if target.photos is not None:
                    watches.enter_context(watching(matcher, seconds=seconds))
        yield
