"""Functions of the tail on the service page."""

from __future__ import annotations

import pytest
from flask.testing import FlaskClient

from stagelens.analysis.profile import FunctionGrowth, ProfileBand
from stagelens.core.errors import ConfigError
from stagelens.dashboard.config import DashboardConfig
from stagelens.dashboard.pages.service_code import functions_card, source_address
from stagelens.dashboard.source import Source
from stagelens.dashboard.ui.page_export import as_html
from stagelens.store import Store
from tests.dashboard.rendering import check_views, client_of
from tests.dashboard.served_versions import NOW


def band(sampled: float, seconds: float, name: str = "resize") -> ProfileBand:
    stacks = {f"preprocess;serve:predict@serve.py:9;serve:{name}@serve.py:41": seconds}
    return ProfileBand(seconds, sampled, {"preprocess": seconds}, stacks)


def shown(median: ProfileBand, tail: ProfileBand) -> str:
    found = functions_card(median, tail, "at p99", "p99")
    return as_html(found) if found else ""


def test_the_slow_function_is_shown_with_its_option() -> None:
    page = shown(band(20, 0.01), band(20, 0.18))
    assert "Your code at p99" in page
    assert "serve.py:41" in page
    assert "--stage preprocess=serve:resize" in page
    assert "more3" in page


def test_few_samples_and_short_functions_are_named_and_no_samples_are_not() -> None:
    assert "sampled 4 of the requests at p99, and needs 5" in shown(band(0, 0.0), band(4.9, 0.18))
    assert shown(band(0, 0.0), band(0, 0.0)) == ""
    assert "No function takes 0.05 ms" in shown(band(20, 4e-5), band(20, 4e-5))


def test_without_a_median_no_change_is_claimed() -> None:
    page = shown(band(1, 0.01), band(20, 0.18))
    assert "resize" in page
    assert "fl more" not in page


def test_functions_link_to_their_line(filled: Store) -> None:
    address = "https://git.example/{service}/blob/{version}/{file}#L{line}"
    page = client_of(filled, source_url=address).get("/s/vision-api?v=2.0.0").text

    assert 'href="https://git.example/vision-api/blob/2.0.0/serve.py#L41"' in page
    assert "httptools_impl.py#L" not in page


@pytest.mark.parametrize(
    ("file", "version", "address"),
    [
        ("shop/a b?.py", "v1/x", "https://x.example/v1%2Fx/shop/a%20b%3F.py:7"),
        ("../secret.py", "1", None),
        ("/etc/passwd", "1", None),
        ("<frozen runpy>", "1", None),
        ("serve.py", "", None),
        ("", "1", None),
        ("x" * 120, "1", None),
    ],
)
def test_an_address_needs_a_known_file_inside_the_repository(file: str, version: str, address: str | None) -> None:
    grown = FunctionGrowth("queue", "resize", 1, 2, 1, module="serve", function="resize", file=file, line=7)
    assert source_address("https://x.example/{version}/{file}:{line}", grown, version=version) == address


@pytest.mark.parametrize(
    "url",
    ["javascript:alert({file})", "https://x.example/", "https://x.example/{file}/{nothing}", "https://x.example/{file", "{file}",
     "https:///{file}", "https://x.example/{file.real}", "https://x.example/{file!r}", "https://x.example/{}{file}"],
)  # fmt: skip
def test_an_invalid_source_url_is_named_at_startup(url: str) -> None:
    with pytest.raises(ConfigError, match=r"STAGELENS_SOURCE_URL.*\{file\}"):
        DashboardConfig.from_env({"STAGELENS_SOURCE_URL": url})


def test_names_are_escaped() -> None:
    assert "<script>" not in shown(band(20, 0.01), band(20, 0.18, "<script>" + "x" * 90))


def test_a_service_with_samples_and_a_selection_have_their_own_functions(source: Source, client: FlaskClient) -> None:
    end = int(NOW.timestamp())
    check_views("functions", source)
    asked = f"/api/v1/query/profile?service=vision-api&version=2.0.0&sel=0.15:10:{end - 600}:{end}"
    found = client.get(asked).get_json()

    assert found["percentile"] is None
    assert 0.15 < found["value_seconds"] < 10
    assert found["sampled_requests"] > 0
    assert found["rows"]
