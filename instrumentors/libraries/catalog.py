"""Libraries of which only calls are timed: the list of their functions and methods is all, or nearly all, that there is to say of each.

The docstring of a class is the text of its page in the documentation.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType, ModuleType
from typing import Any, Final

from ..instrumentor import CallsInstrumentor, Hook, LongCall, Probed, log_failure, timed, timed_call
from ..records import Marks, clock, has_capacity

_PILLOW_METHODS = (
    "load convert resize thumbnail reduce crop rotate transpose transform filter paste save tobytes quantize draft"
)
_OPENCV_FUNCTIONS = (
    "imdecode imread imreadmulti imencode imwrite resize cvtColor warpAffine warpPerspective remap rotate flip copyMakeBorder "
    "blur GaussianBlur medianBlur bilateralFilter filter2D Canny threshold adaptiveThreshold equalizeHist normalize merge split "
    "morphologyEx erode dilate findContours fastNlMeansDenoising fastNlMeansDenoisingColored"
)
FAILED: Final = "@failed"
_PSYCOPG_CURSOR = "execute executemany fetchone fetchmany fetchall scroll"
_CONFLUENT = MappingProxyType({"Producer": ("flush", "poll", "produce"), "Consumer": ("poll", "consume", "commit")})
_XGBOOST: Final = "XGBModel XGBClassifier XGBRegressor XGBRanker XGBRFClassifier XGBRFRegressor"
_LIGHTGBM: Final = "LGBMModel LGBMClassifier LGBMRegressor LGBMRanker"
_CATBOOST: Final = "catboost.core:CatBoost CatBoostClassifier CatBoostRegressor CatBoostRanker"


class JsonInstrumentor(CallsInstrumentor):
    """JSON: times the parsing and writing of large bodies by the `json` module of Python.

    - A call below 20 µs, about 2 kB, is not recorded. It costs less than a microsecond more.
    - Stagelens does not read the text or the objects.
    """

    library = "json"
    title = "JSON"
    stages = {"serialize": "`loads`, `load`, `dumps` and `dump`"}
    not_timed = ("`JSONEncoder` and `JSONDecoder` without these functions",)
    calls = (("json", "serialize", "loads load dumps dump"),)


class NumpyInstrumentor(CallsInstrumentor):
    """NumPy: times reading and writing of arrays.

    - A call below 20 µs is not recorded.
    - Stagelens does not read the arrays or the names of files.
    """

    library = "numpy"
    title = "NumPy"
    stages = {"serialize": "`load`, `save`, `savez`, `savez_compressed`, `loadtxt`, `savetxt` and `genfromtxt`"}
    not_timed = (
        "the arrays of an `.npz` file: they are read when they are used, after `load`",
        "the methods of arrays, such as `tobytes` and `tolist`: they are part of the interpreter's C types",
    )
    tested = {"numpy": "2.4.6"}
    calls = (("numpy", "serialize", "load save savez savez_compressed loadtxt savetxt genfromtxt"),)


class OrjsonInstrumentor(CallsInstrumentor):
    """orjson: times the parsing and writing of JSON.

    - A call below 20 µs is not recorded.
    - Stagelens does not read the text or the objects.
    """

    library = "orjson"
    title = "orjson"
    stages = {"serialize": "`loads` and `dumps`"}
    not_timed = ("functions that a module took with `from orjson import loads` before `stagelens.instrument()`",)
    tested = {"orjson": "3.13.0"}
    calls = (("orjson", "serialize", "loads dumps"),)


class PydanticInstrumentor(CallsInstrumentor):
    """Pydantic: times the validation and serialization of large models.

    - A call below 20 µs is not recorded. A validator that calls another timed library belongs to the same stage.
    - Stagelens does not read the fields.
    """

    library = "pydantic"
    title = "Pydantic"
    stages = {
        "serialize": "`model_validate`, `model_validate_json`, `model_dump` and `model_dump_json` of a model, and the same of a `TypeAdapter`"
    }
    not_timed = ("the constructor `Model(…)`", "Pydantic 1")
    tested = {"pydantic": "2.14.4"}
    calls = (
        ("pydantic.main:BaseModel", "serialize", "model_validate model_validate_json model_validate_strings"),
        ("pydantic.main:BaseModel", "serialize", "model_dump model_dump_json"),
        ("pydantic.type_adapter:TypeAdapter", "serialize", "validate_python validate_json validate_strings"),
        ("pydantic.type_adapter:TypeAdapter", "serialize", "dump_python dump_json"),
    )


class PillowInstrumentor(CallsInstrumentor):
    """Pillow: times decoding, conversion, resizing and encoding of images.

    - `Image.open` reads only the header. The first use of the pixels decodes them, and that call counts.
    - A call below 20 µs is not recorded.
    - Stagelens does not read pixels or names of files.
    """

    library = "PIL"
    title = "Pillow"
    stages = {
        "preprocess": "`open`, `load`, `convert`, `resize`, `thumbnail`, `crop`, `rotate`, `transpose`, `transform`, `filter`, `save` and similar methods of `Image`, and `ImageOps`"
    }
    not_timed = ("conversion to an array by `numpy.asarray`, except decoding and `tobytes` in it", "`ImageDraw`")
    tested = {"pillow": "13.0.0"}
    calls = (
        ("PIL.Image", "preprocess", "open fromarray frombytes"),
        ("PIL.Image:Image", "preprocess", _PILLOW_METHODS),
        ("PIL.ImageFile:ImageFile", "preprocess", "load"),
        ("PIL.ImageOps", "preprocess", "autocontrast contain cover equalize exif_transpose fit pad scale"),
    )


class OpenCvInstrumentor(CallsInstrumentor):
    """OpenCV: times the functions of `cv2` that decode, convert, resize, filter and encode images.

    - A call below 20 µs is not recorded.
    - Stagelens does not read pixels or names of files.
    """

    library = "cv2"
    title = "OpenCV"
    stages = {
        "preprocess": "`imdecode`, `imread`, `imencode`, `resize`, `cvtColor`, warps, filters, contours and similar functions",
        "postprocess": "`dnn.NMSBoxes`",
    }
    not_timed = ("methods of C classes, such as `VideoCapture.read`, and networks of `cv2.dnn`",)
    tested = {"opencv-python": "5.0.0.93"}
    calls = (("cv2", "preprocess", _OPENCV_FUNCTIONS), ("cv2:dnn", "postprocess", "NMSBoxes"))

    def _patch(self, module: ModuleType) -> None:
        # The package imports a C module of the same name, and copies its functions afterwards.
        if hasattr(module, "__path__"):
            super()._patch(module)


class SoundFileInstrumentor(CallsInstrumentor):
    """soundfile: times decoding and encoding of audio.

    - A call below 20 µs is not recorded.
    - Stagelens does not read samples or names of files.
    """

    library = "soundfile"
    title = "soundfile"
    stages = {"preprocess": "`read`, `write`, `info`, and `read` and `write` of `SoundFile`"}
    not_timed = ("`blocks`: your code runs between the blocks",)
    tested = {"soundfile": "0.14.0"}
    calls = (("soundfile", "preprocess", "read write info"), ("soundfile:SoundFile", "preprocess", "read write"))


class LibrosaInstrumentor(CallsInstrumentor):
    """librosa: times decoding, resampling, spectra, features and effects of audio.

    - The first call of a function may compile it with Numba.
    - A call below 20 µs is not recorded.
    - Stagelens does not read samples or names of files.
    """

    library = "librosa"
    title = "librosa"
    stages = {
        "preprocess": "`load`, `resample`, spectra such as `stft` and `cqt`, `yin` and `pyin`, and the functions of `feature` and `effects`"
    }
    not_timed = (
        "`stream`: your code runs between the blocks",
        "the functions of `onset` and `beat`, and rhythm features",
    )
    tested = {"librosa": "0.11.0"}
    calls = (
        ("librosa.core.audio", "preprocess", "load resample to_mono"),
        (
            "librosa.core.spectrum",
            "preprocess",
            "stft istft griffinlim phase_vocoder magphase reassigned_spectrogram amplitude_to_db power_to_db pcen",
        ),
        ("librosa.core.constantq", "preprocess", "cqt hybrid_cqt pseudo_cqt vqt icqt"),
        ("librosa.core.pitch", "preprocess", "yin pyin piptrack estimate_tuning"),
        (
            "librosa.feature.spectral",
            "preprocess",
            "melspectrogram mfcc chroma_stft chroma_cqt chroma_cens rms tonnetz zero_crossing_rate poly_features",
        ),
        (
            "librosa.feature.spectral",
            "preprocess",
            "spectral_centroid spectral_bandwidth spectral_contrast spectral_flatness spectral_rolloff",
        ),
        ("librosa.feature.utils", "preprocess", "delta stack_memory"),
        (
            "librosa.effects",
            "preprocess",
            "trim split time_stretch pitch_shift hpss harmonic percussive preemphasis deemphasis",
        ),
    )


class DependencyInstrumentor(CallsInstrumentor):
    """Base class of a client whose calls are stages, and that has a failed call for each call that raises."""

    facts = ("failed_calls",)

    def wrapper(self, stage: str) -> Probed:
        # The part of the stage names the client in the trace, and the outcome of a failed call does, such as "redis:timeout".
        service = self.title.lower()
        stage = f"{stage}@{service}"

        def failed(call: LongCall | None, error: BaseException) -> None:
            if call is not None:
                _record_failure(call.marks, call.stage, call.started, service, error)

        calls = timed_call(stage)
        calls.probe = calls.probe._replace(failed=failed)
        return calls


def _record_failure(marks: Marks, stage: str, started: int, service: str, error: BaseException) -> None:
    try:
        ended = clock()
        if has_capacity(marks):
            failure = (
                ()
                if _has_failed_inside(marks, stage, started)
                else (FAILED, f"{service}:{outcome(error)}", ended - started)
            )
            marks.extend((stage, started, ended, *failure))
    except Exception:
        log_failure(f"recording a failed call of {service}")


def _has_failed_inside(marks: Marks, stage: str, started: int) -> bool:
    """Return whether the last call, inside the call since *started*, has failed: that of a driver, whose failure is the same."""
    index, stage = len(marks) - 3, stage.partition("@")[0]
    while str(marks[index]).partition("@")[0] == stage and marks[index + 1] >= started:
        index -= 3
    return marks[index] == FAILED and marks[index - 2] >= started


def outcome(error: BaseException | None) -> str:
    """Return the outcome of a call that raised *error*: "timeout", "cancelled" or else "error".

    By the name of the class, because the classes come from asyncio, gevent, concurrent.futures and every client.

    >>> outcome(TimeoutError()), outcome(ValueError())
    ('timeout', 'error')
    """
    kind = type(error).__name__
    if error is not None and kind == "KafkaException":
        # That of librdkafka has an error with a name such as "_MSG_TIMED_OUT".
        kind = error.args[0].name()
    kind = kind.replace("_", "").lower()
    if isinstance(error, TimeoutError) or "timeout" in kind or "timedout" in kind:
        return "timeout"
    # The end of a greenlet, or of a coroutine that is closed.
    return "cancelled" if "cancel" in kind or kind.endswith("exit") else "error"


class RedisInstrumentor(DependencyInstrumentor):
    """Redis: times the commands and pipelines of redis-py, also those of clusters and of asyncio.

    - A command includes the wait for a connection, its retries, and the response.
    - Stagelens does not read commands, keys or values.
    """

    library = "redis"
    title = "Redis"
    stages = {"dependency": "a command, or the execution of a pipeline"}
    not_timed = ("messages of `PubSub` and `monitor`, because they belong to no request",)
    tested = {"redis": "8.1.0"}
    calls = tuple(
        (f"{package}.{owner}", "dependency", names)
        for package in ("redis", "redis.asyncio")
        for owner, names in (
            ("client:Redis", "execute_command"),
            ("client:Pipeline", "execute immediate_execute_command"),
            ("cluster:RedisCluster", "execute_command"),
            ("cluster:ClusterPipeline", "execute"),
        )
    )


class BotocoreInstrumentor(DependencyInstrumentor):
    """boto3: times the calls of AWS clients, such as S3, and the bodies that they return.

    - A call includes its retries. boto3 and aws-cli call botocore, which Stagelens times.
    - Stagelens does not read parameters, keys of objects or bodies.
    """

    library = "botocore"
    title = "boto3"
    stages = {"dependency": "a call of a client, and reading the body of a response"}
    not_timed = ("aiobotocore",)
    tested = {"boto3": "1.44.8"}
    calls = (
        ("botocore.client:BaseClient", "dependency", "_make_api_call"),
        ("botocore.response:StreamingBody", "dependency", "read readinto"),
    )


class SqlAlchemyInstrumentor(DependencyInstrumentor):
    """SQLAlchemy: times connections, statements and transactions of any driver, also those of async engines.

    - The driver executes inside these calls. [Psycopg](psycopg.md) inside them belongs to the same stage.
    - Stagelens does not read statements, parameters or rows.
    """

    library = "sqlalchemy"
    title = "SQLAlchemy"
    stages = {"dependency": "connecting, executing a statement, commit and rollback"}
    not_timed = (
        "fetching rows, except by drivers that Stagelens times",
        "compiling statements and loading objects: they run in your process",
        "drivers that replace these calls by their own, such as `executemany` of psycopg2",
    )
    tested = {"SQLAlchemy": "2.1.9"}
    calls = (
        ("sqlalchemy.engine.default:DefaultDialect", "dependency", "connect do_commit do_rollback"),
        ("sqlalchemy.engine.default:DefaultDialect", "dependency", "do_execute do_execute_no_params do_executemany"),
    )


class PsycopgInstrumentor(DependencyInstrumentor):
    """Psycopg: times connections, statements and transactions of Psycopg 3, also those of asyncio.

    Stagelens does not read statements, parameters or rows.
    """

    library = "psycopg"
    title = "Psycopg"
    stages = {"dependency": "connecting, `execute`, `executemany`, `commit`, `rollback`, and fetching rows"}
    not_timed = (
        "iteration over a cursor, `stream` and `copy`: your code runs between the rows",
        "the wait for a connection of `psycopg_pool`, and Psycopg 2",
    )
    tested = {"psycopg": "3.3.9"}
    calls = (
        ("psycopg.cursor:Cursor", "dependency", _PSYCOPG_CURSOR),
        ("psycopg.cursor_async:AsyncCursor", "dependency", _PSYCOPG_CURSOR),
        ("psycopg._server_cursor:ServerCursor", "dependency", _PSYCOPG_CURSOR),
        ("psycopg._server_cursor_async:AsyncServerCursor", "dependency", _PSYCOPG_CURSOR),
        ("psycopg.connection:Connection", "dependency", "connect execute commit rollback"),
        ("psycopg.connection_async:AsyncConnection", "dependency", "connect execute commit rollback"),
    )


class KafkaInstrumentor(DependencyInstrumentor):
    """Kafka: times the waits of kafka-python, confluent-kafka and aiokafka for the brokers.

    - A client sends a message in the background. The request waits where it flushes, or waits for the future of the message.
    - A call below 20 µs is not recorded.
    - Stagelens does not read messages, keys or topics.
    """

    library = "kafka"
    title = "Kafka"
    stages = {
        "dependency": "`send`, `produce`, `flush`, `poll`, `consume`, `getone`, `getmany` and `commit`, and `get` of a future of kafka-python"
    }
    not_timed = (
        "`await` on the future that `send` of aiokafka returns, except in `send_and_wait`",
        "deliveries whose failure only a callback of confluent-kafka reports: they are no failed calls",
        "confluent-kafka, if it was imported before `stagelens.instrument()`",
    )
    tested = {"kafka-python": "3.0.12", "confluent-kafka": "2.16.1", "aiokafka": "0.14.0"}
    calls = (
        ("kafka.producer.kafka:KafkaProducer", "dependency", "send flush"),
        ("kafka.producer.future:FutureRecordMetadata", "dependency", "get"),
        ("kafka.consumer.group:KafkaConsumer", "dependency", "poll commit"),
        ("aiokafka.producer.producer:AIOKafkaProducer", "dependency", "start send send_and_wait flush"),
        ("aiokafka.consumer.consumer:AIOKafkaConsumer", "dependency", "start getone getmany commit"),
        ("confluent_kafka.deserializing_consumer:DeserializingConsumer", "dependency", "poll consume"),
        ("confluent_kafka.aio.producer._AIOProducer:AIOProducer", "dependency", "flush poll produce"),
        ("confluent_kafka.aio._AIOConsumer:AIOConsumer", "dependency", "poll consume commit"),
    )

    def hooks(self) -> Mapping[str, Hook]:
        return {**super().hooks(), "confluent_kafka.cimpl": self._confluent, "confluent_kafka": self._package}

    # The classes of confluent-kafka are written in C, and their methods cannot be replaced. Subclasses take their place, before the
    # package takes the classes from its extension, so that all of it has the same ones.
    def _confluent(self, module: ModuleType) -> None:
        # Not where the package has the original classes already: it would have two of the same name.
        if not hasattr(sys.modules.get("confluent_kafka"), "Producer"):
            for name, names in _CONFLUENT.items():
                self.replace(module, name, functools.partial(self._subclass, names))

    def _package(self, module: ModuleType) -> None:
        for patch in [patch for patch in self._patches if getattr(module, patch.name, None) is patch.replacement]:
            self._patches.append(patch._replace(owner=module))

    def _subclass(self, names: Sequence[str], original: type[Any]) -> type[Any]:
        make = self.wrapper("dependency")
        methods = {name: vars(original)[name] for name in names if name in vars(original)}
        attributes = {name: functools.update_wrapper(make(method), method) for name, method in methods.items()}
        described = {name: getattr(original, name) for name in ("__doc__", "__module__", "__qualname__")}
        return type(original.__name__, (original,), {**attributes, **described})


class BoostingInstrumentor(CallsInstrumentor):
    """Base class of a library of models: `forward` is a prediction, and a call without a stage a training."""

    facts = ("model", "batch")

    def wrapper(self, stage: str) -> Probed:
        # Loaded only with these libraries.
        from .model_common import model_call, without_calls  # noqa: PLC0415

        return {"forward": model_call(), "load": timed("load"), "": without_calls}[stage]


class XGBoostInstrumentor(BoostingInstrumentor):
    """XGBoost: times predictions as `forward`, and the loading of models.

    - Copies to and from a GPU inside a prediction count as `forward`.
    """

    library = "xgboost"
    title = "XGBoost"
    stages = {
        "forward": "calls of `predict` and `inplace_predict` of a `Booster`; `predict`, `predict_proba` and `apply` of the "
        "scikit-learn models; from 20 µs",
        "load": "calls of `load_model`",
    }
    not_timed = ("the creation of a `DMatrix` outside of a prediction", "predictions inside `fit` and `train`")
    tested = {"xgboost-cpu": "3.2.0"}
    calls = (
        ("xgboost.core:Booster", "forward", "predict inplace_predict"),
        ("xgboost.core:Booster", "load", "load_model"),
        (f"xgboost.sklearn:{_XGBOOST}", "forward", "predict predict_proba apply"),
        (f"xgboost.sklearn:{_XGBOOST}", "load", "load_model"),
        (f"xgboost.sklearn:{_XGBOOST}", "", "fit"),
        ("xgboost.training", "", "train"),
    )


class LightGBMInstrumentor(BoostingInstrumentor):
    """LightGBM: times predictions as `forward`."""

    library = "lightgbm"
    title = "LightGBM"
    stages = {
        "forward": "calls of `predict` of a `Booster`; `predict`, `predict_proba` and `decision_function` of the scikit-learn "
        "models; from 20 µs"
    }
    not_timed = ("the loading of a `Booster` from a file", "predictions inside `fit` and `train`")
    tested = {"lightgbm": "4.7.0"}
    calls = (
        ("lightgbm.basic:Booster", "forward", "predict"),
        (f"lightgbm.sklearn:{_LIGHTGBM}", "forward", "predict predict_proba decision_function"),
        (f"lightgbm.sklearn:{_LIGHTGBM}", "", "fit"),
        ("lightgbm.engine", "", "train"),
    )


class CatBoostInstrumentor(BoostingInstrumentor):
    """CatBoost: times predictions as `forward`, and the loading of models."""

    library = "catboost"
    title = "CatBoost"
    stages = {
        "forward": "calls of `predict`, `predict_proba`, `predict_log_proba`, `virtual_ensembles_predict` and "
        "`calc_leaf_indexes`, from 20 µs",
        "load": "calls of `load_model`",
    }
    not_timed = ("the creation of a `Pool` outside of a prediction", "`staged_predict`", "predictions inside `fit`")
    tested = {"catboost": "1.2.10"}
    calls = (
        (_CATBOOST, "forward", "predict predict_proba predict_log_proba virtual_ensembles_predict calc_leaf_indexes"),
        (_CATBOOST, "load", "load_model"),
        (_CATBOOST, "", "fit"),
    )
