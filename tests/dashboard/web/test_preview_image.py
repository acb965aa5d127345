"""Image of a view: content, long names and other characters."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType

import pytest
from PIL import Image

from stagelens.dashboard.source import Source
from stagelens.dashboard.view import parse
from stagelens.dashboard.web.preview_image import preview_of, preview_png
from stagelens.dashboard.web.routing import context_of
from stagelens.store import Store
from tests.dashboard.served_versions import NOW, Served, write

MANY = {
    "forward": 100.0,
    "prefill": 30,
    "decode": 20,
    "h2d": 5,
    "d2h": 3,
    "preprocess": 40,
    "tokenize": 4,
    "network": 8,
    "postprocess": 9,
    "serialize": 2,
    "dependency": 55,
    "queue": 120,
    "load": 1,
    "framework": 3,
    "handler": 6,
    "a_stage_of_ours_with_a_name_that_is_longer_than_the_image_is_wide": 12,
    "overhead": 7,
}
STRANGE = "Größe-模型-of-a-service-whose-name-is-longer-than-the-image-is-wide"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, traffic: ModuleType) -> Iterator[Source]:
    """A service with few stages, and one with many."""
    opened = Store.open(f"sqlite:///{tmp_path_factory.mktemp('images') / 'x.db'}", clock=NOW.timestamp)
    yield write(opened, traffic, Served("checkout", "1", 30), Served(STRANGE, "1", 30, stages=MANY))
    opened.close()


@pytest.mark.parametrize("service", ["checkout", STRANGE, "nobody"])
def test_equal_data_give_equal_images(source: Source, service: str) -> None:
    found = preview_of(context_of(parse(f"/s/{service}", "", NOW), source))

    assert found is not None
    assert preview_png(found) == preview_png(found)
    assert Image.open(io.BytesIO(preview_png(found))).size == (1200, 630)
    assert len(preview_png(found)) < 60_000
    assert (found.headline != "") == (service != "nobody")


def test_every_value_changes_the_image(source: Source) -> None:
    found = preview_of(context_of(parse("/s/checkout", "", NOW), source))
    assert found is not None
    p50, p99 = found.bars
    others = [
        replace(found, title="search"),
        replace(found, window="21 Nov"),
        replace(found, state=("SLO burning", "bad")),
        replace(found, facts=found.facts[1:]),
        replace(found, bars=(p50, replace(p99, stages={**p99.stages, "queue": p99.seconds}))),
    ]

    assert len({preview_png(each) for each in (found, *others)}) == len(others) + 1
