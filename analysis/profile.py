"""Functions of the user's code that explain the tail: the samples of the tail profiler, summed by function, and their flame graph.

Samples divide the exact time of a stage. A function of a library counts for the innermost frame of the user's code that called it,
because that is the code that the user can change.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from ..core.code_stack import CodeFrame, split_stack_key
from ..core.stages import BY_KEY, OTHER, OVERHEAD

# Number of sampled requests below which no function is named: where five of five show the same function, it has more than half of the
# time at a confidence of 97 % (sign test, 1 - 0.5^5). [requests]
MIN_SAMPLED = 5
# Share of a stage, or of its growth, that a function needs to be named as its cause: of its own time, or with its callees.
_NAMED_SHARE, _HOLDS_SHARE = 0.5, 0.8
# Growth of a stage below which a sentence would report noise. [milliseconds]
_MIN_GROWTH_MS = 1.0
# Ratio of the growth of a function to that of its stage from which on other functions became faster.
_ALL = 1.05
# Stages that a function could leave for a stage of its own, and those that a function of the user can be. A function that calls a
# model is no stage: it would hide the stages within.
_UNNAMED_STAGES = {OVERHEAD, "framework", "handler", OTHER}
_OWN_STAGES = {"preprocess", "postprocess"}
# Share of a stage below which a function is not worth a stage of its own.
_MIN_STAGE_SHARE = 0.05
# Packages that are known not to be the user's; packages that are missing here count as the user's code.
_LIBRARY_NAMES = """
accelerate aiobotocore aiohttp anyio asgiref bentoml boto3 botocore catboost celery certifi charset_normalizer clip
cloudpickle ctranslate2 cv2 diffusers django faiss fastapi flask gevent gradio greenlet grpc gunicorn h11 httpcore httptools
httpx huggingface_hub jax jaxlib jinja2 joblib keras kserve librosa lightgbm litserve llama_cpp numba numpy onnx onnxruntime
openai openvino openvino_genai orjson pandas peft PIL psycopg psycopg2 pyarrow pydantic pydantic_core ray redis regex
requests safetensors scipy sentence_transformers sentencepiece skimage sklearn soundfile spacy sqlalchemy stagelens
starlette streamlit tensorflow tiktoken timm tokenizers torch torchaudio torchvision tornado tqdm transformers tritonclient
triton typing_extensions urllib3 uvicorn uvloop vllm werkzeug xgboost yaml
"""
# Packages in which a request waits for other threads, tasks and processes.
_WAITING = frozenset(
    {
        "_thread",
        "anyio",
        "asyncio",
        "concurrent",
        "filelock",
        "gevent",
        "janus",
        "multiprocessing",
        "queue",
        "threading",
    }
)
_LIBRARIES = sys.stdlib_module_names - {"__main__"} | set(_LIBRARY_NAMES.split())
# Microseconds of more than a year.
_MAX_DIGITS = 14


@dataclass(frozen=True, slots=True)
class ProfileBand:
    """Time [seconds] of the requests at one percentile, or mean time of selected requests, by stage and by stack.

    The keys of a stage in *stacks* add up to its time; a stage without samples has none.
    """

    latency: float
    sampled: float
    stages: Mapping[str, float]
    stacks: Mapping[str, float]

    @property
    def is_sufficient(self) -> bool:
        return self.sampled >= MIN_SAMPLED


NO_SAMPLES = ProfileBand(0.0, 0.0, {}, {})


@dataclass(frozen=True, slots=True)
class FunctionTime:
    """Time of a request in one function, within one stage; at the median None with too few samples.

    The self time includes library functions that it called, the total also all others. *line* is that with the most time, *share* that
    of the self time in the stage at the tail, *depth* the number of functions of the user's code around it, and *wait* what it waits in
    for most of its self time, such as `Event.wait`.
    """

    stage: str
    module: str
    function: str
    file: str
    line: int
    is_library: bool
    tail_self_ms: float
    tail_total_ms: float
    median_self_ms: float | None
    median_total_ms: float | None
    share: float
    depth: int = 0
    wait: str = ""

    @property
    def growth_ms(self) -> float | None:
        return None if self.median_self_ms is None else self.tail_self_ms - self.median_self_ms

    @property
    def total_growth_ms(self) -> float | None:
        return None if self.median_total_ms is None else self.tail_total_ms - self.median_total_ms

    @property
    def place(self) -> str:
        return CodeFrame(self.module, self.function, self.file, self.line).place

    @property
    def title(self) -> str:
        return _title(self.function, self.place) + (f", waiting in {self.wait}" if self.wait else "")

    @property
    def stage_option(self) -> str:
        """Option of `stagelens run` that makes the function a stage; "" if it cannot be imported by name, or need not be a stage."""
        names = (*self.module.split("."), *self.function.split("."))
        if self.module == "__main__" or self.is_library or not all(name.isidentifier() for name in names):
            return ""
        stage, name = self.stage, self.function.rpartition(".")[2]
        if stage in _UNNAMED_STAGES:
            stage = "preprocess" if name in BY_KEY else name
        if self.share < _MIN_STAGE_SHARE or (stage in BY_KEY and stage not in _OWN_STAGES):
            return ""
        return f"--stage {stage}={self.module}:{self.function}"


@dataclass(slots=True)
class CodeNode:
    """Node of a flame graph, with the times of its children; the root is a stage. The median is None with too few samples."""

    name: str
    place: str = ""
    tail_ms: float = 0.0
    median_ms: float | None = None
    children: list[CodeNode] = field(default_factory=list["CodeNode"])


@dataclass(frozen=True, slots=True)
class FunctionGrowth:
    """Growth of one function between two selections of requests, at the same percentile, as self time.

    The times include the functions that it calls where these make it the cause of the growth of the stage (`main_function`).
    """

    stage: str
    title: str
    before_ms: float
    after_ms: float
    stage_growth_ms: float
    is_cause: bool = False
    quantile: float = 0.0

    @property
    def at(self) -> str:
        """The percentile, such as ` at p99`; "" if it is unknown."""
        return f" at p{100 * self.quantile:g}" if self.quantile else ""

    @property
    def stage_words(self) -> str:
        """Growth of the stage in the requests in which that of the function was measured, such as `preprocess +180 ms at p99`."""
        return f"{self.stage} {_signed_ms(self.stage_growth_ms)}{self.at}"

    @property
    def amount_words(self) -> str:
        """Growth of the function and of its stage, such as `+166 ms of preprocess +180 ms at p99`."""
        others = ", other functions became faster" if self.growth_ms > self.stage_growth_ms * _ALL else ""
        return f"{_signed_ms(self.growth_ms)} of {self.stage_words}{others}"

    # Its code, for a link; "" in records of older versions.
    module: str = ""
    function: str = ""
    file: str = ""
    line: int = 0
    is_library: bool = False

    @property
    def growth_ms(self) -> float:
        return self.after_ms - self.before_ms

    @property
    def share(self) -> float:
        """Share of the growth of the stage, at most 1; 0 if the stage did not grow."""
        return max(0.0, min(1.0, self.growth_ms / self.stage_growth_ms)) if self.stage_growth_ms > 0 else 0.0

    @property
    def sentence(self) -> str:
        """Growth of the stage and share of the function, such as `preprocess grew +180 ms, 92 % in resize (serve.py:41)`."""
        return (
            f"{self.stage} grew {_signed_ms(self.stage_growth_ms)}{self.at}, {self.share * 100:.0f} % in {self.title}"
        )


def is_library(frame: CodeFrame) -> bool:
    """Return whether *frame* belongs to a library or to the standard library, as far as its names show.

    >>> is_library(CodeFrame("PIL.Image", "resize", "PIL/Image.py", 2100)), is_library(CodeFrame("serve", "resize"))
    (True, False)
    """
    folders = set(frame.file.split("/")[:-1])
    return frame.module.partition(".")[0] in _LIBRARIES or bool(folders & {"site-packages", "dist-packages"})


def functions(tail: ProfileBand, median: ProfileBand | None = None) -> list[FunctionTime]:
    """Return the functions with the time of the requests at *tail*, by self time; none if *tail* has too few samples."""
    if not tail.is_sufficient:
        return []
    here = _times_of(tail)
    usual = _times_of(median) if median and median.is_sufficient else None
    function_times = [
        FunctionTime(
            stage=key[0],
            module=key[1],
            function=key[2],
            file=key[3],
            line=max(times.lines, key=lambda line: times.lines[line], default=0),
            is_library=times.is_library,
            tail_self_ms=times.own * 1e3,
            tail_total_ms=times.total * 1e3,
            median_self_ms=None if usual is None else usual[key].own * 1e3 if key in usual else 0.0,
            median_total_ms=None if usual is None else usual[key].total * 1e3 if key in usual else 0.0,
            share=times.own / tail.stages[key[0]] if tail.stages.get(key[0]) else 0.0,
            depth=times.depth,
            wait=next((wait for wait, seconds in times.waits.items() if seconds > _NAMED_SHARE * times.own), ""),
        )
        for key, times in here.items()
    ]
    return sorted(
        function_times,
        key=lambda function_time: (
            -function_time.tail_self_ms,
            -function_time.tail_total_ms,
            function_time.stage,
            function_time.module,
            function_time.function,
        ),
    )


def flame_graph(stage: str, tail: ProfileBand, median: ProfileBand | None = None) -> CodeNode:
    """Return the stacks of *stage* as a tree with the time at the tail and at the median; without children with too few samples."""
    bands = [("tail_ms", tail)] if tail.is_sufficient else []
    if bands and median and median.is_sufficient:
        bands.append(("median_ms", median))
    root = CodeNode(stage)
    for column, band in bands:
        for key, seconds in band.stacks.items():
            stack_stage, frames = split_stack_key(key)
            if stack_stage == stage:
                _add_to_tree(root, column, frames, seconds * 1e3)
    if len(bands) > 1:
        _fill_median(root)
    _sort_tree(root)
    return root


def grown_functions(before: ProfileBand, after: ProfileBand) -> list[FunctionGrowth]:
    """Return the functions whose time grew, by growth, none with too few samples; each stage has at most one cause."""
    if not (before.is_sufficient and after.is_sufficient):
        return []
    by_stage: dict[str, list[FunctionTime]] = defaultdict(list)
    for function_time in functions(after, before):
        by_stage[function_time.stage].append(function_time)
    growths = [growth for stage, times in by_stage.items() for growth in _growth_in_stage(times, before, after, stage)]
    return sorted((growth for growth in growths if growth.growth_ms > 0), key=lambda growth: -growth.growth_ms)


def _growth_in_stage(
    times: Sequence[FunctionTime], before: ProfileBand, after: ProfileBand, stage: str
) -> Iterator[FunctionGrowth]:
    growth_ms = (after.stages.get(stage, 0.0) - before.stages.get(stage, 0.0)) * 1e3
    parts = [
        (function_time, function_time.growth_ms or 0.0, function_time.total_growth_ms or 0.0) for function_time in times
    ]
    cause = _cause(parts, growth_ms) if growth_ms >= _MIN_GROWTH_MS else None
    for function_time in times:
        is_cause = cause is not None and cause[0] is function_time
        then, now = function_time.median_self_ms, function_time.tail_self_ms
        if is_cause and cause and cause[1] == function_time.total_growth_ms:
            then, now = function_time.median_total_ms, function_time.tail_total_ms
        code = {name: getattr(function_time, name) for name in ("module", "function", "file", "line", "is_library")}
        yield FunctionGrowth(stage, function_time.title, then or 0.0, now, growth_ms, is_cause, **code)


def main_function(function_times: Sequence[FunctionTime], whole_ms: float) -> tuple[FunctionTime, float] | None:
    """Return the function that explains *whole_ms* milliseconds of the tail, and its share of them; None if none does.

    It is the innermost one that has at least 80 % with the functions that it calls; else one whose own time is at least half.
    """
    cause = _cause(
        [(function_time, function_time.tail_self_ms, function_time.tail_total_ms) for function_time in function_times],
        whole_ms,
    )
    return (cause[0], cause[1] / whole_ms) if cause else None


def _cause(
    candidates: Sequence[tuple[FunctionTime, float, float]], whole_ms: float
) -> tuple[FunctionTime, float] | None:
    """Return the function that explains *whole_ms*, and its milliseconds, from functions with their own and total milliseconds."""
    named = [
        (function_time, self_ms) for function_time, self_ms, _ in candidates if self_ms >= _NAMED_SHARE * whole_ms > 0
    ]
    # The outermost one always has all of the time.
    held = [
        (function_time, total)
        for function_time, self_ms, total in candidates
        if total >= _HOLDS_SHARE * whole_ms > 0 and (function_time.depth or self_ms >= _HOLDS_SHARE * whole_ms)
    ]
    if held:
        return max(held, key=lambda pair: (pair[0].depth, -pair[1]))
    return max(named, key=lambda pair: pair[1], default=None)


def profile_of_request(text: str) -> dict[str, int]:
    """Return the microseconds by key of stage and stack from the attribute `core.names.PROFILE`, without invalid lines."""
    counts: dict[str, int] = {}
    for line in text.splitlines():
        count, _, key = line.partition(" ")
        if key and count.isascii() and count.isdigit() and len(count) <= _MAX_DIGITS:
            counts[key] = counts.get(key, 0) + int(count)
    return counts


@dataclass(slots=True)
class _Times:
    is_library: bool
    own: float = 0.0
    total: float = 0.0
    depth: int = 0
    lines: dict[int, float] = field(default_factory=lambda: defaultdict[int, float](float))
    waits: dict[str, float] = field(default_factory=lambda: defaultdict[str, float](float))


_FunctionKey = tuple[str, str, str, str]


def _times_of(band: ProfileBand) -> dict[_FunctionKey, _Times]:
    by_function: dict[_FunctionKey, _Times] = {}
    for key, seconds in band.stacks.items():
        stage, frames = split_stack_key(key)
        shown = [frame for frame in frames if not is_library(frame)]
        library = not shown
        shown = [frame for frame in shown or frames[-1:] if frame.function != OTHER]
        # The last frame of a recursive function is its innermost call; the function counts once.
        once = {(stage, frame.module, frame.function, frame.file): frame for frame in shown}
        for depth, (name, frame) in enumerate(once.items()):
            times = by_function.setdefault(name, _Times(library))
            times.total += seconds
            times.depth = max(times.depth, depth)
            if frame is shown[-1]:
                times.own += seconds
                called = [] if library else list(takewhile(is_library, reversed(frames)))
                if called and called[-1].module.partition(".")[0] in _WAITING:
                    times.waits[called[-1].function] += seconds
            # A function that only calls others has the line of its call.
            times.lines[frame.line] += seconds if frame is shown[-1] else seconds * 1e-6
    return by_function


def _add_to_tree(root: CodeNode, column: str, frames: Sequence[CodeFrame], ms: float) -> None:
    node = root
    _add(node, column, ms)
    for frame in frames:
        name = f"{frame.module}:{frame.function}" if frame.module else frame.function
        child = next(
            (candidate for candidate in node.children if (candidate.name, candidate.place) == (name, frame.place)),
            None,
        )
        if child is None:
            child = CodeNode(name, frame.place)
            node.children.append(child)
        node = child
        _add(node, column, ms)


def _add(node: CodeNode, column: str, ms: float) -> None:
    setattr(node, column, (getattr(node, column) or 0.0) + ms)


def _fill_median(node: CodeNode) -> None:
    node.median_ms = node.median_ms or 0.0
    for child in node.children:
        _fill_median(child)


def _sort_tree(node: CodeNode) -> None:
    node.children.sort(key=lambda child: (-child.tail_ms, child.name, child.place))
    for child in node.children:
        _sort_tree(child)


def _title(function: str, location: str) -> str:
    short = function.rpartition("<locals>.")[2] or function
    return f"{short} ({location})" if location else short


def _signed_ms(ms: float) -> str:
    return f"{ms:+.0f} ms" if abs(ms) >= 10 else f"{ms:+.1f} ms"  # noqa: PLR2004 - one digit below 10 ms
