"""A pytest plugin: each test is a request, so that what it does with a client is part of one."""

from __future__ import annotations

import pytest

import stagelens


def pytest_itemcollected(item: pytest.Item) -> None:
    """Open a request around the test."""
    if isinstance(item, pytest.Function):
        item.obj = stagelens.request("test")(item.obj)
