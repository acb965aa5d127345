"""Inference runtimes written in C++, with classes that load a model and methods that run it: CTranslate2 and OpenVINO.

The docstring of a class is the text of its page in the documentation.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary

from ..instrumentor import Instrumentor, Target, timed, timed_call
from .model_common import created_name, creation, model_call, rows_of_inputs

# Methods by class of CTranslate2, and classes of results of its asynchronous calls.
_CALLS = {
    "Translator": "translate_batch score_batch translate_file score_file",
    "Generator": "generate_batch score_batch forward_batch",
    "Encoder": "forward_batch",
    "Whisper": "encode generate align detect_language",
    "Wav2Vec2 Wav2Vec2Bert": "encode",
}
_RESULTS = "AsyncTranslationResult AsyncGenerationResult AsyncScoringResult WhisperGenerationResultAsync"
# Classes of OpenVINO GenAI with a `generate`.
_PIPELINES = (
    "LLMPipeline VLMPipeline WhisperPipeline Text2ImagePipeline Image2ImagePipeline InpaintingPipeline "
    "Text2SpeechPipeline Text2VideoPipeline"
)
# Names by compiled model, request and queue. Reading one releases the GIL, and a request would wait for it again.
_names: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


class CTranslate2Instrumentor(Instrumentor):
    """CTranslate2: times translation, generation, encoding and Whisper as `forward`, and the loading of models.

    - The model name is the name of the folder.
    - faster-whisper uses CTranslate2, so Stagelens times it too.
    """

    library = "ctranslate2"
    title = "CTranslate2"
    stages = {
        "forward": "calls of `translate_batch`, `generate_batch`, `score_batch`, `forward_batch`, `translate_file` and "
        "`score_file`; of `encode`, `generate`, `align` and `detect_language` of Whisper and Wav2Vec2; with "
        "`asynchronous=True`, the wait in `result`; from 20 µs",
        "load": "the creation of a `Translator`, `Generator`, `Encoder` or model of speech",
    }
    facts = ("model", "batch")
    not_timed = (
        "`generate_tokens`, which runs in a thread of its own",
        "calls with `asynchronous=True` in a plain script",
    )
    tested = {"ctranslate2": "4.8.5"}

    def targets(self) -> Iterable[Target]:
        for kind, names in _CALLS.items():
            yield f"ctranslate2._ext:{kind}", creation, "__init__"
            yield f"ctranslate2._ext:{kind}", _ctranslate2_call, names
        yield f"ctranslate2._ext:{_RESULTS}", timed_call("forward"), "result"


def _ctranslate2_call(original: Any) -> Any:
    run = model_call(created_name)(original)

    def call(self: Any, *args: Any, **options: Any) -> Any:
        # An asynchronous call only starts the work.
        return (original if options.get("asynchronous") else run)(self, *args, **options)

    return call


class OpenVinoInstrumentor(Instrumentor):
    """OpenVINO: times inference as `forward`, and the compilation of models as `load`.

    - The model name is the name of the graph; for OpenVINO GenAI, the name of the folder or file.
    - Stagelens reads only the shape of the first input.
    """

    library = "openvino"
    title = "OpenVINO"
    stages = {
        "forward": "calls of a `CompiledModel`, its `infer_new_request` and `InferRequest.infer`; of asynchronous inference, "
        "the wait in `InferRequest.wait`, `wait_for` and `AsyncInferQueue.wait_all`; calls of `generate` of a pipeline of OpenVINO GenAI; from 20 µs",
        "load": "calls of `Core.compile_model`, `read_model` and `import_model`; the creation of a pipeline",
    }
    facts = ("model", "batch")
    not_timed = (
        "asynchronous inference whose result a callback receives, and asynchronous inference in a plain script",
    )
    tested = {"openvino": "2026.4.1", "openvino-genai": "2026.4.1.0"}

    def targets(self) -> Iterable[Target]:
        return (
            ("openvino._ov_api:CompiledModel", model_call(_name, rows_of_inputs), "__call__ infer_new_request"),
            ("openvino._ov_api:InferRequest", model_call(_name, rows_of_inputs), "infer"),
            # The base class in C++ has the methods that wait.
            (
                "openvino._ov_api:InferRequest.__mro__ AsyncInferQueue.__mro__",
                model_call(_name, is_request=False),
                "wait wait_for wait_all",
            ),
            ("openvino._ov_api:Core", timed("load"), "compile_model read_model import_model"),
            (f"openvino_genai.py_openvino_genai:{_PIPELINES}", creation, "__init__"),
            (f"openvino_genai.py_openvino_genai:{_PIPELINES}", model_call(created_name), "__call__ generate"),
        )


def _name(model: Any) -> str:
    name = _names.get(model)
    if name is None:
        request = model[0] if hasattr(model, "wait_all") else model
        compiled = request.get_compiled_model() if hasattr(request, "get_compiled_model") else request
        name = _names[model] = str(compiled.get_property("NETWORK_NAME"))
    return name
