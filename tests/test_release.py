"""What is released: one version everywhere, every extra tried, the Pythons that CI runs."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

import aoq
from scripts.try_wheel import EXTRAS, UNTRIED, declared_extras

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
JOBS = yaml.safe_load((ROOT / ".github/workflows/checks.yml").read_text("utf-8"))["jobs"]


def test_every_extra_is_tried_with_the_wheel_or_has_a_reason_not_to():
    assert EXTRAS.keys() | UNTRIED.keys() == declared_extras()


def test_every_extra_is_in_the_table_of_the_installation():
    page = (ROOT / "docs/install.md").read_text("utf-8")
    rows = " ".join(re.findall(r"^\| (`.*?) \|", page, re.MULTILINE))
    assert all(f"`{extra}`" in rows for extra in declared_extras())


def test_the_pythons_of_the_classifiers_are_those_of_the_workflow():
    prefix = "Programming Language :: Python :: 3."
    stated = [name.rpartition(" ")[2] for name in PROJECT["classifiers"] if prefix in name]
    assert stated
    assert all(job["strategy"]["matrix"]["python"] == stated for job in JOBS.values())


def test_the_citation_has_the_version_of_the_package():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["version"] == aoq.__version__ == "0.1.0"
