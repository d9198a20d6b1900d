"""Photos are found by a sentence, and sentences by a photo."""

from __future__ import annotations

import re
from urllib.parse import urlencode

import pytest
from playwright import sync_api
from playwright.sync_api import expect

from tests.web.conftest import picture_bytes
from tests.web.page.visit import (
    BFAN,
    SEARCHES,
    VSRN,
    change_status,
    marks_of,
    said,
    shown_marks,
)


def test_a_sentence_finds_photos_with_how_likely_they_are_right(visit, find):
    page = visit.open("photos")
    page.get_by_label("Sentence").fill("a red bird")
    page.get_by_role("button", name="Find").click()
    expect(page.locator(".grid .card a")).to_have_count(12)
    assert marks_of(page) == shown_marks(find(texts=["a red bird"])["hits"])
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
    page.route(SEARCHES, lambda route: answers.append(route))
    with page.expect_request(SEARCHES):
        page.goto(f"{visit.server}/#/{view}?{urlencode({**query, 'top': 10_000})}")
    expect(page.locator("section .waiting")).to_have_count(100)
    while not answers:
        page.wait_for_timeout(20)
    answers[0].continue_()
    visit.settled()
    asked = answers[0].request
    assert "top=100" in asked.url or asked.post_data_json["top"] == 100


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


@pytest.mark.parametrize(
    ("view", "query", "status"),
    [("photos", {"text": "zyzzyva"}, 422), ("photo", {"image": 999}, 404)],
)
def test_what_cannot_change_is_not_to_be_tried_again(visit, view, query, status):
    visit.expected.add(status)
    page = visit.open(view, **query)
    expect(page.get_by_role("alert")).to_be_visible()
    expect(page.get_by_role("button", name="Try again")).to_have_count(0)


@pytest.mark.parametrize("status", [429, 503])
def test_what_passes_can_be_tried_again(visit, status):
    visit.expected.add(status)
    page = visit.page
    busy = {"error": "The server is busy."}
    page.route(SEARCHES, lambda route: route.fulfill(status=status, json=busy))
    visit.open("photos", text="a bird")
    page.unroute_all()
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(".grid .card a")).to_have_count(12)


def test_an_example_is_a_link_and_the_way_back_leads_to_it(visit):
    page = visit.open("photos")
    example = page.locator(".example").first
    sentence = example.inner_text()
    example.click()
    expect(page.locator(".grid .card a")).to_have_count(12)
    expect(page.get_by_label("Sentence")).to_have_value(sentence)
    page.locator(".card a").nth(2).click()
    expect(page.get_by_role("heading", level=1)).to_be_focused()
    expect(page.locator("h1")).to_have_text(re.compile(r"\.png$"))
    page.go_back()
    expect(page.locator(".card a").nth(2)).to_be_focused()
    page.go_back()
    expect(page.locator(".example").first).to_have_text(sentence)


def test_the_correct_photo_is_ticked(visit, caption, find):
    page = visit.open("photos", text_number=caption["number"])
    hits = find(texts=[caption["number"]])["hits"]
    right = [place for place, hit in enumerate(hits) if hit["correct"]]
    cards = page.locator(".grid .card")
    expect(cards).to_have_count(len(hits))
    assert [at for at in range(12) if cards.nth(at).locator(".tick").count()] == right
    expect(page.locator(".summary")).to_contain_text(f"first correct at rank {right[0] + 1}")


def test_correct_sentences_are_ticked(visit, known_image, ask):
    page = visit.open("sentences", image=known_image)
    right = [hit["text"] for hit in ask("texts", image=known_image)["hits"] if hit["correct"]]
    expect(page.locator(".rows .correct .tick")).to_have_count(len(right))
    expect(page.locator(".rows .correct").first).to_contain_text(right[0])


def test_an_address_of_other_data_is_searched_by_its_sentence(visit, find):
    """A number that means another sentence, or none, does not replace what the address says."""
    visit.expected.add(404)
    for number in (0, 999_999):
        page = visit.open("photos", text_number=number, text="a red bird")
        assert marks_of(page) == shown_marks(find(texts=["a red bird"])["hits"])
        expect(page.locator(".tick")).to_have_count(0)


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


def test_a_file_that_is_not_a_picture_is_refused_with_a_sentence(visit, tmp_path):
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


