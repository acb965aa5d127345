"""A model in the three steps of KServe."""

from __future__ import annotations

import time
from typing import Any

from kserve import Model


class Sums(Model):
    """Adds up what it is given."""

    def __init__(self) -> None:
        super().__init__("sums")
        self.ready = True

    def preprocess(self, payload: Any, headers: Any = None) -> Any:
        time.sleep(0.001)
        return payload["instances"]

    def predict(self, payload: Any, headers: Any = None, response_headers: Any = None) -> Any:
        time.sleep(0.005)
        return [sum(each) for each in payload]

    def postprocess(self, result: Any, headers: Any = None, response_headers: Any = None) -> Any:
        return {"predictions": result}
