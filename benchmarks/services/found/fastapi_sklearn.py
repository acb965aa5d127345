"""FastAPI around a pipeline of scikit-learn that gets a data frame."""

from __future__ import annotations

import numpy as np
import pandas as pd
from fastapi import FastAPI
from pydantic import BaseModel
from sklearn.ensemble import RandomForestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

COLUMNS = [f"column{number}" for number in range(64)]
rng = np.random.default_rng(0)
model = make_pipeline(StandardScaler(), RandomForestClassifier(50, max_depth=8, random_state=0))
model.fit(pd.DataFrame(rng.normal(size=(500, 64)), columns=COLUMNS), rng.integers(0, 3, 500))
app = FastAPI()


class Item(BaseModel):
    """What is to be classified."""

    features: list[float]


@app.post("/predict")
def predict(item: Item) -> dict[str, int]:
    """Classify one row."""
    frame = pd.DataFrame([item.features], columns=COLUMNS)
    return {"label": int(model.predict(frame)[0])}
