"""OpenCV: times the functions of `cv2` that decode, convert, resize, filter and encode images.

- A call below 20 µs is not recorded.
- Stagelens does not read pixels or names of files.
"""

from __future__ import annotations

from types import MappingProxyType, ModuleType

from ..instrumentor import CallsInstrumentor

_FUNCTIONS = (
    "imdecode imread imreadmulti imencode imwrite resize cvtColor warpAffine warpPerspective remap rotate flip copyMakeBorder "
    "blur GaussianBlur medianBlur bilateralFilter filter2D Canny threshold adaptiveThreshold equalizeHist normalize merge split "
    "morphologyEx erode dilate findContours fastNlMeansDenoising fastNlMeansDenoisingColored"
)


class OpenCvInstrumentor(CallsInstrumentor):
    """Instrumentor of the functions of `cv2`."""

    library = "cv2"
    title = "OpenCV"
    stages = MappingProxyType(
        {
            "preprocess": "`imdecode`, `imread`, `imencode`, `resize`, `cvtColor`, warps, filters, contours and similar functions",
            "postprocess": "`dnn.NMSBoxes`",
        }
    )
    not_timed = ("methods of C classes, such as `VideoCapture.read`, and networks of `cv2.dnn`",)
    tested = MappingProxyType({"opencv-python": "5.0.0.93"})
    calls = MappingProxyType({"cv2": {"preprocess": _FUNCTIONS.split(), "postprocess": ("dnn.NMSBoxes",)}})

    def _patch(self, module: ModuleType) -> None:
        # The package imports a C module of the same name, and copies its functions afterwards.
        if hasattr(module, "__path__"):
            super()._patch(module)
