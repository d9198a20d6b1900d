"""The routes of the HTTP API: their parameters, within which bounds, and what they respond.

A route validates its parameters and hands the work to the worker pool; it computes nothing itself.
"""

from __future__ import annotations

from typing import Annotated, Any, BinaryIO, Literal

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from starlette.exceptions import HTTPException

from aoq import __version__
from aoq.features.pictures import FORMATS
from aoq.retrieval.encoder import ReadPicture
from aoq.types import EntryKind
from aoq.web import history
from aoq.web.bodies import json_body, read_json
from aoq.web.limits import DEPTH, FULL, NUMBER, QUERY_CHARACTERS, THUMBNAIL, TOP
from aoq.web.run_api import RunApi
from aoq.web.schemas import (
    AttentionAnswer,
    ColumnsAnswer,
    CurvesAnswer,
    EntriesAnswer,
    EntryQuery,
    Failure,
    ImagesAnswer,
    LimitsAnswer,
    NegativesAnswer,
    OneEntryAnswer,
    ResultsAnswer,
    ScoreAnswer,
    SearchAnswer,
    SearchRequest,
    Status,
    TextsAnswer,
    UploadAnswer,
)
from aoq.web.service import Service
from aoq.web.uploads import FIELD


async def find_service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


Shared = Annotated[Service, Depends(find_service)]


def find_run(
    run: Annotated[str, Path(description="Name of a run, as /api/status lists it.")],
    service: Shared,
) -> RunApi:
    if run not in service.watched:
        raise HTTPException(404, "There is no run of that name; /api/status lists them.")
    return service.watched[run].current()


Run = Annotated[RunApi, Depends(find_run)]
Number = Annotated[
    int, Path(ge=0, le=NUMBER, description="Number of an image or text of the index.")
]
AnyNumber = Annotated[int | None, Query(ge=0, le=NUMBER)]
Sentence = Annotated[str | None, Query(min_length=1, max_length=QUERY_CHARACTERS)]
Upload = Annotated[
    str | None, Query(max_length=64, description="The name in the response to an upload.")
]
Top = Annotated[int, Query(ge=1, le=TOP, description="Number of hits.")]
Depth = Annotated[int, Query(ge=1, le=DEPTH, description="Number of candidates.")]


async def find_pair(
    service: Shared,
    image: AnyNumber = None,
    upload: Upload = None,
    text: Sentence = None,
    text_number: AnyNumber = None,
) -> tuple[ReadPicture | int, str | int]:
    """Find an image and a text, each given in one of two ways."""
    picture = _the_one(image=image, upload=upload)
    sentence = _the_one(text=text, text_number=text_number)
    return (service.uploads.find(picture) if isinstance(picture, str) else picture), sentence


Pair = Annotated[tuple[ReadPicture | int, str | int], Depends(find_pair)]

_SIDES = {"thumb": THUMBNAIL, "full": FULL, "original": None}
_FAILURES = {
    400: "The request cannot be understood.",
    401: "The server wants a token.",
    403: "A page of another site sent the request.",
    404: "There is no such run, image or text.",
    409: "The run or its index lacks what is needed; the sentence says what.",
    422: "A parameter is invalid; the sentence says which.",
    429: "Too many requests at once; try again after the seconds in Retry-After.",
    503: "The request took too long, or the index was made again.",
}
_UPLOAD_FAILURES = {
    408: "The request took too long to arrive.",
    413: "The request is too large.",
}
_BODY_FAILURES = _UPLOAD_FAILURES | {415: "The request is not JSON."}
_FORM = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": [FIELD],
                    "additionalProperties": False,
                    "properties": {
                        FIELD: {
                            "type": "string",
                            "format": "binary",
                            "description": f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}.",
                        }
                    },
                }
            }
        },
    }
}


def _failures(reasons: dict[int, str]) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": Failure, "description": reason} for status, reason in reasons.items()}


router = APIRouter(prefix="/api", responses=_failures(_FAILURES))


@router.get("/status", tags=["server"])
async def status(service: Shared) -> Status:
    """List the runs that are served, and the limits of requests."""
    limits = service.limits
    runs = await service.workers.run(service.describe)
    return Status(
        version=__version__,
        limits=LimitsAnswer(
            upload_bytes=limits.upload_bytes,
            pixels=limits.pixels,
            query_characters=QUERY_CHARACTERS,
            top=TOP,
        ),
        runs=runs,
    )


@router.get("/runs/{run}/images", tags=["search"])
async def images_for_text(
    run: Run,
    service: Shared,
    text: Sentence = None,
    text_number: AnyNumber = None,
    top: Top = 12,
) -> ImagesAnswer:
    """Find images for a sentence, or for a text of the index: give one of them."""
    query = _the_one(text=text, text_number=text_number)
    return await service.workers.run(run.images_for, query, top=top)


@router.get("/runs/{run}/texts", tags=["search"])
async def texts_for_image(
    run: Run, service: Shared, image: Annotated[int, Query(ge=0, le=NUMBER)], top: Top = 12
) -> TextsAnswer:
    """Find texts for an image of the index."""
    return await service.workers.run(run.texts_for, image, top=top)


