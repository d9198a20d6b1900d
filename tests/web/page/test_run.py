"""What a run has mined, and what it came to."""

from __future__ import annotations

import re

import pytest
from playwright import sync_api
from playwright.sync_api import expect

from tests.web.page.visit import BFAN, VSRN, change_status, said, scores_of, to_three_digits


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


def test_another_anchor_that_cannot_be_had_is_said_to_fail(visit):
    visit.expected.add(500)
    page = visit.open("negatives", number=0)
    failed = {"error": "This cannot be answered."}
    page.route("**/entries?*", lambda route: route.fulfill(status=500, json=failed))
    page.get_by_role("button", name="Another").click()
    expect(page.get_by_role("alert")).to_contain_text(failed["error"])
    page.unroute_all()
    page.get_by_role("button", name="Try again").click()
    expect(page).not_to_have_url(re.compile(r"number=0\b"))


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


def test_a_run_without_mined_lists_says_why(visit):
    reason = "No negatives were mined with this run; `aoq mine` does it."
    lacking = {"has_negatives": False, "negatives_reason": reason}
    change_status(visit.page, lambda status: status["runs"][BFAN].update(lacking))
    page = visit.open("negatives")
    expect(page.locator(".state")).to_contain_text(said(reason))


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


@pytest.mark.parametrize(("data", "rows"), [("the same", 2), ("another", 1), (None, 1)])
def test_only_results_on_the_same_data_are_beside_each_other(visit, data, rows):
    def change(status: dict) -> None:
        status["runs"][VSRN]["test_data"] = data
        status["runs"][BFAN]["test_data"] = data and "the same"

    change_status(visit.page, change)
    page = visit.open("run")
    expect(page.locator(".wide-table").first.locator("tbody tr")).to_have_count(rows)


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


def test_a_run_with_a_teacher_says_how_much_is_found(uneven, proposing):
    client, _ = proposing
    teacher = client.get("/api/status").json()["runs"][1]["teacher"]
    page = uneven.open("run")
    expect(page.locator(".proposing")).to_contain_text("VSRN + AdapOffQuin proposes 3 for every")
    share = f"{100 * teacher['recall']['t2i']['r10']:.1f} % of the first ten photos"
    expect(page.locator(".proposing")).to_contain_text(share)
    page = uneven.open("photos", text="a red bird")
    expect(page.locator(".summary")).to_contain_text("proposed by VSRN + AdapOffQuin")
