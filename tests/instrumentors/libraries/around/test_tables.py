"""Operations of pandas are one stage each, with the same results, warnings and errors."""

from __future__ import annotations

import io
import json
import pickle
import warnings
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import pandas as pd
import pytest

from stagelens.instrumentors.api import stage
from stagelens.instrumentors.libraries.model_common import model_call
from stagelens.instrumentors.libraries.preprocessing import PandasInstrumentor, PolarsInstrumentor

FRAME = pd.DataFrame(
    {
        "user": np.arange(200) % 7,
        "amount": np.linspace(1, 9, 200),
        "kind": ["a", "b"] * 100,
        "at": pd.date_range("2024-01-01", periods=200, freq="h"),
    }
)
AMOUNT, USERS = FRAME["amount"], pd.DataFrame({"user": range(7), "age": range(20, 27)})
OPERATIONS: dict[str, Callable[[], Any]] = {
    "construction": lambda: pd.DataFrame([{"a": 1, "b": "x"}]),
    "column": lambda: FRAME["amount"],
    "mask": lambda: FRAME[np.arange(200) > 3],
    "loc": lambda: FRAME.loc[3:7, "amount"],
    "arithmetic": lambda: AMOUNT * 2,
    "reflected arithmetic": lambda: 2 / AMOUNT,
    "comparison": lambda: AMOUNT > 3,
    "ufunc": lambda: np.log1p(AMOUNT),
    "reduction": AMOUNT.mean,
    "reductions": FRAME.describe,
    "aggregation": lambda: FRAME.groupby("user"),
    "apply": lambda: FRAME.apply(lambda row: row["amount"] + 1, axis=1),
    "merge": lambda: FRAME.merge(USERS, on="user"),
    "concat": lambda: pd.concat([FRAME, FRAME]),
    "dummies": lambda: pd.get_dummies(FRAME, columns=["kind"]),
    "dates": lambda: pd.to_datetime(["2024-01-01"] * 9),
    "query": lambda: FRAME.query("amount > @AMOUNT.mean()"),
    "csv": lambda: pd.read_csv(io.StringIO("a,b\n1,2\n")),
    "array": FRAME.to_numpy,
    "values": lambda: FRAME.values,  # noqa: PD011 - timed, too
    "fill": lambda: FRAME.fillna(0),
}
WRITING: dict[str, Callable[[], Any]] = {
    "dict": lambda: FRAME.to_dict("records"),
    "json": AMOUNT.to_json,
    "list": AMOUNT.tolist,
    "csv": FRAME.to_csv,
}
# The accessor is an operation, too.
SEVERAL: dict[str, Callable[[], Any]] = {
    "text": FRAME["kind"].str.upper,
    "time": lambda: FRAME["at"].dt.hour,
    "groups": FRAME.groupby("user")["amount"].mean,
    "named groups": lambda: FRAME.groupby("user").agg(mean=("amount", "mean")),
    "window": lambda: AMOUNT.rolling(3).mean(),
    "resampled": lambda: FRAME.set_index("at")["amount"].resample("D").sum(),
}


@pytest.fixture(scope="module", autouse=True)
def pandas() -> Generator[None]:
    PandasInstrumentor().instrument()
    yield
    PandasInstrumentor().uninstrument()


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_is_one_stage(stages: Callable[[], list[str]], name: str) -> None:
    before = pickle.dumps(OPERATIONS[name]()) if name != "aggregation" else b""
    count = len(stages())
    result = OPERATIONS[name]()

    assert stages()[count:] == ["preprocess"]
    assert pickle.dumps(result) == before or name == "aggregation"


@pytest.mark.parametrize("name", WRITING)
def test_writing_is_a_serialization(stages: Callable[[], list[str]], name: str) -> None:
    WRITING[name]()

    assert stages() == ["serialize"]


@pytest.mark.parametrize("name", SEVERAL)
def test_each_step_of_an_expression_is_a_stage(stages: Callable[[], list[str]], name: str) -> None:
    SEVERAL[name]()

    assert set(stages()) == {"preprocess"}


def test_an_operation_inside_a_prediction_belongs_to_it(stages: Callable[[], list[str]]) -> None:
    class Model:
        def predict(self, row: Any) -> float:
            return float((row * 2).sum())

    Model.predict = model_call()(Model.predict)  # type: ignore[method-assign]
    Model().predict(AMOUNT)
    assert stages() == ["forward"]
    AMOUNT.head(2).map(lambda value: Model().predict(pd.Series([value])))
    assert set(stages()) == {"forward", "preprocess"}


@pytest.mark.usefixtures("stages")
def test_pandas_stays_what_it_is() -> None:
    merge, kind = pd.DataFrame.merge, pd.DataFrame.__getitem__
    PandasInstrumentor().uninstrument()
    assert (merge, kind) == (pd.DataFrame.merge, pd.DataFrame.__getitem__)
    PandasInstrumentor().instrument()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        FRAME.copy()["amount"][0] = 3.0
    with pytest.raises(KeyError) as failed:
        FRAME["missing"]

    assert [each.filename for each in warned] == [__file__]
    assert failed.value.args == ("missing",)
    assert json.loads(AMOUNT.head(1).to_json()) == {"0": 1.0}
    with stage("postprocess"):
        assert len(FRAME.tail(3)) == 3


@pytest.mark.stacks
@pytest.mark.usefixtures("around")
def test_polars(stages: Callable[[], list[str]]) -> None:
    """Eager and lazy operations; an expression alone is none."""
    pl = pytest.importorskip("polars")
    PolarsInstrumentor().instrument()
    try:
        frame = pl.DataFrame({"user": [1, 2, 1], "amount": [1.0, 2.0, 3.0]})
        expected = ["preprocess"]
        for operation in (
            lambda: frame.with_columns((pl.col("amount") + 1).log().alias("log")),
            lambda: frame.lazy().collect(),
            lambda: frame.join(frame, on="user"),
            lambda: pl.concat([frame, frame]),
            frame.to_numpy,
            lambda: frame.to_series(1) * 2,
        ):
            operation()
            expected.append("preprocess")
            assert stages() == expected
        frame.group_by("user").agg(pl.col("amount").mean())
        expected += ["preprocess", "preprocess"]
        assert frame.to_dicts()[0] == {"user": 1, "amount": 1.0}
        frame.write_csv()
        assert stages() == [*expected, "serialize", "serialize"]
    finally:
        PolarsInstrumentor().uninstrument()
