"""Libraries around the models that the tests have installed: the result is unchanged, and a call is one stage."""

from __future__ import annotations

import asyncio
import io
import json
import pickle
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import psycopg
import pytest
from PIL import Image
from pydantic import BaseModel, TypeAdapter
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError, ProgrammingError
from sqlalchemy.ext.asyncio import create_async_engine
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from stagelens.instrumentors import instrumentor
from stagelens.instrumentors.bootstrap import LIBRARIES
from tests.instrumentors.libraries.drivers import instrumenting

INSTALLED = ("json", "numpy", "PIL", "cv2", "pydantic", "psycopg", "sqlalchemy", "tokenizers")


@pytest.fixture(autouse=True)
def instrumented_libraries() -> Generator[None]:
    with instrumenting(*(library.load()() for library in LIBRARIES if library.trigger in INSTALLED)):
        yield


class Item(BaseModel):
    name: str


class Sized(Item):
    size: int


def array() -> bytes:
    file = io.BytesIO()
    np.save(file, np.arange(3))
    return file.getvalue()


ARRAY = array()
WORDS = Tokenizer(WordLevel({"a": 0, "b": 1}))
WORDS.pre_tokenizer = Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
CALLS: dict[str, tuple[str, Callable[[], Any], Any]] = {
    "json": ("serialize", lambda: json.load(io.StringIO('{"a": [1]}')), {"a": [1]}),
    "json option": ("serialize", lambda: json.dumps({"b": 1, "a": 2}, sort_keys=True), '{"a": 2, "b": 1}'),
    "pydantic": ("serialize", lambda: Sized.model_validate({"name": "a", "size": "1"}), Sized(name="a", size=1)),
    "pydantic dump": ("serialize", lambda: Sized(name="a", size=1).model_dump(exclude={"name"}), {"size": 1}),
    "type adapter": ("serialize", lambda: TypeAdapter(list[int]).validate_json("[1, 2]"), [1, 2]),
    "numpy": ("serialize", lambda: np.load(io.BytesIO(ARRAY)).tolist(), [0, 1, 2]),
    "pillow": ("preprocess", lambda: Image.new("RGB", (4, 4)).resize((2, 1)).size, (2, 1)),
    "tokenizers": ("tokenize", lambda: [word.ids for word in WORDS.encode_batch(["a b", "b"])], [[0, 1], [1]]),
    "tokenizers decode": ("postprocess", lambda: pickle.loads(pickle.dumps(WORDS)).decode(ids=[1, 0]), "b a"),  # noqa: S301
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_one_stage(stages: Callable[[], list[str]], name: str) -> None:
    stage, call, expected = CALLS[name]

    assert call() == expected
    assert stages() == [stage]


@pytest.mark.stacks
def test_opencv_is_preprocess(stages: Callable[[], list[str]]) -> None:
    import cv2  # noqa: PLC0415 - not installed for the other tests

    assert cv2.resize(np.zeros((4, 4, 3)), dsize=(2, 1)).shape == (1, 2, 3)
    with pytest.raises(cv2.error):
        cv2.resize(np.zeros((0, 0)), (2, 2))

    assert stages() == ["preprocess", "preprocess"]


def test_a_short_call_is_not_recorded(stages: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instrumentor, "MIN_CALL_NS", 10**15)
    json.loads("{}")

    assert stages() == []


@pytest.mark.stacks
def test_psycopg_is_a_dependency(stages: Callable[[], list[str]], postgresql_server: Any) -> None:
    with psycopg.connect(postgresql_server.url("postgres")) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)

    # The connection commits at its end.
    assert stages() == ["dependency"] * 4


@pytest.mark.stacks
def test_a_failed_statement_is_one_failed_call(failed_calls: Callable[[], list[str]], postgresql_server: Any) -> None:
    url = postgresql_server.url("postgres")
    with psycopg.connect(url) as connection, pytest.raises(psycopg.errors.UndefinedTable):
        connection.execute("SELECT * FROM missing")
    with (
        psycopg.connect(url, options="-c statement_timeout=1") as connection,
        pytest.raises(psycopg.errors.QueryCanceled),
    ):
        connection.execute("SELECT pg_sleep(60)")
    engine = create_engine("postgresql+psycopg://" + url.partition("://")[2])
    with engine.connect() as connection, pytest.raises(ProgrammingError):
        connection.execute(text("SELECT * FROM missing"))
    engine.dispose()
    engine = create_engine("sqlite://")
    with engine.connect() as connection, pytest.raises(OperationalError):
        connection.execute(text("SELECT * FROM missing"))
    engine.dispose()

    assert failed_calls() == ["psycopg:error", "psycopg:cancelled", "psycopg:error", "sqlalchemy:error"]


@pytest.mark.stacks
def test_an_async_engine_is_a_dependency(stages: Callable[[], list[str]], postgresql_server: Any) -> None:
    url = "postgresql+psycopg://" + postgresql_server.url("postgres").partition("://")[2]

    async def query() -> Any:
        engine = create_async_engine(url)
        async with engine.connect() as connection:
            before = len(stages())
            value = (await connection.execute(text("SELECT 1"))).scalar()
            names = stages()[before:]
        await engine.dispose()
        return value, set(names)

    assert asyncio.run(query()) == (1, {"dependency"})


def test_an_engine_is_a_dependency(stages: Callable[[], list[str]]) -> None:
    engine = create_engine("sqlite://")
    with engine.connect() as connection:
        assert connection.execute(text("SELECT 1")).scalar() == 1
    engine.dispose()

    assert set(stages()) == {"dependency"}
