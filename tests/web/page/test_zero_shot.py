"""An imported model over a folder of photos, without data or training, in every view."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from PIL import Image
from playwright import sync_api
from playwright.sync_api import expect

from aoq.published.dual_encoders import import_dual_encoder
from aoq.retrieval.build import Contents, build_index
from aoq.retrieval.matcher import Matcher
from aoq.web.app import make_app
from aoq.web.limits import Limits
from aoq.web.server import running
from tests.retrieval.conftest import draw_photo
from tests.towers import DUAL_ENCODERS
from tests.web.conftest import picture_bytes
from tests.web.page.visit import Visit, marks_of, shown_marks, visiting

CLIP, SIGLIP, SIGLIP2 = range(3)
KINDS = ("clip", "siglip", "siglip2-naflex")
WIDTHS = pytest.mark.parametrize(
    "options", [{"viewport": {"width": width, "height": 844}} for width in (1280, 390)]
)
PHOTOS, TRIPS = 14, 5
DATE_TIME = 0x0132  # the Exif tag


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server with models that were imported."""
    root = tmp_path_factory.mktemp("imported")
    for number in range(PHOTOS):
        draw_photo(
            root / "photos" / ("trips" if number < TRIPS else "") / f"{number}.png", seed=number
        )
    taken = Image.Exif()
    taken[DATE_TIME] = "2023:06:01 12:00:00"
    with Image.open(root / "photos" / f"{PHOTOS - 1}.png") as photo:
        photo.save(photo.filename, exif=taken)
    runs = []
    for kind in KINDS:
        model = DUAL_ENCODERS[kind](root / "models" / kind)
        runs.append(import_dual_encoder(root / kind, str(model)).path)
        build_index(runs[-1], Contents(pictures=[root / "photos"]))
    limits = Limits()
    with running(make_app([Matcher.load(run) for run in runs], limits=limits), limits) as address:
        yield address


@pytest.fixture
def visit(browser: sync_api.Browser, imported: str, options: dict[str, object]) -> Iterator[Visit]:
    with visiting(browser, imported, KINDS, **options) as visit:
        yield visit


def asked(server: str, path: str, run: int = CLIP, **parameters: object) -> dict:
    answer = httpx.get(f"{server}/api/runs/{KINDS[run]}/{path}", params=parameters)
    assert answer.status_code == 200, answer.text
    return answer.json()


@WIDTHS
@pytest.mark.parametrize("run", [CLIP, SIGLIP2], ids=[KINDS[CLIP], KINDS[SIGLIP2]])
def test_a_sentence_finds_photos(visit: Visit, imported: str, run: int) -> None:
    page = visit.open("photos", run)
    expect(page.locator(".grid .card a")).to_have_count(12)  # some of them, before a sentence
    page.get_by_label("Sentence").fill("an unheard-of xylophone")
    page.get_by_role("button", name="Find").click()
    expect(page.locator(".summary")).to_contain_text(f"Best 12 of {PHOTOS} photos")
    expected = asked(imported, "images", run, text="an unheard-of xylophone")["hits"]
    assert marks_of(page) == shown_marks(expected)
    expect(page.locator(".remark")).to_have_count(0)  # no unknown words
    assert page.evaluate("document.documentElement.scrollWidth") == page.viewport_size["width"]


@WIDTHS
def test_a_photo_shows_how_well_a_sentence_fits(visit: Visit, imported: str) -> None:
    for run in (CLIP, SIGLIP):
        page = visit.open("photo", run, image=3, text="a red ball")
        fit = asked(imported, "score", run, image=3, text="a red ball")
        expect(page.locator(".panel .hint")).to_contain_text(f"Score {fit['score']:.3f}")
        share = page.get_by_text("% that they belong together")
        expect(share).to_have_count(0 if run == CLIP else 1)
        if run == SIGLIP:
            expect(share).to_contain_text(f"{100 * fit['probability']:.1f} %")
    page.get_by_label("Sentence").fill("two trees")
    page.get_by_role("button", name="Score").click()
    expect(page.locator(".words")).to_have_text("two trees")
    assert page.evaluate("document.documentElement.scrollWidth") == page.viewport_size["width"]


