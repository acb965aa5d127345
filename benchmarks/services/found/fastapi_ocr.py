"""FastAPI that reads the line of text in an uploaded picture: Pillow, OpenCV and a model of ONNX Runtime in RapidOCR."""

from __future__ import annotations

import io

import numpy as np
from fastapi import FastAPI, UploadFile
from PIL import Image
from rapidocr_onnxruntime import RapidOCR

engine = RapidOCR(intra_op_num_threads=1)
app = FastAPI()


@app.post("/read")
def read(file: UploadFile) -> dict[str, list[str]]:
    """Return the lines of text in a picture."""
    picture = Image.open(io.BytesIO(file.file.read())).convert("RGB")
    lines, _ = engine(np.asarray(picture), use_det=False, use_cls=False)
    return {"lines": [text for text, _ in lines or ()]}
