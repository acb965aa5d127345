"""ONNX Runtime: times `forward`, `load`, and copies between host and device (`h2d`, `d2h`).

- To avoid `load` in a request, run each session once before the first request.
- The model name is the file name without its suffix. For a model that your code passes as bytes, Stagelens uses the name of the graph.
- Stagelens reads only the shapes of inputs and outputs, not their values.
"""
# On a CPU (magika, the models of rapidocr) the very first run takes 1.2 to 1.8 times as long as a later one, the first of a
# new shape 1.05 times, like known shapes. CUDA selects convolutions again for a new shape: 634 ms against 2 ms
# (https://github.com/PaddlePaddle/PaddleX/pull/5057).

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ...core.stages import LOAD_FIRST_RUN, LOAD_READ
from .. import scripts
from ..instrumentor import Instrumentor, Target, log_failure, timed
from ..loads import loads, shapes_of
from ..records import OPEN, START, STATE, Marks, clock, current, has_capacity
from . import onnxruntime_session as copies
from .onnxruntime_session import NOTHING, KnownSession, known_of, path_name
from .onnxruntime_session import model_name as model_name  # noqa: PLC0414 - other libraries name their models the same way

_SESSION = "onnxruntime:InferenceSession.__mro__"


class OnnxRuntimeInstrumentor(Instrumentor):
    library = "onnxruntime"
    title = "ONNX Runtime"
    stages = {
        "forward": "calls of `run`, `run_async` (until its callback), `run_with_iobinding`, `run_with_ort_values`, "
        "`run_with_ortvaluevector` and `IOBinding.synchronize_outputs`",
        "load": "the creation of an `InferenceSession`, and its first run; on an accelerator, also the first "
        "run with each input shape, for up to 32 shapes per session",
        "h2d": "calls of `OrtValue.ortvalue_from_numpy` and `update_inplace`; `bind_cpu_input`, `bind_input`, "
        "`bind_ortvalue_input` and `synchronize_inputs` of an `IOBinding`",
        "d2h": "calls of `OrtValue.numpy` and `update_inplace`; `IOBinding.copy_outputs_to_cpu`",
    }
    facts = ("model", "device", "provider", "batch")
    not_timed = (
        "copies to and from a device inside `run`. These copies count as `forward`. With an `IOBinding`, Stagelens times the copies separately.",
        "`copy_tensors` and DLPack",
        "onnxruntime-genai, which creates no `InferenceSession`",
    )
    tested = {"onnxruntime": "1.31.1", "magika": "1.0.3", "rapidocr-onnxruntime": "1.4.4", "silero-vad": "6.2.3"}

    def targets(self) -> Iterable[Target]:
        return (
            ("onnxruntime:InferenceSession", _creating, "__init__"),
            # The methods live in a base class that training and inference sessions share.
            (_SESSION, _run, "run"),
            (_SESSION, _run_with_ort_values, "run_with_ort_values"),
            (_SESSION, _run_with_iobinding, "run_with_iobinding"),
            (_SESSION, _run_with_ortvaluevector, "run_with_ortvaluevector"),
            (_SESSION, _run_async, "run_async"),
            ("onnxruntime:OrtValue", copies.ortvalue_from_numpy, "ortvalue_from_numpy"),
            ("onnxruntime:OrtValue", copies.copying(copies.update_inplace), "update_inplace"),
            ("onnxruntime:OrtValue", copies.copying(copies.numpy), "numpy"),
            ("onnxruntime:IOBinding", copies.creating_binding, "__init__"),
            ("onnxruntime:IOBinding", copies.bind_cpu_input, "bind_cpu_input"),
            ("onnxruntime:IOBinding", copies.bind_input, "bind_input"),
            ("onnxruntime:IOBinding", copies.bind_ortvalue_input, "bind_ortvalue_input"),
            ("onnxruntime:IOBinding", copies.copying(copies.synchronize_inputs), "synchronize_inputs"),
            ("onnxruntime:IOBinding", copies.copying(copies.synchronize_outputs), "synchronize_outputs"),
            ("onnxruntime:IOBinding", copies.copying(copies.copy_outputs_to_cpu), "copy_outputs_to_cpu"),
        )


def _creating(original: Any) -> Any:
    inner = timed("load")(original)

    def __init__(self: Any, *args: Any, **options: Any) -> None:  # noqa: N807 - shown in tracebacks
        loading = loads.begin(reading=True)
        try:
            inner(self, *args, **options)
        finally:
            loads.end(loading, LOAD_READ.key, path_name(args[0] if args else options.get("path_or_bytes")))

    return __init__


# Each function spells out its parameters: `*args, **options` would cost twice as much at every call.
def _run(original: Any) -> Any:
    def run(self: Any, output_names: Any, input_feed: Any, run_options: Any = None) -> Any:
        marks = current.get()
        known_session = known_of(self)
        if not known_session.warm or run_options is not None or scripts.on:
            return _time(
                marks, known_session, input_feed, run_options, original, self, output_names, input_feed, run_options
            )
        if marks is None or marks[STATE] != OPEN:
            return original(self, output_names, input_feed)
        # As in `_time`, whose call would cost most runs 2 µs.
        started = clock()
        try:
            results = original(self, output_names, input_feed)
        except BaseException:
            _mark(marks, "forward", started, known_session, NOTHING)
            raise
        _mark(marks, "forward", started, known_session, input_feed)
        return results

    return run