@router.post(
    "/runs/{run}/texts",
    tags=["search"],
    responses=_failures(_UPLOAD_FAILURES),
    openapi_extra=_FORM,
)
async def texts_for_upload(
    run: Run, service: Shared, request: Request, top: Top = 12
) -> TextsAnswer:
    """Find texts for a picture that is sent as a form with one file."""
    run.require_uploads()

    def answer(file: BinaryIO) -> TextsAnswer:
        token, picture = service.uploads.read(file.read(), run.matcher.encoder)
        return run.texts_for(picture, top=top, upload=token)

    async with service.uploads.receive(request) as file:
        return await service.workers.run(answer, file)


@router.post(
    "/runs/{run}/search",
    tags=["search"],
    responses=_failures(_BODY_FAILURES),
    openapi_extra=json_body(SearchRequest),
)
async def search(run: Run, service: Shared, request: Request) -> SearchAnswer:
    """Find images or texts for several texts and photos at once, within filters and bounds."""
    asked = await read_json(request, SearchRequest, seconds=service.limits.upload_seconds)
    like = [service.uploads.find(each) if isinstance(each, str) else each for each in asked.like]
    return await service.workers.run(run.search, asked, like)


@router.post(
    "/runs/{run}/uploads",
    tags=["search"],
    responses=_failures(_UPLOAD_FAILURES),
    openapi_extra=_FORM,
)
async def upload(run: Run, service: Shared, request: Request) -> UploadAnswer:
    """Read a picture that is sent as a form with one file, to ask about it by its name."""
    run.require_uploads()

    def answer(file: BinaryIO) -> UploadAnswer:
        token, _ = service.uploads.read(file.read(), run.matcher.encoder)
        return UploadAnswer(upload=token)

    async with service.uploads.receive(request) as file:
        return await service.workers.run(answer, file)


@router.get("/runs/{run}/score", tags=["search"])
async def score(run: Run, service: Shared, pair: Pair) -> ScoreAnswer:
    """Score how well two fit: give an image or an upload, and a text or its number."""
    return await service.workers.run(run.score, *pair)


@router.get("/runs/{run}/attention", tags=["search"])
async def attention(run: Run, service: Shared, pair: Pair) -> AttentionAnswer:
    """Weigh words and regions: give an image or an upload, and a text or its number."""
    return await service.workers.run(run.attention, *pair)


@router.get("/runs/{run}/negatives/{kind}/{number}", tags=["training"])
async def negatives(
    run: Run, service: Shared, kind: EntryKind, number: Number, depth: Depth = 12
) -> NegativesAnswer:
    """List the mined negatives of an image or text of the training split, hardest first."""
    return await service.workers.run(run.negatives, kind, number, depth=depth)


@router.get("/runs/{run}/curves", tags=["training"])
async def curves(run: Run, service: Shared) -> CurvesAnswer:
    """Show how the run was trained, epoch by epoch."""
    return await service.workers.run(history.curves, run.path)


@router.get("/runs/{run}/results", tags=["training"])
async def results(run: Run, service: Shared) -> ResultsAnswer:
    """Show the settings that are not the paper's, and the results of the run."""
    return await service.workers.run(history.results, run.path)


@router.get("/runs/{run}/entries", tags=["index"])
async def entries(
    run: Run, service: Shared, wanted: Annotated[EntryQuery, Query()]
) -> EntriesAnswer:
    """List the images or texts of the index, page by page."""
    return await service.workers.run(run.entries.page, wanted)


@router.get("/runs/{run}/columns", tags=["index"])
async def columns(run: Run, service: Shared) -> ColumnsAnswer:
    """List what is known of the images, by which a search can be filtered."""
    return await service.workers.run(run.columns)


@router.get("/runs/{run}/entries/{kind}/{number}", tags=["index"])
async def entry(run: Run, service: Shared, kind: EntryKind, number: Number) -> OneEntryAnswer:
    """Show an image or a text of the index, and what belongs to it."""
    return await service.workers.run(run.entries.with_partners, kind, number)


@router.get(
    "/runs/{run}/pictures/{number}",
    tags=["index"],
    response_class=Response,
    responses={200: {"content": {"image/jpeg": {}}, "description": "A JPEG."}},
)
async def picture(
    run: Run,
    service: Shared,
    number: Number,
    size: Literal["thumb", "full", "original"] = "thumb",
    index: Annotated[
        str | None,
        Query(max_length=64, description="Hash of the index that the number belongs to."),
    ] = None,
) -> Response:
    """Show the picture of an image of the index."""
    made = await service.workers.run(run.picture, number, side=_SIDES[size], index=index)
    headers = {"Cache-Control": "private, max-age=3600"}
    return Response(made, media_type="image/jpeg", headers=headers)


def _the_one(**given: str | int | None) -> str | int:
    """Return the one of several parameters that is given."""
    values = [value for value in given.values() if value is not None]
    if len(values) != 1:
        raise HTTPException(422, f"Give one of {' and '.join(given)}; {len(values)} were given.")
    return values[0]
