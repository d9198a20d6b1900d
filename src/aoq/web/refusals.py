"""What a visitor is told when the answer is no: a status and a sentence, never a traceback."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match, Route

from aoq.data.pictures import PictureError
from aoq.errors import UserError
from aoq.retrieval.encoder import QueryError
from aoq.retrieval.index import IndexChangedError

if TYPE_CHECKING:
    from fastapi import FastAPI, Request

log = logging.getLogger("aoq.web")

_SENTENCES = {
    404: "There is nothing here; /docs lists what there is.",
    405: "This address cannot be asked that way; /docs says how.",
}


class RefusedError(Exception):
    """A request that is not answered, and why; the connection is closed where it cannot go on."""

    def __init__(
        self, status: int, sentence: str, *, retry_after: int | None = None, close: bool = False
    ) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence
        self.headers = {"Connection": "close"} if close else {}
        if retry_after is not None:
            self.headers["Retry-After"] = str(retry_after)

    def response(self) -> JSONResponse:
        return JSONResponse({"error": self.sentence}, self.status, self.headers)


def busy() -> RefusedError:
    return RefusedError(429, "The server is busy; try again in a few seconds.", retry_after=2)


def defect(error: BaseException) -> RefusedError:
    """An error of ours: the log has it all, the visitor a sentence."""
    log.error("a request failed", exc_info=error)
    return RefusedError(500, "Something went wrong here; the server's log says what.")


def speak_in_sentences(app: FastAPI, routes: Iterable[BaseRoute]) -> None:
    """Make every error that a route can raise a sentence."""
    answering = [route for route in routes if isinstance(route, Route)]

    async def refused(request: Request, error: Any) -> JSONResponse:
        return _as_refusal(error).response()

    for kind in (RefusedError, UserError, RequestValidationError):
        app.add_exception_handler(kind, refused)

    async def unknown(request: Request, error: Any) -> JSONResponse:
        """Raised by the router and by the files of the page."""
        sentence = _SENTENCES.get(error.status_code) or f"{HTTPStatus(error.status_code).phrase}."
        headers = dict(error.headers or {})
        if error.status_code == 405 and (allowed := _methods(answering, request)):
            headers["Allow"] = ", ".join(allowed)
        return JSONResponse({"error": sentence}, error.status_code, headers)

    app.add_exception_handler(HTTPException, unknown)


def _methods(routes: Sequence[Route], request: Request) -> list[str]:
    """All that an address can be asked with; the router names those of one route only."""
    fitting = [route for route in routes if route.matches(request.scope)[0] is not Match.NONE]
    return sorted(method for route in fitting for method in route.methods or ())


def _as_refusal(error: RefusedError | UserError | RequestValidationError) -> RefusedError:
    if isinstance(error, RefusedError):
        return error
    if isinstance(error, UserError):
        return _for_visitors(error)
    return RefusedError(422, " ".join(_told(problem) for problem in error.errors()))


def _for_visitors(error: UserError) -> RefusedError:
    """What is wrong with a question, for who asked; all else is for who started the server."""
    if isinstance(error, PictureError | QueryError):
        return RefusedError(422, as_sentence(str(error)))
    log.error("a request failed: %s", error)
    if isinstance(error, IndexChangedError):
        return RefusedError(503, "The index was made again; restart the server.")
    return RefusedError(500, "This cannot be answered; the server's log says why.")


def as_sentence(problem: str) -> str:
    """
    >>> as_sentence("no word of it is known.")
    'No word of it is known.'
    """
    return problem[:1].upper() + problem[1:]


def _told(problem: dict[str, Any]) -> str:
    """What is wrong with a parameter; pydantic's words without its grammar.

    >>> _told({"loc": ("query", "top"), "msg": "Input should be greater than 0"})
    'The parameter top should be greater than 0.'
    """
    place, *names = problem["loc"]
    name = ".".join(map(str, names)) or str(place)
    said = problem["msg"]
    if said == "Field required":
        return f"The parameter {name} is missing."
    for subject in ("Input ", "String ", "Value error, "):
        said = said.removeprefix(subject)
    return f"The parameter {name} {said}."
