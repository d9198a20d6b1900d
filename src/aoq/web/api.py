"""The routes of the HTTP API: what can be asked, within which bounds, and what is answered.

A route says what is allowed and hands the work to a worker's thread; nothing is computed here.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from aoq import __version__
from aoq.data.pictures import FORMATS
from aoq.experiments.inspection import EntryKind
from aoq.retrieval.encoder import ReadPicture
from aoq.web import history
from aoq.web.answers import (
    AttentionAnswer,
    CurvesAnswer,
    EntriesAnswer,
    Failure,
    ImagesAnswer,
    LimitsAnswer,
    NegativesAnswer,
    OneEntryAnswer,
    ResultsAnswer,
    ScoreAnswer,
    Status,
    TextsAnswer,
)
from aoq.web.limits import DEPTH, FULL, NUMBER, PAGE, QUERY_CHARACTERS, THUMBNAIL, TOP
from aoq.web.refusals import RefusedError
from aoq.web.served import ServedRun
from aoq.web.service import Service
from aoq.web.uploads import FIELD


def find_service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


Shared = Annotated[Service, Depends(find_service)]


def find_run(
    run: Annotated[str, Path(description="Name of a run, as the status tells it.")],
    service: Shared,
) -> ServedRun:
    if run not in service.growing:
        raise RefusedError(404, "There is no run of that name; /api/status lists them.")
    return service.growing[run].current()


Run = Annotated[ServedRun, Depends(find_run)]
Number = Annotated[int, Path(ge=0, le=NUMBER, description="Of an image or text of the index.")]
AnyNumber = Annotated[int | None, Query(ge=0, le=NUMBER)]
Sentence = Annotated[str | None, Query(min_length=1, max_length=QUERY_CHARACTERS)]
Upload = Annotated[
    str | None, Query(max_length=64, description="The name that an upload was answered with.")
]
Top = Annotated[int, Query(ge=1, le=TOP, description="Hits to answer with.")]
Depth = Annotated[int, Query(ge=1, le=DEPTH, description="Candidates to answer with.")]


def find_pair(
    service: Shared,
    image: AnyNumber = None,
    upload: Upload = None,
    text: Sentence = None,
    text_number: AnyNumber = None,
) -> tuple[ReadPicture | int, str | int]:
    """An image and a text, each named in one of two ways."""
    shown = _the_one(image=image, upload=upload)
    said = _the_one(text=text, text_number=text_number)
    return (service.uploads.find(shown) if isinstance(shown, str) else shown), said


Pair = Annotated[tuple[ReadPicture | int, str | int], Depends(find_pair)]

_SIDES = {"thumb": THUMBNAIL, "full": FULL}
_FAILURES = {
    400: "The request is not one that can be understood.",
    403: "A page of another site asked.",
    404: "No such run, image or text.",
    409: "The run or its index has nothing to answer with; the sentence says why.",
    422: "A parameter is not what it should be; the sentence says which.",
    429: "Too many at once; come back in as many seconds as Retry-After says.",
    503: "It took too long, or the index was made again.",
}
_UPLOAD_FAILURES = {
    408: "The upload took too long.",
    413: "The upload is too large.",
}
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
    """The runs that are served, and what may be asked of them."""
    limits = service.limits
    runs = await service.workers.do(service.describe)
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
    """Images for a sentence, or for a text of the index: name one of them."""
    query = _the_one(text=text, text_number=text_number)
    return await service.workers.do(run.images_for, query, top=top)


@router.get("/runs/{run}/texts", tags=["search"])
async def texts_for_image(
    run: Run, service: Shared, image: Annotated[int, Query(ge=0, le=NUMBER)], top: Top = 12
) -> TextsAnswer:
    """Texts for an image of the index."""
    return await service.workers.do(run.texts_for, image, top=top)


@router.post(
    "/runs/{run}/texts",
    tags=["search"],
    responses=_failures(_UPLOAD_FAILURES),
    openapi_extra=_FORM,
)
async def texts_for_upload(
    run: Run, service: Shared, request: Request, top: Top = 12
) -> TextsAnswer:
    """Texts for a picture that is sent as a form with one file."""
    run.require_uploads()
    form = request.headers.get("content-type", "")

    def answer(body: bytearray) -> TextsAnswer:
        picture = service.uploads.open(body, form)
        token, read = service.uploads.read(picture, run.matcher.encoder)
        found = run.texts_for(read, top=top)
        return found.model_copy(update={"upload": token})

    async with service.uploads.receive(request) as body:
        return await service.workers.do(answer, body)


@router.get("/runs/{run}/score", tags=["search"])
async def score(run: Run, service: Shared, pair: Pair) -> ScoreAnswer:
    """How well two fit: name an image or an upload, and a text or its number."""
    return await service.workers.do(run.score, *pair)


@router.get("/runs/{run}/attention", tags=["search"])
async def attention(run: Run, service: Shared, pair: Pair) -> AttentionAnswer:
    """What looked at what: name an image or an upload, and a text or its number."""
    return await service.workers.do(run.attention, *pair)


@router.get("/runs/{run}/negatives/{kind}/{number}", tags=["training"])
async def negatives(
    run: Run, service: Shared, kind: EntryKind, number: Number, depth: Depth = 12
) -> NegativesAnswer:
    """The mined negatives of an image or text of the training split, hardest first."""
    return await service.workers.do(run.negatives, kind, number, depth=depth)


@router.get("/runs/{run}/curves", tags=["training"])
async def curves(run: Run, service: Shared) -> CurvesAnswer:
    """How the run was trained, epoch by epoch."""
    return await service.workers.do(history.curves, run.path)


@router.get("/runs/{run}/results", tags=["training"])
async def results(run: Run, service: Shared) -> ResultsAnswer:
    """The settings that are not the paper's, and what the run is worth."""
    return await service.workers.do(history.results, run.path)


