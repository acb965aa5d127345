"""FastAPI that computes features of a customer's payments in pandas, for a LogisticRegression."""

from __future__ import annotations

import numpy as np
import pandas as pd
from fastapi import FastAPI
from pydantic import BaseModel
from sklearn.linear_model import LogisticRegression

KINDS = ["card", "cash", "transfer"]
SHOPS = pd.DataFrame({"shop": range(50), "risk": np.linspace(0, 1, 50)})
rng = np.random.default_rng(0)
model = LogisticRegression().fit(rng.normal(size=(500, 7)), rng.integers(0, 3, 500))
app = FastAPI()


class Payment(BaseModel):
    """One payment."""

    shop: int
    kind: str
    amount: float
    at: str


class Payments(BaseModel):
    """The payments of a customer."""

    payments: list[Payment]


def features(payments: list[Payment]) -> pd.DataFrame:
    """Return one row."""
    frame = pd.DataFrame([payment.model_dump() for payment in payments])
    frame["at"] = pd.to_datetime(frame["at"])
    frame["hour"] = frame["at"].dt.hour
    frame["log"] = np.log1p(frame["amount"])
    frame["kind"] = frame["kind"].str.lower()
    frame = frame.merge(SHOPS, on="shop", how="left").sort_values("at")
    kinds = frame["kind"].value_counts(normalize=True).reindex(KINDS, fill_value=0)
    largest = frame.groupby("shop")["amount"].sum().max()
    row = frame[["hour", "log", "risk"]].mean().to_dict() | {"largest": largest, **kinds.to_dict()}
    return pd.DataFrame([row]).astype(float)


@app.post("/predict")
def predict(item: Payments) -> dict[str, int]:
    """Classify a customer."""
    return {"label": int(model.predict(features(item.payments).to_numpy())[0])}
