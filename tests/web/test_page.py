"""The page of `aoq serve` in a real browser, on a real server with two small trained runs."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from urllib.parse import urlencode

import pytest

from aoq.retrieval.indexing import Contents, build_index
from aoq.retrieval.matcher import Matcher
from aoq.web.app import make_app
from aoq.web.limits import Limits
from aoq.web.server import running
from tests.web.conftest import picture_bytes

sync_api = pytest.importorskip("playwright.sync_api")
expect = sync_api.expect

CHROMIUM = next(
    (
        found
        for name in ("/usr/bin/chromium", "chromium", "chromium-browser", "google-chrome")
        if (found := shutil.which(name))
    ),
    None,
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
VSRN, BFAN = 0, 1  # places in the list of runs


@dataclass
class Visit:
    """A page, and everything that it asked for or complained about."""

    page: sync_api.Page
    server: str
    runs: list[str]
    complaints: list[str] = field(default_factory=list)
    expected: set[int] = field(default_factory=set)
    "Statuses that a test provokes."

    def open(self, view: str, run: int = BFAN, **parameters: object) -> sync_api.Page:
        query = urlencode({"run": self.runs[run], **parameters})
        self.page.goto("about:blank")
        self.page.goto(f"{self.server}/#/{view}?{query}")
        return self.settled()

    def settled(self) -> sync_api.Page:
        expect(self.page.locator("h1")).to_be_visible()
        expect(self.page.locator("[aria-busy]")).to_have_count(0)
        return self.page

    def listen(self) -> None:
        page = self.page
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", lambda message: self._heard(message.type, message.text))
        page.on("requestfailed", lambda request: self._failed(request))
        page.on("request", lambda request: self._asked(request.url))

    def _heard(self, kind: str, text: str) -> None:
        if kind in ("error", "warning") and not any(
            f"of {code} " in text for code in self.expected
        ):
            self.complaints.append(text)

    def _failed(self, request: sync_api.Request) -> None:
        if "ERR_ABORTED" not in (request.failure or ""):  # a picture of a view that was left
            self.complaints.append(f"{request.url}: {request.failure}")

    def _asked(self, url: str) -> None:
        if not url.startswith((self.server, "about:")):
            self.complaints.append(f"asked another server: {url}")


@pytest.fixture(scope="module")
def browser() -> Iterator[sync_api.Browser]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def options() -> dict[str, object]:
    """How the browser shows the page; tests choose with `parametrize`."""
    return {}


@pytest.fixture
def visit(browser, server, run_names, options) -> Iterator[Visit]:
    """A visit that has to end without an error on the console or a request to elsewhere."""
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 860}} | options)
    context.set_default_timeout(10_000)
    visit = Visit(context.new_page(), server, run_names)
    visit.listen()
    yield visit
    context.close()
    assert visit.complaints == []


@pytest.fixture(scope="module")
def ask(client, run_names):
    """What the API says itself."""

    def answer(path: str, run: int = BFAN, **parameters: object) -> dict:
        response = client.get(f"/api/runs/{run_names[run]}/{path}", params=parameters)
        assert response.status_code == 200, response.text
        return response.json()

    return answer


@pytest.fixture(scope="module")
def caption(ask) -> dict:
    """A caption whose photo BFAN finds among its first twelve."""
    answers = (ask("images", text_number=number) for number in count())
    return next(
        answer["query"] for answer in answers if any(hit["correct"] for hit in answer["hits"])
    )


@pytest.fixture(scope="module")
def known_image(ask) -> int:
    """An image for which BFAN finds a caption among its first twelve."""
    return next(
        number
        for number in count()
        if any(hit["correct"] for hit in ask("texts", image=number)["hits"])
    )


def every_view(image: int, text: int) -> list[tuple[str, int, dict[str, object]]]:
    return [
        ("photos", BFAN, {}),
        ("photos", BFAN, {"text_number": text}),
        ("sentences", BFAN, {}),
        ("sentences", BFAN, {"image": image}),
        ("compare", VSRN, {}),
        ("compare", VSRN, {"text_number": text}),
        ("compare", VSRN, {"image": image}),
        ("photo", BFAN, {}),
        ("photo", BFAN, {"image": image}),
        ("photo", VSRN, {"image": image}),
        ("negatives", BFAN, {"kind": "image", "number": 0}),
        ("negatives", BFAN, {"kind": "text", "number": 0}),
        ("run", BFAN, {}),
    ]


def said(sentence: str) -> str:
    """As the page shows it: commands between backticks are set as such."""
    return sentence.replace("`", "")


def scores_of(page: sync_api.Page) -> list[float]:
    return [float(text.split()[-1]) for text in page.locator(".score .number").all_inner_texts()]


def to_three_digits(entries: list[dict]) -> object:
    return pytest.approx([entry["score"] for entry in entries], abs=6e-4)


def test_a_sentence_finds_photos_with_their_scores(visit, ask):
    page = visit.open("photos")
    page.get_by_label("Sentence").fill("a red bird")
    page.get_by_role("button", name="Find").click()
    expect(page.locator(".grid .card a")).to_have_count(12)
    assert scores_of(page) == to_three_digits(ask("images", text="a red bird")["hits"])
    assert "text=a+red+bird" in page.url
    expect(page.locator("#announcer")).to_contain_text("Best 12 of 80 photos")
    page.get_by_role("button", name="Show more").click()
    expect(page.locator(".grid .card a")).to_have_count(24)
    expect(page.get_by_role("button", name="Show more")).to_be_focused()


@pytest.mark.parametrize(
    ("view", "query"), [("photos", {"text": "a bird"}), ("sentences", {"image": 0})]
)
def test_no_more_is_drawn_than_can_be_found(visit, view, query):
    page = visit.page
    answers: list[sync_api.Route] = []
    page.route(re.compile(r"/(images|texts)\?"), lambda route: answers.append(route))
    page.goto(f"{visit.server}/#/{view}?{urlencode({**query, 'top': 10_000})}")
    expect(page.locator("section .waiting")).to_have_count(100)
    answers[0].continue_()
    visit.settled()
    assert "top=100" in answers[0].request.url


def test_unknown_words_are_named(visit):
    page = visit.open("photos", text="a red zyzzyva")
    expect(page.locator(".remark")).to_have_text(
        re.compile("^zyzzyva is not in the vocabulary of this run, to which all such words are")
    )
    expect(page.locator(".grid .card a")).to_have_count(12)


def test_an_error_is_the_servers_own_sentence(visit, client, run_names):
    visit.expected.add(422)
    page = visit.open("photos", text="zyzzyva")
    refused = client.get(f"/api/runs/{run_names[BFAN]}/images", params={"text": "zyzzyva"})
    expect(page.get_by_role("alert").locator("p")).to_have_text(said(refused.json()["error"]))


def test_an_example_is_a_link_and_the_way_back_leads_to_it(visit):
    page = visit.open("photos")
    example = page.locator(".example").first
    sentence = example.inner_text()
    example.click()
    expect(page.locator(".grid .card a")).to_have_count(12)
    expect(page.get_by_label("Sentence")).to_have_value(sentence)
    page.locator(".card a").nth(2).click()
    expect(page.get_by_role("heading", name="Attention")).to_be_focused()
    page.go_back()
    expect(page.locator(".card a").nth(2)).to_be_focused()
    page.go_back()
    expect(page.locator(".example").first).to_have_text(sentence)


def test_the_correct_photo_is_ticked(visit, caption, ask):
    page = visit.open("photos", text_number=caption["number"])
    hits = ask("images", text_number=caption["number"])["hits"]
    right = [place for place, hit in enumerate(hits) if hit["correct"]]
    cards = page.locator(".grid .card")
    expect(cards).to_have_count(len(hits))
    assert [at for at in range(12) if cards.nth(at).locator(".tick").count()] == right
    expect(page.locator(".summary")).to_contain_text(f"first correct at rank {right[0] + 1}")


def test_an_uploaded_photo_finds_sentences_and_can_be_looked_at(visit, served_runs):
    page = visit.open("sentences")
    picture = next((served_runs.data / "source" / "pictures").glob("*.png"))
    page.locator("#picture").set_input_files(picture)
    expect(page.locator(".rows li a")).to_have_count(12)
    expect(page.locator(".chooser canvas")).to_be_visible()
    page.locator(".rows a").first.click()
    expect(page.locator(".stage canvas")).to_be_visible()
    page.locator(".word").first.hover()
    expect(page.locator(".readout")).to_contain_text("looks most at the")
    page.reload()
    visit.settled()
    expect(page.locator(".stage")).to_contain_text("No longer here")
    expect(page.get_by_role("alert")).to_contain_text("choose it once more")


@pytest.mark.parametrize("way", ["drop", "paste"])
def test_a_photo_can_be_dropped_and_pasted(visit, way):
    page = visit.open("sentences")
    event, carrier, target = {
        "drop": ("DragEvent", "dataTransfer", ".chooser"),
        "paste": ("ClipboardEvent", "clipboardData", "body"),
    }[way]
    page.evaluate(
        """([way, event, carrier, target, bytes]) => {
            const files = new DataTransfer();
            files.items.add(new File([new Uint8Array(bytes)], "a.jpg", { type: "image/jpeg" }));
            const options = { [carrier]: files, bubbles: true, cancelable: true };
            document.querySelector(target).dispatchEvent(new window[event](way, options));
        }""",
        [way, event, carrier, target, list(picture_bytes())],
    )
    expect(page.locator(".rows li a")).to_have_count(12)


def test_a_file_that_is_no_picture_is_refused_with_a_sentence(visit, tmp_path):
    visit.expected.add(422)
    notes = tmp_path / "notes.jpg"
    notes.write_text("no picture")
    page = visit.open("sentences")
    with page.expect_response(lambda answer: answer.request.method == "POST") as response:
        page.locator("#picture").set_input_files(notes)
    expect(page.get_by_role("alert").locator("p")).to_have_text(
        said(response.value.json()["error"])
    )


def test_a_file_that_is_too_large_is_not_even_sent(visit, tmp_path):
    huge = tmp_path / "huge.jpg"
    with huge.open("wb") as file:
        file.truncate(10_000_001)
    page = visit.open("sentences")
    posted = []
    page.on("request", lambda request: request.method == "POST" and posted.append(request))
    page.locator("#picture").set_input_files(huge)
    expect(page.get_by_role("alert")).to_contain_text("at most 10.0 MB")
    assert posted == []


def test_a_photo_can_be_picked_by_a_word(visit):
    page = visit.open("sentences")
    page.get_by_role("button", name="Pick one").click()
    dialog = page.get_by_role("dialog", name="Pick a photo")
    dialog.get_by_label("Word").fill("bear")
    dialog.get_by_role("button", name="Filter").click()
    expect(dialog.locator(".choice img").first).to_have_attribute("alt", re.compile("."))
    dialog.locator(".choice").first.click()
    expect(dialog).to_have_count(0)
    expect(page.locator(".rows li a")).to_have_count(12)
    assert re.search(r"image=\d+", page.url)


@pytest.mark.parametrize("kind", ["image", "text"])
def test_an_anchor_is_picked_from_the_training_split(visit, ask, kind):
    page = visit.open("negatives", kind=kind, number=0)
    page.get_by_role("button", name="Pick one").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Word").fill("a")
    with page.expect_response(re.compile("query=a")) as response:
        dialog.get_by_role("button", name="Filter").click()
    found = response.value.json()
    assert found["total"] == ask("entries", kind=kind, split="train", query="a")["total"]
    assert found["total"] < ask("entries", kind=kind, query="a")["total"]


def test_correct_sentences_are_ticked(visit, known_image, ask):
    page = visit.open("sentences", image=known_image)
    right = [hit["text"] for hit in ask("texts", image=known_image)["hits"] if hit["correct"]]
    expect(page.locator(".rows .correct .tick")).to_have_count(len(right))
    expect(page.locator(".rows .correct").first).to_contain_text(right[0])


def test_two_runs_are_compared_with_ticks_and_ranks(visit, caption, ask):
    page = visit.open("compare", VSRN, other=visit.runs[BFAN], text_number=caption["number"])
    answers = [ask("images", run, text_number=caption["number"])["hits"] for run in (VSRN, BFAN)]
    ids = [{hit["id"] for hit in hits} for hits in answers]
    for at, hits in enumerate(answers):
        column = page.locator(".column").nth(at)
        expect(column.locator(".card a")).to_have_count(12)
        expect(column.locator(".tick")).to_have_count(sum(hit["correct"] for hit in hits))
        expect(column.locator(".only")).to_have_count(len(ids[at] - ids[1 - at]))
    rank = next(place for place, hit in enumerate(answers[1], 1) if hit["correct"])
    expect(page.locator(".column-top").nth(1)).to_contain_text(f"first correct at rank {rank}")
    expect(page.locator(".verdict")).to_contain_text(f"{len(ids[0] & ids[1])} of the first 12")
    expect(page.get_by_label("Sentence")).to_have_value(caption["text"])
    page.get_by_role("button", name="Swap").click()
    expect(page.locator(".column-top").first).to_contain_text(f"first correct at rank {rank}")


@pytest.fixture
def uneven(browser, proposing_server) -> Iterator[Visit]:
    """VSRN with all splits beside BFAN with the test split, for which VSRN proposes."""
    context = browser.new_context()
    context.set_default_timeout(10_000)
    visit = Visit(context.new_page(), proposing_server, ["vsrn-round-two", "bfan-round-two"])
    visit.listen()
    yield visit
    context.close()
    assert visit.complaints == []


def test_runs_with_different_indexes_are_compared_on_the_same_entry(uneven, ask, proposing):
    """Its number differs, its id does not: both columns know which answer is correct."""
    client, bfan = proposing
    text = ask("entries", VSRN, kind="text", split="test", limit=1)["entries"][0]
    page = uneven.open("compare", VSRN, other=bfan, text_number=text["number"])
    there = client.get(f"/api/runs/{bfan}/images", params={"text_number": 0}).json()
    assert there["query"]["text"] == text["text"]
    for at, hits in enumerate(
        (ask("images", VSRN, text_number=text["number"])["hits"], there["hits"])
    ):
        column = page.locator(".column").nth(at)
        expect(column.locator(".tick")).to_have_count(sum(hit["correct"] for hit in hits))
        expect(column.locator(".column-top")).to_contain_text("correct")
    image = ask("entries", VSRN, kind="image", split="test", limit=1)["entries"][0]
    page = uneven.open("compare", VSRN, other=bfan, image=image["number"])
    found = client.get(f"/api/runs/{bfan}/texts", params={"image": 0}).json()["hits"]
    column = page.locator(".column").nth(1)
    expect(column.locator(".tick")).to_have_count(sum(hit["correct"] for hit in found))
    expect(column.locator("a").first).to_have_attribute("href", re.compile(r"[?&]image=0&"))


def test_an_entry_that_the_other_index_lacks_is_named(uneven, ask, proposing):
    page = uneven.open("compare", VSRN, other=proposing[1], image=0)
    expect(page.locator(".column").nth(1)).to_contain_text("does not hold this photo")
    text = ask("entries", VSRN, kind="text", split="train", limit=1)["entries"][0]
    page = uneven.open("compare", VSRN, other=proposing[1], text_number=text["number"])
    expect(page.locator(".column").nth(1).locator(".card a")).to_have_count(12)
    expect(page.locator(".column").nth(1).locator(".tick")).to_have_count(0)
    expect(page.locator(".column-top").first).to_contain_text("correct")
    expect(page.locator(".verdict")).to_have_text(re.compile(r"^\d+ of the first 12 photos are in"))


@pytest.fixture
def first_of_test(ask) -> dict[str, dict]:
    """The first photo and text of the test split, which BFAN there has under the number 0."""
    found = {
        kind: ask("entries", VSRN, kind=kind, split="test", limit=1)["entries"][0]
        for kind in ("image", "text")
    }
    assert all(entry["number"] > 0 for entry in found.values())
    return found


def test_another_run_is_chosen_with_the_same_entries(uneven, first_of_test):
    image, text = (first_of_test[kind]["number"] for kind in ("image", "text"))
    page = uneven.open("sentences", VSRN, image=image)
    page.get_by_label("Run").select_option(uneven.runs[BFAN])
    expect(page).to_have_url(re.compile(r"[?&]image=0(&|$)"))
    uneven.settled()
    page = uneven.open("photos", VSRN, text_number=text)
    page.get_by_label("Run").select_option(uneven.runs[BFAN])
    expect(page).to_have_url(re.compile(r"[?&]text_number=0(&|$)"))
    uneven.settled()
    page = uneven.open("sentences", VSRN, image=0)
    page.get_by_label("Run").select_option(uneven.runs[BFAN])
    expect(page.locator(".state")).to_contain_text("No photo yet")


def test_attention_of_another_run_is_of_the_same_photo_and_sentence(uneven, first_of_test):
    image, text = first_of_test["image"], first_of_test["text"]
    page = uneven.open("photo", VSRN, image=image["number"], text_number=text["number"])
    link = page.get_by_role("link", name=re.compile("^Look with"))
    expect(link).to_have_attribute("href", re.compile(r"[?&]image=0&.*text_number=0\b"))
    link.click()
    expect(page.locator(".region").first).to_be_attached()
    expect(page.locator(".stage img")).to_have_attribute("alt", image["text"])


def test_swapped_runs_are_compared_on_the_same_photo(uneven, first_of_test):
    image = first_of_test["image"]
    page = uneven.open("compare", VSRN, other=uneven.runs[BFAN], image=image["number"])
    page.get_by_role("button", name="Swap").click()
    expect(page).to_have_url(re.compile(r"[?&]image=0(&|$)"))
    expect(page.locator(".verdict img")).to_have_attribute("alt", image["text"])


def test_attention_is_of_the_sentence_in_the_address(visit):
    """A number that stands for another sentence, or for none, does not replace it."""
    visit.expected.add(404)
    for number in (0, 999_999):
        page = visit.open("photo", image=0, text_number=number, text="a red bird")
        expect(page.locator(".word")).to_have_text(["a", "red", "bird"])


def test_photos_of_two_folders_with_the_same_name_are_told_apart(browser, served_runs, tmp_path):
    folders = [tmp_path / name for name in "ab"]
    for shade, folder in enumerate(folders):
        folder.mkdir()
        (folder / "photo.png").write_bytes(picture_bytes("PNG", size=(64, 48 + shade)))
    matchers = []
    for run, pictures in ((served_runs.vsrn, folders), (served_runs.bfan, folders[::-1])):
        index = tmp_path / f"index-{run.name}"
        build_index(run, Contents(splits=["test"], pictures=pictures), out=index)
        matchers.append(Matcher.load(run, index=index))
    *_, first, second = matchers[0].index.images
    assert first.id == second.id
    limits = Limits()
    with running(make_app(matchers, limits=limits), limits) as server:
        context = browser.new_context()
        visit = Visit(context.new_page(), server, ["vsrn-round-two", "bfan-round-two"])
        page = visit.open("compare", VSRN, image=first.number)
        link = page.locator(".column").nth(1).locator("a").first
        expect(link).to_have_attribute("href", re.compile(rf"[?&]image={second.number}&"))
        context.close()


def test_a_run_with_a_teacher_says_how_much_is_found(uneven, proposing):
    client, _ = proposing
    teacher = client.get("/api/status").json()["runs"][1]["teacher"]
    page = uneven.open("run")
    expect(page.locator(".proposing")).to_contain_text("VSRN + AdapOffQuin proposes 3 for every")
    share = f"{100 * teacher['recall']['t2i']['r10']:.1f} % of the first ten photos"
    expect(page.locator(".proposing")).to_contain_text(share)
    page = uneven.open("photos", text="a red bird")
    expect(page.locator(".summary")).to_contain_text("proposed by VSRN + AdapOffQuin")


def test_an_address_of_other_data_is_searched_by_its_sentence(visit, ask):
    """A number that means another sentence, or none, does not replace what the address says."""
    visit.expected.add(404)
    for number in (0, 999_999):
        page = visit.open("photos", text_number=number, text="a red bird")
        assert scores_of(page) == to_three_digits(ask("images", text="a red bird")["hits"])
        expect(page.locator(".tick")).to_have_count(0)


def test_a_free_sentence_is_compared_without_ticks(visit):
    page = visit.open("compare", VSRN)
    page.get_by_label("Sentence").fill("a red bird")
    page.keyboard.press("Enter")
    expect(page.locator(".column .card a")).to_have_count(24)
    expect(page.locator(".tick")).to_have_count(0)


def test_a_picked_photo_is_compared(visit):
    page = visit.open("compare", VSRN)
    page.get_by_role("button", name="Pick a photo").click()
    page.locator(".choice").first.click()
    expect(page.locator(".column .rows li a")).to_have_count(24)
    expect(page.locator(".verdict img")).to_be_visible()


def strengths(page: sync_api.Page, selector: str) -> list[float]:
    read = "all => all.map(one => Number(one.style.getPropertyValue('--strength')))"
    return page.locator(selector).evaluate_all(read)


def test_attention_is_shown_from_words_and_from_regions(visit, caption, ask):
    image = ask("images", text_number=caption["number"])["hits"][0]["number"]
    page = visit.open("photo", image=image, text_number=caption["number"])
    found = ask("attention", image=image, text_number=caption["number"])
    page.locator(".word").nth(1).hover()
    weights = found["by_word"][1]
    wanted = [0.75 * weight / max(weights) for weight in weights]
    assert strengths(page, ".region") == pytest.approx(wanted, abs=1e-3)
    expect(page.locator(".readout")).to_contain_text(f"“{found['words'][1]['word']}” looks most")
    page.locator(".region").nth(7).hover()
    weights = found["by_region"][7]
    wanted = [weight / max(weights) for weight in weights]
    assert strengths(page, ".word") == pytest.approx(wanted, abs=1e-3)
    assert set(strengths(page, ".region")) == {0}
    page.locator("h1").hover()
    expect(page.locator(".readout")).to_contain_text("Point at a word")


PHONE = {"viewport": {"width": 360, "height": 740}, "is_mobile": True, "has_touch": True}


@pytest.mark.parametrize("options", [PHONE], ids=["phone"])
def test_a_tap_shows_attention_and_it_stays(visit, known_image):
    page = visit.open("photo", image=known_image)
    page.locator(".word").first.tap()
    expect(page.locator(".readout")).to_contain_text("looks most at the")
    assert max(strengths(page, ".region")) == 0.75
    assert page.evaluate("document.documentElement.scrollWidth") == 360


def test_a_model_without_attention_says_why(visit, client, known_image):
    page = visit.open("photo", VSRN, image=known_image)
    reason = client.get("/api/status").json()["runs"][VSRN]["attention_reason"]
    expect(page.locator(".remark")).to_contain_text(said(reason))
    page.get_by_role("link", name=re.compile("^Look with")).click()
    expect(page.locator(".region").first).to_be_attached()


@pytest.mark.parametrize("kind", ["image", "text"])
def test_mined_negatives_have_the_scores_of_the_lists(visit, ask, kind):
    page = visit.open("negatives", kind=kind)
    expect(page).to_have_url(re.compile(r"number=\d+"))
    visit.settled()
    number = int(re.search(r"number=(\d+)", page.url)[1])
    answer = ask(f"negatives/{kind}/{number}", depth=12)
    assert scores_of(page) == to_three_digits(answer["candidates"])
    for entry in answer["positives"]:
        own = page.locator("main").get_by_role("link").filter(has_text=entry["text"])
        expect(own).not_to_have_count(0)
    before = page.url
    page.get_by_role("button", name="Another").click()
    expect(page).not_to_have_url(before)


def test_a_run_shows_curves_results_and_settings(visit, ask):
    page = visit.open("run", VSRN)
    rounds = ask("curves", VSRN)["rounds"]
    assert rounds
    expect(page.locator(".chart")).to_have_count(3)
    points = sum(len(one["epochs"]) for one in rounds)
    expect(page.locator(".chart").first.locator("circle, rect")).to_have_count(points)
    page.get_by_text("The same as a table").click()
    expect(page.locator("details tbody tr")).to_have_count(points)
    answer = ask("results", VSRN)
    rsum = page.locator(".wide-table").first.locator("tbody tr").first.locator("td").last
    assert float(rsum.inner_text()) == pytest.approx(answer["results"][0]["rsum"], abs=0.051)
    expect(page.locator(".settings dt")).to_have_text(list(answer["settings"]))


def test_a_run_that_is_still_training_is_asked_again(visit):
    asked: list[str] = []

    def count_up(route: sync_api.Route) -> None:
        what = route.request.url.rpartition("/")[2]
        asked.append(what)
        times = asked.count(what)
        answer = route.fetch().json()
        if what == "results":
            answer["results"][0]["rsum"] = 100 + times
        if what == "status":
            answer["runs"][VSRN]["test"]["rsum"] = 200 + times
        route.fulfill(json=answer)

    visit.page.route(re.compile("/(curves|results|status)$"), count_up)
    page = visit.open("run")
    rsums = page.locator(".wide-table").first.locator("tbody td:last-child")
    expect(rsums).to_have_text(["101.0", "202.0"])
    page.get_by_role("link", name="Photos").click()
    visit.settled()
    page.get_by_role("link", name="Run", exact=True).click()
    expect(rsums).to_have_text(["102.0", "203.0"])
    assert asked.count("curves") == 2


def change_status(page: sync_api.Page, change: Callable[[dict], None]) -> None:
    """Let the server say something else of its runs."""

    def answer(route: sync_api.Route) -> None:
        status = route.fetch().json()
        change(status)
        route.fulfill(json=status)

    page.route("**/api/status", answer)


def test_a_run_without_mined_lists_says_why(visit):
    reason = "No negatives were mined with this run; `aoq mine` does it."
    lacking = {"has_negatives": False, "negatives_reason": reason}
    change_status(visit.page, lambda status: status["runs"][BFAN].update(lacking))
    page = visit.open("negatives")
    expect(page.locator(".state")).to_contain_text(said(reason))


def test_one_run_alone_is_not_compared(visit):
    change_status(visit.page, lambda status: status["runs"].pop())
    page = visit.open("compare", VSRN)
    expect(page.locator(".state")).to_contain_text("aoq serve RUN OTHER")
    expect(page.locator("select")).to_have_count(0)


def test_a_busy_server_is_asked_once_more(visit):
    visit.expected.add(429)
    asked = []

    def answer(route: sync_api.Route) -> None:
        asked.append(route.request.url)
        if len(asked) > 1:
            return route.continue_()
        body = {"error": "Too many at once."}
        return route.fulfill(status=429, headers={"Retry-After": "1"}, json=body)

    visit.page.route("**/images?*", answer)
    page = visit.page
    page.goto(f"{visit.server}/#/photos?text=a+bird")
    expect(page.get_by_role("status")).to_contain_text("asking again in 1 s")
    expect(page.locator(".grid .card a")).to_have_count(12)
    assert len(asked) == 2
    expect(page.get_by_role("status")).to_be_hidden()


def test_a_server_that_has_ended_is_said_to_have(visit):
    page = visit.open("photos")
    page.route("**/api/**", lambda route: route.abort("connectionrefused"))
    page.get_by_label("Sentence").fill("a bird")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("Is aoq serve still running?")
    assert visit.complaints
    visit.complaints.clear()  # what the browser says of a refused connection
    page.unroute_all()
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(".grid .card a")).to_have_count(12)


def test_the_keyboard_alone_is_enough(visit, caption):
    page = visit.open("photos", text_number=caption["number"])
    press = page.keyboard.press
    press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    press("Enter")
    press("Tab")
    expect(page.get_by_label("Sentence")).to_be_focused()
    press("Tab")
    press("Tab")
    expect(page.locator(".card a").first).to_be_focused()
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    press("ArrowRight")
    expect(page.locator(".card a").nth(1)).to_be_focused()
    press("ArrowDown")
    expect(page.locator(".card a").nth(7)).to_be_focused()  # six in a row
    press("Enter")
    page.locator(".word").first.focus()
    expect(page.locator(".readout")).to_contain_text("looks most at the")
    press("ArrowRight")
    expect(page.locator(".word").nth(1)).to_be_focused()
    press("Escape")
    expect(page.locator(".readout")).to_contain_text("Point at a word")
    page.locator(".region").first.focus()
    press("ArrowDown")
    expect(page.locator(".region").nth(6)).to_be_focused()
    expect(page.locator("#announcer")).to_contain_text("The region at the")
    press("Home")
    expect(page.locator(".region").first).to_be_focused()


def test_escape_closes_the_picker(visit):
    page = visit.open("sentences")
    page.locator("#pick").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.locator("#pick")).to_be_focused()


# How far things have moved while the page was made, as browsers count it.
SHIFTS = """
    window.shifted = 0;
    new PerformanceObserver((list) => list.getEntries().forEach((one) => (shifted += one.value)))
        .observe({ type: "layout-shift", buffered: true });
