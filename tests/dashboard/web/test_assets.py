"""Files of the pages: their URLs, their caching, and their size."""

from __future__ import annotations

import gzip
import re

import pytest
import zstandard
from flask.testing import FlaskClient

from stagelens.dashboard.web import assets

FOREVER = "private, max-age=31536000, immutable"
# Bytes of all files of a page with charts, compressed with gzip. The page itself has 10 to 35 kB.
MAX_BYTES = 425_000


def files_of(client: FlaskClient) -> list[str]:
    document = client.get("/").text
    found = set(re.findall(r'"(/assets/[^"]+)"', document))
    style = next(url for url in found if url.endswith(".css"))
    fonts = re.findall(r"url\((inter[^)]+)\)", client.get(style).text)
    return sorted(found | {assets.PREFIX + name for name in fonts})


def test_every_file_is_cached_by_its_content(client: FlaskClient) -> None:
    urls = files_of(client)

    assert len(urls) == 6
    assert {client.get(url).headers["Cache-Control"] for url in urls} == {FOREVER}


def test_a_page_of_another_version_gets_the_current_file(client: FlaskClient) -> None:
    old = re.sub(r"\.[0-9a-f]{12}\.", ".000000000000.", assets.url("plotly.min.js"))
    response = client.get(old)

    assert response.data == client.get(assets.url("plotly.min.js")).data
    assert response.headers["Cache-Control"] == "no-cache"


@pytest.mark.parametrize("name", ["nothing.js", "report.js", "style.css", "../config.py", "licenses", "shell.js", ""])
def test_only_files_of_pages_are_served(client: FlaskClient, name: str) -> None:
    assert client.get(f"/assets/{name}").status_code == 404


@pytest.mark.parametrize(("encoding", "decoded"), [("gzip", gzip.decompress), ("zstd", zstandard.decompress)])
def test_files_are_compressed(client: FlaskClient, encoding: str, decoded: object) -> None:
    assert callable(decoded)
    for name in ("app.js", "app.css", "boot.js", "plotly.min.js", "icon.svg"):
        response = client.get(assets.url(name), headers={"Accept-Encoding": encoding})
        assert response.headers["Content-Encoding"] == encoding
        assert decoded(response.data) == client.get(assets.url(name)).data


def test_the_files_of_a_page_are_small(client: FlaskClient) -> None:
    sizes = {url: len(client.get(url, headers={"Accept-Encoding": "gzip"}).data) for url in files_of(client)}

    assert sum(sizes.values()) < MAX_BYTES, sizes


def test_plotly_evaluates_no_text_as_code(client: FlaskClient) -> None:
    text = client.get(assets.url("plotly.min.js")).text

    assert re.search(r"\beval\(|new Function\(", text) is None
