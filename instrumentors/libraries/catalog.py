"""Libraries of which only calls are timed: the list of their functions and methods is all, or nearly all, that there is to say of each.

The docstring of a class is the text of its page in the documentation.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType, ModuleType
from typing import Any

from ..instrumentor import CallsInstrumentor, Hook
from .dependency_common import DependencyInstrumentor


def methods(owner: str, names: str) -> tuple[str, ...]:
    """Return the *names*, separated by spaces, of methods of class *owner*, as in `CallsInstrumentor.calls`."""
    return tuple(f"{owner}.{name}" for name in names.split())


class JsonInstrumentor(CallsInstrumentor):
    """JSON: times the parsing and writing of large bodies by the `json` module of Python.

    - A call below 20 µs, about 2 kB, is not recorded. It costs less than a microsecond more.
    - Stagelens does not read the text or the objects.
    """

    library = "json"
    title = "JSON"
    stages = MappingProxyType({"serialize": "`loads`, `load`, `dumps` and `dump`"})
    not_timed = ("`JSONEncoder` and `JSONDecoder` without these functions",)
    calls = MappingProxyType({"json": {"serialize": ("loads", "load", "dumps", "dump")}})


class NumpyInstrumentor(CallsInstrumentor):
    """NumPy: times reading and writing of arrays.

    - A call below 20 µs is not recorded.
    - Stagelens does not read the arrays or the names of files.
    """

    library = "numpy"
    title = "NumPy"
    stages = MappingProxyType(
        {"serialize": "`load`, `save`, `savez`, `savez_compressed`, `loadtxt`, `savetxt` and `genfromtxt`"}
    )
    not_timed = (
        "the arrays of an `.npz` file: they are read when they are used, after `load`",
        "the methods of arrays, such as `tobytes` and `tolist`: they are part of the interpreter's C types",
    )
    tested = MappingProxyType({"numpy": "2.4.6"})
    calls = MappingProxyType(
        {"numpy": {"serialize": ["load", "save", "savez", "savez_compressed", "loadtxt", "savetxt", "genfromtxt"]}}
    )


class OrjsonInstrumentor(CallsInstrumentor):
    """orjson: times the parsing and writing of JSON.

    - A call below 20 µs is not recorded.
    - Stagelens does not read the text or the objects.
    """

    library = "orjson"
    title = "orjson"
    stages = MappingProxyType({"serialize": "`loads` and `dumps`"})
    not_timed = ("functions that a module took with `from orjson import loads` before `stagelens.instrument()`",)
    tested = MappingProxyType({"orjson": "3.13.0"})
    calls = MappingProxyType({"orjson": {"serialize": ("loads", "dumps")}})


class PydanticInstrumentor(CallsInstrumentor):
    """Pydantic: times the validation and serialization of large models.

    - A call below 20 µs is not recorded. A validator that calls another timed library belongs to the same stage.
    - Stagelens does not read the fields.
    """

    library = "pydantic"
    title = "Pydantic"
    stages = MappingProxyType(
        {
            "serialize": "`model_validate`, `model_validate_json`, `model_dump` and `model_dump_json` of a model, and the same of a `TypeAdapter`"
        }
    )
    not_timed = ("the constructor `Model(…)`", "Pydantic 1")
    tested = MappingProxyType({"pydantic": "2.14.4"})
    calls = MappingProxyType(
        {
            "pydantic.main": {
                "serialize": methods(
                    "BaseModel", "model_validate model_validate_json model_validate_strings model_dump model_dump_json"
                )
            },
            "pydantic.type_adapter": {
                "serialize": methods(
                    "TypeAdapter", "validate_python validate_json validate_strings dump_python dump_json"
                )
            },
        }
    )


_PILLOW_METHODS = (
    "load convert resize thumbnail reduce crop rotate transpose transform filter paste save tobytes quantize draft"
)


class PillowInstrumentor(CallsInstrumentor):
    """Pillow: times decoding, conversion, resizing and encoding of images.

    - `Image.open` reads only the header. The first use of the pixels decodes them, and that call counts.
    - A call below 20 µs is not recorded.
    - Stagelens does not read pixels or names of files.
    """

    library = "PIL"
    title = "Pillow"
    stages = MappingProxyType(
        {
            "preprocess": "`open`, `load`, `convert`, `resize`, `thumbnail`, `crop`, `rotate`, `transpose`, `transform`, `filter`, `save` and similar methods of `Image`, and `ImageOps`"
        }
    )
    not_timed = ("conversion to an array by `numpy.asarray`, except decoding and `tobytes` in it", "`ImageDraw`")
    tested = MappingProxyType({"pillow": "13.0.0"})
    calls = MappingProxyType(
        {
            "PIL.Image": {"preprocess": ("open", "fromarray", "frombytes", *methods("Image", _PILLOW_METHODS))},
            "PIL.ImageFile": {"preprocess": ("ImageFile.load",)},
            "PIL.ImageOps": {
                "preprocess": ["autocontrast", "contain", "cover", "equalize", "exif_transpose", "fit", "pad", "scale"]
            },
        }
    )


_OPENCV_FUNCTIONS = (
    "imdecode imread imreadmulti imencode imwrite resize cvtColor warpAffine warpPerspective remap rotate flip copyMakeBorder "
    "blur GaussianBlur medianBlur bilateralFilter filter2D Canny threshold adaptiveThreshold equalizeHist normalize merge split "
    "morphologyEx erode dilate findContours fastNlMeansDenoising fastNlMeansDenoisingColored"
)


class OpenCvInstrumentor(CallsInstrumentor):
    """OpenCV: times the functions of `cv2` that decode, convert, resize, filter and encode images.

    - A call below 20 µs is not recorded.
    - Stagelens does not read pixels or names of files.
    """

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
    calls = MappingProxyType({"cv2": {"preprocess": _OPENCV_FUNCTIONS.split(), "postprocess": ("dnn.NMSBoxes",)}})

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
    stages = MappingProxyType({"preprocess": "`read`, `write`, `info`, and `read` and `write` of `SoundFile`"})
    not_timed = ("`blocks`: your code runs between the blocks",)
    tested = MappingProxyType({"soundfile": "0.14.0"})
    calls = MappingProxyType(
        {"soundfile": {"preprocess": ("read", "write", "info", "SoundFile.read", "SoundFile.write")}}
    )


_LIBROSA_NAMES = {
    "core.audio": "load resample to_mono",
    "core.spectrum": "stft istft griffinlim phase_vocoder magphase reassigned_spectrogram amplitude_to_db power_to_db pcen",
    "core.constantq": "cqt hybrid_cqt pseudo_cqt vqt icqt",
    "core.pitch": "yin pyin piptrack estimate_tuning",
    "feature.spectral": "melspectrogram mfcc chroma_stft chroma_cqt chroma_cens rms tonnetz zero_crossing_rate poly_features "
    "spectral_centroid spectral_bandwidth spectral_contrast spectral_flatness spectral_rolloff",
    "feature.utils": "delta stack_memory",
    "effects": "trim split time_stretch pitch_shift hpss harmonic percussive preemphasis deemphasis",
}


class LibrosaInstrumentor(CallsInstrumentor):
    """librosa: times decoding, resampling, spectra, features and effects of audio.

    - The first call of a function may compile it with Numba.
    - A call below 20 µs is not recorded.
    - Stagelens does not read samples or names of files.
    """

    library = "librosa"
    title = "librosa"
    stages = MappingProxyType(
        {
            "preprocess": "`load`, `resample`, spectra such as `stft` and `cqt`, `yin` and `pyin`, and the functions of `feature` and `effects`"
        }
    )
    not_timed = (
        "`stream`: your code runs between the blocks",
        "the functions of `onset` and `beat`, and rhythm features",
    )
    tested = MappingProxyType({"librosa": "0.11.0"})
    calls = MappingProxyType(
        {f"librosa.{module}": {"preprocess": names.split()} for module, names in _LIBROSA_NAMES.items()}
    )


_REDIS_CLIENT = ("Redis.execute_command", *methods("Pipeline", "execute immediate_execute_command"))
_REDIS_CLUSTER = ("RedisCluster.execute_command", "ClusterPipeline.execute")


class RedisInstrumentor(DependencyInstrumentor):
    """Redis: times the commands and pipelines of redis-py, also those of clusters and of asyncio.

    - A command includes the wait for a connection, its retries, and the response.
    - Stagelens does not read commands, keys or values.
    """

    library = "redis"
    title = "Redis"
    service = "redis"
    stages = MappingProxyType({"dependency": "a command, or the execution of a pipeline"})
    not_timed = ("messages of `PubSub` and `monitor`, because they belong to no request",)
    tested = MappingProxyType({"redis": "8.1.0"})
    calls = MappingProxyType(
        {
            "redis.client": {"dependency": _REDIS_CLIENT},
            "redis.asyncio.client": {"dependency": _REDIS_CLIENT},
            "redis.cluster": {"dependency": _REDIS_CLUSTER},
            "redis.asyncio.cluster": {"dependency": _REDIS_CLUSTER},
        }
    )


class BotocoreInstrumentor(DependencyInstrumentor):
    """boto3: times the calls of AWS clients, such as S3, and the bodies that they return.

    - A call includes its retries. boto3 and aws-cli call botocore, which Stagelens times.
    - Stagelens does not read parameters, keys of objects or bodies.
    """

    library = "botocore"
    title = "boto3"
    service = "boto3"
    stages = MappingProxyType({"dependency": "a call of a client, and reading the body of a response"})
    not_timed = ("aiobotocore",)
    tested = MappingProxyType({"boto3": "1.44.8"})
    calls = MappingProxyType(
        {
            "botocore.client": {"dependency": ("BaseClient._make_api_call",)},
            "botocore.response": {"dependency": ("StreamingBody.read", "StreamingBody.readinto")},
        }
    )


class SqlAlchemyInstrumentor(DependencyInstrumentor):
    """SQLAlchemy: times connections, statements and transactions of any driver, also those of async engines.

    - The driver executes inside these calls. [Psycopg](psycopg.md) inside them belongs to the same stage.
    - Stagelens does not read statements, parameters or rows.
    """

    library = "sqlalchemy"
    title = "SQLAlchemy"
    service = "sqlalchemy"
    stages = MappingProxyType({"dependency": "connecting, executing a statement, commit and rollback"})
    not_timed = (
        "fetching rows, except by drivers that Stagelens times",
        "compiling statements and loading objects: they run in your process",
        "drivers that replace these calls by their own, such as `executemany` of psycopg2",
    )
    tested = MappingProxyType({"SQLAlchemy": "2.1.9"})
    calls = MappingProxyType(
        {
            "sqlalchemy.engine.default": {
                "dependency": methods(
                    "DefaultDialect", "connect do_execute do_execute_no_params do_executemany do_commit do_rollback"
                )
            }
        }
    )


_PSYCOPG_CURSOR = "execute executemany fetchone fetchmany fetchall scroll"
_PSYCOPG_CLASSES = {
    "cursor.Cursor": _PSYCOPG_CURSOR,
    "cursor_async.AsyncCursor": _PSYCOPG_CURSOR,
    "_server_cursor.ServerCursor": _PSYCOPG_CURSOR,
    "_server_cursor_async.AsyncServerCursor": _PSYCOPG_CURSOR,
    "connection.Connection": "connect execute commit rollback",
    "connection_async.AsyncConnection": "connect execute commit rollback",
}


class PsycopgInstrumentor(DependencyInstrumentor):
    """Psycopg: times connections, statements and transactions of Psycopg 3, also those of asyncio.

    Stagelens does not read statements, parameters or rows.
    """

    library = "psycopg"
    title = "Psycopg"
    service = "psycopg"
    stages = MappingProxyType(
        {"dependency": "connecting, `execute`, `executemany`, `commit`, `rollback`, and fetching rows"}
    )
    not_timed = (
        "iteration over a cursor, `stream` and `copy`: your code runs between the rows",
        "the wait for a connection of `psycopg_pool`, and Psycopg 2",
    )
    tested = MappingProxyType({"psycopg": "3.3.9"})
    calls = MappingProxyType(
        {
            f"psycopg.{module}": {"dependency": methods(owner, names)}
            for path, names in _PSYCOPG_CLASSES.items()
            for module, owner in (path.split("."),)
        }
    )


_CONFLUENT = MappingProxyType({"Producer": ("flush", "poll", "produce"), "Consumer": ("poll", "consume", "commit")})


class KafkaInstrumentor(DependencyInstrumentor):
    """Kafka: times the waits of kafka-python, confluent-kafka and aiokafka for the brokers.

    - A client sends a message in the background. The request waits where it flushes, or waits for the future of the message.
    - A call below 20 µs is not recorded.
    - Stagelens does not read messages, keys or topics.
    """

    library = "kafka"
    title = "Kafka"
    service = "kafka"
    stages = MappingProxyType(
        {
            "dependency": "`send`, `produce`, `flush`, `poll`, `consume`, `getone`, `getmany` and `commit`, and `get` of a future of kafka-python"
        }
    )
    not_timed = (
        "`await` on the future that `send` of aiokafka returns, except in `send_and_wait`",
        "deliveries whose failure only a callback of confluent-kafka reports: they are no failed calls",
        "confluent-kafka, if it was imported before `stagelens.instrument()`",
    )
    tested = MappingProxyType({"kafka-python": "3.0.12", "confluent-kafka": "2.16.1", "aiokafka": "0.14.0"})
    calls = MappingProxyType(
        {
            "kafka.producer.kafka": {"dependency": methods("KafkaProducer", "send flush")},
            "kafka.producer.future": {"dependency": methods("FutureRecordMetadata", "get")},
            "kafka.consumer.group": {"dependency": methods("KafkaConsumer", "poll commit")},
            "aiokafka.producer.producer": {"dependency": methods("AIOKafkaProducer", "start send send_and_wait flush")},
            "aiokafka.consumer.consumer": {"dependency": methods("AIOKafkaConsumer", "start getone getmany commit")},
            "confluent_kafka.deserializing_consumer": {"dependency": methods("DeserializingConsumer", "poll consume")},
            "confluent_kafka.aio.producer._AIOProducer": {"dependency": methods("AIOProducer", "flush poll produce")},
            "confluent_kafka.aio._AIOConsumer": {"dependency": methods("AIOConsumer", "poll consume commit")},
        }
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
        for patch in [each for each in self._patches if getattr(module, each.name, None) is each.replacement]:
            self._patches.append(patch._replace(owner=module))

    def _subclass(self, names: Sequence[str], original: type[Any]) -> type[Any]:
        make = self.wrapper("dependency")
        found = {name: vars(original)[name] for name in names if name in vars(original)}
        attributes = {name: functools.update_wrapper(make(method), method) for name, method in found.items()}
        described = {name: getattr(original, name) for name in ("__doc__", "__module__", "__qualname__")}
        return type(original.__name__, (original,), {**attributes, **described})