"""

# Of every visible piece of text: its contrast with the nearest ground below it, by WCAG 2.
CONTRASTS = """() => {
    const channels = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const light = (colour) => {
        const linear = channels(colour).slice(0, 3).map((value) => value / 255)
            .map((value) => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
    };
    const ground = (element) => {
        for (let at = element; at; at = at.parentElement) {
            const colour = getComputedStyle(at).backgroundColor;
            if (channels(colour)[3] !== 0) return colour;
        }
        return getComputedStyle(document.body).backgroundColor;
    };
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const found = [];
    while (texts.nextNode()) {
        const element = texts.currentNode.parentElement;
        const unseen = !element.checkVisibility() || element.closest("noscript, option, title");
        if (unseen || !texts.currentNode.data.trim()) continue;
        const style = getComputedStyle(element);
        const ink = element.namespaceURI.endsWith("svg") ? style.fill : style.color;
        const [more, less] = [light(ink), light(ground(element))].sort((a, b) => b - a);
        found.push([(more + 0.05) / (less + 0.05), texts.currentNode.data.trim().slice(0, 40)]);
    }
    return found;
}"""


@pytest.mark.parametrize("place", range(len(every_view(0, 0))))
def test_every_view_stands_still_and_can_be_read_by_day_by_night_and_on_a_phone(
    visit, known_image, caption, place
):
    view, run, parameters = every_view(known_image, caption["number"])[place]
    visit.page.add_init_script(SHIFTS)
    page = visit.open(view, run, **parameters)
    assert page.evaluate("window.shifted") < 0.1  # what is held to be good
    for scheme, is_dark in (("light", False), ("dark", True)):
        page.emulate_media(color_scheme=scheme)
        contrasts = page.evaluate(CONTRASTS)
        assert len(contrasts) > 10
        assert [pair for pair in contrasts if pair[0] < 4.5] == [], scheme
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", ground))) < 3 * 60) == is_dark
    page.set_viewport_size({"width": 360, "height": 740})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
