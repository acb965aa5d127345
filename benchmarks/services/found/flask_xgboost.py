"""Flask around an XGBoost classifier."""

from __future__ import annotations

from typing import Any

import numpy as np
import xgboost
from flask import Flask, request

rng = np.random.default_rng(0)
model = xgboost.XGBClassifier(n_estimators=400, max_depth=6, n_jobs=1)
model.fit(rng.normal(size=(2000, 64)), rng.integers(0, 3, 2000))
app = Flask(__name__)


@app.post("/predict")
def predict() -> dict[str, Any]:
    """Classify the rows of one request."""
    rows = np.asarray(request.get_json()["rows"])
    return {"labels": model.predict(rows).tolist()}
