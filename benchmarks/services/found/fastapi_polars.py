"""FastAPI that computes features of a customer's payments in polars, for a LogisticRegression."""

from __future__ import annotations

import numpy as np
import polars as pl
from fastapi import FastAPI
from pydantic import BaseModel
from sklearn.linear_model import LogisticRegression

KINDS = ["card", "cash", "transfer"]
SHOPS = pl.DataFrame({"shop": range(50), "risk": np.linspace(0, 1, 50)})
rng = np.random.default_rng(0)
model = LogisticRegression().fit(rng.normal(size=(500, 5)), rng.integers(0, 3, 500))
app = FastAPI()


class Payments(BaseModel):
    """The payments of a customer."""

    payments: list[dict[str, str | float]]


def features(payments: list[dict[str, str | float]]) -> pl.DataFrame:
    """Return one row."""
    frame = pl.DataFrame(payments).with_columns(
        pl.col("at").str.to_datetime(),
        pl.col("shop").cast(pl.Int64),
        pl.col("amount").log1p().alias("log"),
        pl.col("kind").str.to_lowercase(),
    )
    frame = frame.join(SHOPS, on="shop", how="left").sort("at")
    largest = frame.group_by("shop").agg(pl.col("amount").sum())["amount"].max()
    return frame.select(
        pl.col("at").dt.hour().mean().alias("hour"),
        pl.col("log", "risk").mean(),
        (pl.col("kind") == "card").mean().alias("card"),
        pl.lit(largest).alias("largest"),
    )


@app.post("/predict")
def predict(item: Payments) -> dict[str, int]:
    """Classify a customer."""
    return {"label": int(model.predict(features(item.payments).to_numpy())[0])}