def _run_with_ort_values(original: Any) -> Any:
    def run_with_ort_values(self: Any, output_names: Any, input_dict_ort_values: Any, run_options: Any = None) -> Any:
        marks = current.get()
        known_session = known_of(self)
        feed = input_dict_ort_values
        if marks is None and known_session.warm and not scripts.on:
            return original(self, output_names, feed, run_options)
        return _time(marks, known_session, feed, run_options, original, self, output_names, feed, run_options)

    return run_with_ort_values


def _run_with_iobinding(original: Any) -> Any:
    def run_with_iobinding(self: Any, iobinding: Any, run_options: Any = None) -> Any:
        marks = current.get()
        known_session = known_of(self)
        if marks is None and known_session.warm and not scripts.on:
            return original(self, iobinding, run_options)
        feed = getattr(iobinding, copies.INPUTS, NOTHING)
        return _time(marks, known_session, feed, run_options, original, self, iobinding, run_options)

    return run_with_iobinding


def _run_with_ortvaluevector(original: Any) -> Any:
    def run_with_ortvaluevector(  # noqa: PLR0917 - ONNX Runtime's signature
        self: Any, run_options: Any, feed_names: Any, feeds: Any, fetch_names: Any, fetches: Any, fetch_devices: Any
    ) -> Any:
        marks = current.get()
        known_session = known_of(self)
        rest = feed_names, feeds, fetch_names, fetches, fetch_devices
        if marks is None and known_session.warm and not scripts.on:
            return original(self, run_options, *rest)
        # Users of this method want to save the microseconds that reading the vector would take.
        return _time(marks, known_session, NOTHING, run_options, original, self, run_options, *rest)

    return run_with_ortvaluevector


def _time(
    marks: Marks | None, known_session: KnownSession, feed: Any, run_options: Any, original: Any, *args: Any
) -> Any:
    scope = scripts.begin() if marks is None and scripts.on else None
    if scope is not None:
        model = known_session.facts[1] if known_session.facts else "onnxruntime"
        return scripts.call(scope, model, _time, current.get(), known_session, feed, run_options, original, *args)
    unseen = None if known_session.warm else known_session.unseen(feed)
    stage = "forward" if unseen is None and run_options is None else known_session.stage(unseen, run_options)
    if marks is not None and marks[STATE] != OPEN:
        # A task that outlives its request: its model runs do not count for the request.
        marks = None
    started = clock()
    try:
        results = original(*args)
    except BaseException:
        # A failed run does not count as warm-up, and its inputs may be invalid.
        _mark(marks, stage, started, known_session, NOTHING)
        raise
    _mark(marks, stage, started, known_session, feed)
    if unseen is not None:
        _warmed_up(known_session, unseen, feed, started)
    return results


def _warmed_up(known_session: KnownSession, unseen: tuple[Any, ...], feed: Mapping[str, Any], started: int) -> None:
    known_session.learn(unseen)
    model = known_session.facts[1] if known_session.facts else ""
    loads.note(LOAD_FIRST_RUN.key, model, shapes_of([*feed.values()]), started, clock())


def _run_async(original: Any) -> Any:
    def run_async(  # noqa: PLR0917 - ONNX Runtime's signature
        self: Any, output_names: Any, input_feed: Any, callback: Any, user_data: Any, run_options: Any = None
    ) -> Any:
        marks = current.get()
        known_session = known_of(self)
        if callable(callback) and not (marks is None and known_session.warm):
            callback = _done(marks, known_session, input_feed, run_options, callback)
        return original(self, output_names, input_feed, callback, user_data, run_options)

    return run_async


def _done(
    marks: Marks | None,
    known_session: KnownSession,
    feed: Any,
    run_options: Any,
    callback: Callable[[Any, Any, Any], Any],
) -> Callable[[Any, Any, Any], None]:
    """Return *callback* wrapped for a thread of ONNX Runtime, which does not have the context of the request."""
    unseen = known_session.unseen(feed)
    stage = known_session.stage(unseen, run_options)
    started = clock()

    def done(results: Any, user_data: Any, error: Any) -> None:
        _mark(marks, stage, started, known_session, NOTHING if error else feed)
        if unseen is not None and not error:
            _warmed_up(known_session, unseen, feed, started)
        token = current.set(marks)
        try:
            callback(results, user_data, error)
        finally:
            current.reset(token)
            del token

    return done


# Request, session and batch size of the last recorded facts, which are recorded once even for a thousand runs. A request
# is identified by the object of its start time.
_last_recorded: list[tuple[Any, KnownSession | None, int]] = [(None, None, 0)]


def _mark(marks: Marks | None, stage: str, started: int, known_session: KnownSession, feed: Mapping[str, Any]) -> None:
    if marks is None or not has_capacity(marks):
        return
    marks.extend((stage, started, clock()))
    try:
        batch = known_session.batch(feed)
        request, session, size = _last_recorded[0]
        if request is not marks[START] or session is not known_session or size != batch:
            _last_recorded[0] = marks[START], known_session, batch
            marks.extend(known_session.facts)
            if batch:
                marks.extend(("@batch", batch, 0))
    except Exception:
        log_failure("describing a run of onnxruntime")
