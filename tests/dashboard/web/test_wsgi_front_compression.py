"""Compression of responses."""

from __future__ import annotations

import gzip

import pytest
from flask import Flask, Response

from stagelens.dashboard.web import wsgi_front


def test_a_file_is_compressed_once_for_all_its_urls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients can invent URLs of one file before authentication; caching each one would exhaust the memory."""
    server, packed = Flask("files"), list[int]()
    server.add_url_rule("/assets/<name>", view_func=lambda **_: Response("x" * 10_000, mimetype="text/css"))
    wsgi_front.compress_responses(server, ("/assets/",))
    compress = gzip.compress

    def counted(body: bytes, level: int, **options: int) -> bytes:
        packed.append(len(body))
        return compress(body, level, **options)

    monkeypatch.setattr(gzip, "compress", counted)
    client = server.test_client()
    responses = [
        client.get(f"/assets/style.v{number}.css?m={number}", headers={"Accept-Encoding": "gzip"})
        for number in range(5)
    ]

    assert [gzip.decompress(response.data) for response in responses] == [b"x" * 10_000] * 5
    assert packed == [10_000]
