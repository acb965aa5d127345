"""The few pieces of protobuf: OpenTelemetry's own classes read what is written, and anything at all may be read."""

from __future__ import annotations

from contextlib import suppress

import pytest
from google.rpc.status_pb2 import Status
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from stagelens.instrumentors.export.protobuf import (
    parse_fields,
    text_field,
)


def test_invalid_unicode_does_not_break_the_message() -> None:
    assert AnyValue.FromString(text_field(1, "a\ud800b")) == AnyValue(string_value="a?b")


@given(st.integers(0, 2**31 - 1), st.text())
def test_a_status_is_decoded(code: int, text: str) -> None:
    found = parse_fields(Status(code=code, message=text).SerializeToString())

    assert found == {**({1: code} if code else {}), **({2: text.encode()} if text else {})}


@given(st.binary())
def test_any_bytes_are_a_message_or_a_value_error(content: bytes) -> None:
    with suppress(ValueError):
        parse_fields(content)


@pytest.mark.parametrize("content", [b"\x0a", b"\x0a\x02a", b"\x09aaa", b"\x80" * 20, b"{}", b"<html>"])
def test_truncated_or_invalid_protobuf_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"not a protobuf message|varint"):
        parse_fields(content)