def test_a_photo_can_be_picked_by_typing_a_word(visit):
    page = visit.open("sentences")
    page.get_by_role("button", name="Pick one").click()
    dialog = page.get_by_role("dialog", name="Pick a photo")
    expect(dialog.get_by_label("Word")).to_be_focused()
    with page.expect_response(re.compile("query=bear")):
        page.keyboard.type("bear")
    expect(dialog.locator("[aria-busy]")).to_have_count(0)
    expect(dialog.locator(".choice img").first).to_have_attribute("alt", re.compile("."))
    dialog.locator(".choice").first.click()
    expect(dialog).to_have_count(0)
    expect(page.locator(".rows li a")).to_have_count(12)
    assert re.search(r"image=\d+", page.url)


def test_the_choice_is_what_was_asked_for_last(visit):
    page = visit.open("sentences")
    page.get_by_role("button", name="Pick one").click()
    dialog = page.get_by_role("dialog")
    held: list[sync_api.Route] = []
    page.route(re.compile("query=bear"), lambda route: held.append(route))
    dialog.get_by_label("Word").fill("bear")
    page.keyboard.press("Enter")
    dialog.get_by_role("button", name="Others").click()
    expect(dialog.locator("[aria-busy]")).to_have_count(0)
    others = dialog.locator(".choice img")
    shown = others.evaluate_all("all => all.map((one) => one.src)")
    with page.expect_response(re.compile("query=bear")):
        held[0].continue_()
    page.wait_for_timeout(100)
    assert shown
    assert others.evaluate_all("all => all.map((one) => one.src)") == shown


def test_an_answer_that_comes_after_the_view_was_left_changes_nothing(visit, caption):
    page = visit.open("compare", VSRN)
    held: list[sync_api.Route] = []
    page.route(SEARCHES, lambda route: held.append(route))
    with page.expect_request(SEARCHES):
        page.evaluate(f"location.hash = '#/photos?text_number={caption['number']}'")
    expect(page.locator(".summary")).to_have_text("Searching…")
    page.go_back()
    expect(page.get_by_role("heading", level=1)).to_have_text("Compare")
    with page.expect_response(SEARCHES):
        held[0].continue_()
    page.wait_for_timeout(100)
    expect(page.get_by_label("Sentence")).to_have_value("")
    expect(page.locator("#announcer")).to_be_empty()


def test_the_way_back_closes_the_picker(visit):
    page = visit.open("photos")
    page.get_by_role("link", name="Sentences", exact=True).click()
    page.get_by_role("button", name="Pick one").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    page.go_back()
    expect(page.get_by_role("heading", name="Find photos")).to_be_visible()
    expect(page.get_by_role("dialog")).to_have_count(0)


@pytest.mark.parametrize(("view", "name"), [("photos", "run"), ("compare", "other")])
def test_a_run_that_is_not_served_is_named_and_others_are_offered(visit, view, name):
    page = visit.page
    page.goto(f"{visit.server}/#/{view}?{name}=gone&text=a+red+bird")
    expect(page.get_by_role("heading", level=1)).to_have_text("No run is called gone")
    expect(page.locator(".card")).to_have_count(0)
    page.locator("main").get_by_role("link", name="scenes · BFAN").click()
    expect(page.locator(".card a").first).to_be_visible()
    expect(page.get_by_label("Sentence")).to_have_value("a red bird")


def test_no_upload_is_offered_where_none_can_be_read(visit):
    change_status(visit.page, lambda status: status["runs"][BFAN].update(reads_pictures=False))
    page = visit.open("attention")
    expect(page.get_by_role("link", name="Upload one")).to_have_count(0)
    page = visit.open("sentences")
    expect(page.locator("#picture")).to_have_count(0)
    expect(page.locator(".chooser")).to_contain_text("This run cannot read pictures of your own")
    expect(page.locator("main")).not_to_contain_text(re.compile("upload|drop|paste", re.IGNORECASE))


def test_a_busy_server_is_asked_once_more(visit):
    visit.expected.add(429)
    asked = []

    def answer(route: sync_api.Route) -> None:
        asked.append(route.request.url)
        if len(asked) > 1:
            return route.continue_()
        body = {"error": "Too many at once."}
        return route.fulfill(status=429, headers={"Retry-After": "1"}, json=body)

    visit.page.route(SEARCHES, answer)
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