@WIDTHS
def test_no_view_misses_training_lists_or_sentences(visit: Visit) -> None:
    page = visit.open("sentences", CLIP)
    expect(page.get_by_role("heading", name="The index holds photos only")).to_be_visible()
    page.get_by_role("link", name="Choose a photo").click()
    expect(page.locator(".grid .card a")).to_have_count(12)
    page = visit.open("compare", CLIP, text="a red ball")
    expect(page.locator(".column .card")).to_have_count(24)
    page = visit.open("negatives", CLIP)
    expect(page.get_by_text("This run has no mined lists")).to_be_visible()
    page = visit.open("run", CLIP)
    expect(page.get_by_role("heading", name="photos · clip", exact=True)).to_be_visible()
    expect(page.get_by_text("This run has no record of its training.")).to_be_visible()
    settings = page.locator(".settings")
    expect(settings).to_contain_text("model.image")
    assert not re.search(r"/\w", settings.inner_text()), "a folder of this machine"
    assert page.evaluate("document.documentElement.scrollWidth") == page.viewport_size["width"]


def test_an_upload_is_read_as_the_file_is(imported: str, tmp_path: Path) -> None:
    """Of any shape, through the process that decodes uploads."""
    sentence = "a red ball"
    for run in (CLIP, SIGLIP2):
        status = httpx.get(f"{imported}/api/status").json()["runs"][run]
        assert status["reads_pictures"]
        answer = httpx.post(
            f"{imported}/api/runs/{KINDS[run]}/texts",
            files={"picture": ("wide.png", picture_bytes("PNG", (200, 60)), "image/png")},
        )
        assert answer.status_code == 409  # there are no sentences to find
        assert "no texts" in answer.json()["error"]
    assert asked(imported, "score", image=0, text=sentence)["score"] <= 1


def test_photos_are_filtered_by_folder_and_date_and_have_no_names_for_captions(
    visit: Visit,
) -> None:
    page = visit.open("photos", CLIP, text="a red ball")
    expect(page.locator(".card")).to_have_count(12)
    expect(page.locator(".caption")).to_have_count(0)
    page.get_by_role("button", name="Refine").click()
    page.get_by_label("Folder").select_option("trips")
    page.get_by_role("button", name="Find").click()
    expect(page.locator(".card")).to_have_count(TRIPS)
    assert all(name.startswith("trips/") for name in names_of(page))
    page.get_by_role("link", name="Remove: folder trips").click()
    expect(page.locator(".card")).to_have_count(12)
    page.locator("[name=from]").fill("2023-06-01")
    page.get_by_role("button", name="Find").click()
    expect(page.locator(".card")).to_have_count(1)
    assert names_of(page) == [f"{PHOTOS - 1}.png"]
    page.locator("[name=to]").fill("2023-05-01")
    page.get_by_role("button", name="Find").click()
    expect(page.get_by_role("heading", name="Nothing fits")).to_be_visible()
    page.get_by_role("link", name="Search all photos").click()
    expect(page.locator(".card")).to_have_count(12)


def test_where_nothing_fits_the_page_says_so(visit: Visit, imported: str) -> None:
    """The probabilities of a SigLIP are its own."""
    sentence = "an unheard-of xylophone"
    best = asked(imported, "images", SIGLIP, text=sentence)["hits"][0]["probability"]
    page = visit.open("photos", SIGLIP, text=sentence)
    expect(page.get_by_text("Nothing fits well")).to_have_count(int(best < 0.25))
    page = visit.open("photos", SIGLIP, text=sentence, precision=(1 + best) / 2)
    expect(page.get_by_role("heading", name="Nothing fits")).to_be_visible()
    page.get_by_role("link", name="Show the closest").click()
    expect(page.locator(".card")).to_have_count(12)


def test_a_photo_is_shown_with_its_folder_date_and_original(visit: Visit) -> None:
    page = visit.open("photos", CLIP, where=f"name = {PHOTOS - 1}.png", text="a ball")
    page.locator(".card a").click()
    expect(page.locator("h1")).to_have_text(f"{PHOTOS - 1}.png")
    expect(page.locator(".facts")).to_contain_text("2023-06-01 12:00:00")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    assert download.value.suggested_filename == f"{PHOTOS - 1}.jpg"
    with Image.open(download.value.path()) as picture:
        assert not picture.getexif()
        shown = page.locator(".facts").inner_text()
        assert f"{picture.width} × {picture.height}" in shown
    expect(page.locator(".similar .card")).to_have_count(6)
    page.locator(".similar .card a").first.click()
    expect(page.locator("h1")).not_to_have_text(f"{PHOTOS - 1}.png")


def names_of(page: sync_api.Page) -> list[str]:
    return page.locator(".grid .card a").evaluate_all("all => all.map((one) => one.title)")