@router.get("/runs/{run}/entries", tags=["index"])
async def entries(
    run: Run,
    service: Shared,
    kind: EntryKind = "image",
    split: Annotated[
        str | None,
        Query(
            max_length=64,
            pattern="^[A-Za-z0-9_-]+$",
            description="One of those that the status lists.",
        ),
    ] = None,
    entry_id: Annotated[
        str | None,
        Query(alias="id", max_length=QUERY_CHARACTERS, description="Of one entry, in any index."),
    ] = None,
    query: Annotated[
        str, Query(max_length=QUERY_CHARACTERS, description="Words that an entry has to hold.")
    ] = "",
    offset: Annotated[int, Query(ge=0, le=NUMBER)] = 0,
    limit: Annotated[int, Query(ge=1, le=PAGE)] = 24,
    sample: Annotated[
        int | None,
        Query(ge=0, le=NUMBER, description="Draw entries with this seed; no offset then."),
    ] = None,
) -> EntriesAnswer:
    """The images or texts of the index, page by page."""
    return await service.workers.do(
        run.entries,
        kind,
        split=split,
        entry_id=entry_id,
        query=query,
        offset=offset,
        limit=limit,
        sample=sample,
    )


@router.get("/runs/{run}/entries/{kind}/{number}", tags=["index"])
async def entry(run: Run, service: Shared, kind: EntryKind, number: Number) -> OneEntryAnswer:
    """An image or a text of the index, and what belongs to it."""
    return await service.workers.do(run.entry, kind, number)


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
    size: Literal["thumb", "full"] = "thumb",
    index: Annotated[
        str | None, Query(max_length=64, description="The index that the number is of.")
    ] = None,
) -> Response:
    """The picture of an image of the index."""
    made = await service.workers.do(run.picture, number, side=_SIDES[size], index=index)
    headers = {"Cache-Control": "private, max-age=3600"}
    return Response(made, media_type="image/jpeg", headers=headers)


def _the_one(**given: str | int | None) -> str | int:
    """The one parameter of several that is given."""
    values = [value for value in given.values() if value is not None]
    if len(values) != 1:
        raise RefusedError(422, f"Give one of {' and '.join(given)}; {len(values)} were given.")
    return values[0]
