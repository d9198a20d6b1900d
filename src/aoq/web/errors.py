"""Errors as visitors see them: a status and `{"error": a sentence}`, never a traceback or a path.

Routes and what they call raise Starlette's `HTTPException`, with a sentence as its detail.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match

from aoq.errors import UserError
from aoq.features.pictures import PictureError
from aoq.retrieval.encoder import QueryError
from aoq.retrieval.index import IndexChangedError
from aoq.web.security import SECURITY_HEADERS

log = logging.getLogger("aoq.web")
_ROUTER_SENTENCES = {
    404: "Nothing is at this address; /openapi.json lists what there is.",
    405: "This address does not accept this method; /openapi.json lists those it does.",
}


def busy() -> HTTPException:
    return HTTPException(
        429, "The server is busy; try again in a few seconds.", headers={"Retry-After": "2"}
    )


def as_sentence(problem: str) -> str:
    """Capitalize a message of the library.

    >>> as_sentence("no word of it is known.")
    'No word of it is known.'
    """
    return problem[:1].upper() + problem[1:]


def add_error_handlers(app: FastAPI, routes: Sequence[BaseRoute]) -> None:
    """Turn every exception of these routes into a sentence; defects go to the log."""

    async def on_http_exception(request: Request, error: Any) -> JSONResponse:
        sentence, headers = str(error.detail), dict(error.headers or {})
        if sentence == HTTPStatus(error.status_code).phrase:  # raised by the router
            sentence = _ROUTER_SENTENCES.get(error.status_code, f"{sentence}.")
        if error.status_code == 405 and (methods := _allowed_methods(routes, request)):
            headers["Allow"] = ", ".join(methods)
        return _respond(error.status_code, sentence, headers)

    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_exception_handler(RequestValidationError, _on_invalid_parameters)
    app.add_exception_handler(UserError, _on_user_error)
    app.add_exception_handler(Exception, _on_defect)


def _respond(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": sentence}, status, headers)


def _allowed_methods(routes: Sequence[BaseRoute], request: Request) -> list[str]:
    """List all methods of an address; Starlette names those of the first fitting route only."""
    fitting = [route for route in routes if route.matches(request.scope)[0] is not Match.NONE]
    return sorted({method for route in fitting for method in getattr(route, "methods", ())})


async def _on_invalid_parameters(request: Request, error: Any) -> JSONResponse:
    return _respond(422, " ".join(map(_parameter_sentence, error.errors())))


async def _on_user_error(request: Request, error: Any) -> JSONResponse:
    """Show visitors what is wrong with their question; all else is for the server's owner."""
    if isinstance(error, PictureError | QueryError):
        return _respond(422, as_sentence(str(error)))
    log.error("a request failed: %s", error)
    if isinstance(error, IndexChangedError):
        return _respond(
            503,
            "The index was made again and is being opened; try again in a moment. If the model is "
            "another one, the server has to be restarted.",
        )
    return _respond(500, "This cannot be answered; the server's log says why.")


async def _on_defect(request: Request, error: Exception) -> JSONResponse:
    """Log a traceback. Starlette calls this outside of all middleware, so it adds the headers."""
    log.error("a request failed", exc_info=error)
    sentence = "Something went wrong here; the server's log says what."
    return _respond(500, sentence, SECURITY_HEADERS)


def _parameter_sentence(problem: dict[str, Any]) -> str:
    """Say what is wrong with a parameter, in pydantic's words.

    >>> _parameter_sentence({"loc": ("query", "top"), "msg": "Input should be greater than 0"})
    'The parameter top should be greater than 0.'
    """
    place, *names = problem["loc"]
    name = ".".join(map(str, names)) or str(place)
    message = problem["msg"]
    if message == "Field required":
        return f"The parameter {name} is missing."
    for subject in ("Input ", "String ", "Value error, "):
        message = message.removeprefix(subject)
    return f"The parameter {name} {message}."
