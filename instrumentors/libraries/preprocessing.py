"""Libraries that prepare the inputs of models: tables, images, audio and text. Calls inside of a model belong to the model.

The docstring of a class is the text of its page in the documentation.
"""

from __future__ import annotations

import functools
import threading
from typing import Final

from ..instrumentor import CallsInstrumentor, LongCall, Probed, timed_call
from ..records import Marks, clock, current
from .model_common import inside

# Most operations of pandas end in few internal methods: all arithmetic in `_arith_method`, all reductions in `_reduce`.
_BOTH: Final = (
    "__init__ __getitem__ __setitem__ _arith_method _cmp_method _logical_method _reduce agg aggregate apply map "
    "transform drop dropna drop_duplicates duplicated reset_index sort_values sort_index groupby unstack explode "
    "nlargest nsmallest corr cov count idxmin idxmax mode quantile isna notna isin dot compare update diff round "
    "rename reindex"
)
_FRAME: Final = (
    f"{_BOTH} applymap assign set_index merge join pivot pivot_table melt stack nunique value_counts select_dtypes "
    "query eval insert transpose shift from_dict from_records to_numpy values"
)
_SERIES: Final = f"{_BOTH} unique between repeat searchsorted argsort to_frame"
_ALL: Final = (
    "__invert__ __neg__ __array__ __array_ufunc__ abs astype copy fillna ffill bfill replace interpolate where mask clip filter "
    "sample take head tail reindex_like resample rolling expanding ewm rank shift pct_change describe convert_dtypes infer_objects "
    "between_time at_time tz_convert tz_localize _accum_func"
)
_GROUPED: Final = (
    "agg aggregate transform filter apply value_counts nunique unique idxmin idxmax nlargest nsmallest describe _agg_general "
    "_cython_agg_general _cython_transform _python_apply_general count size ngroup cumcount head tail nth rank shift quantile std "
    "get_group"
)
_STRINGS: Final = (
    "__init__ capitalize casefold cat center contains count decode encode endswith extract extractall find findall fullmatch get "
    "get_dummies isalnum isalpha isdigit isnumeric join len ljust lower lstrip match normalize pad partition removeprefix "
    "removesuffix repeat replace rfind rjust rpartition rsplit rstrip slice slice_replace split startswith strip swapcase title "
    "translate upper wrap zfill"
)
_DELEGATING: Final = "_delegate_property_get _delegate_method"
_PANDAS_FUNCTIONS: Final = (
    "concat crosstab cut date_range factorize get_dummies json_normalize melt merge merge_asof merge_ordered "
    "pivot_table qcut to_datetime to_numeric to_timedelta unique read_csv read_excel read_feather "
    "read_json read_parquet read_pickle read_sql read_sql_query read_sql_table read_table"
)
_PANDAS_WRITING: Final = (
    "to_csv to_dict to_excel to_feather to_html to_json to_list to_markdown to_parquet to_pickle to_records "
    "to_sql to_string tolist"
)


_POLARS_FRAME: Final = (
    "__init__ _comp corr describe drop drop_nans drop_nulls equals explode extend fill_nan fill_null "
    "filter gather gather_every group_by group_by_dynamic hash_rows hstack interpolate is_duplicated "
    "is_unique join join_asof join_where map_columns map_rows max mean median min n_unique null_count "
    "partition_by pivot quantile rolling rows_by_key sample select select_seq shift sort sql std sum "
    "to_dummies to_numpy to_pandas to_arrow to_torch to_jax top_k bottom_k transpose unique unnest unpivot unstack update "
    "upsample var vstack with_columns with_columns_seq with_row_index cast"
)
# The other methods of a `Series` call those of a `DataFrame`.
_POLARS_SERIES: Final = (
    "__init__ _arithmetic _comp all any cast describe filter map_elements max mean median min n_unique "
    "quantile sample shift sort std sum to_dummies to_frame to_numpy to_pandas to_arrow to_torch unique value_counts var"
)
_POLARS_GROUPED: Final = "agg map_groups head tail all len first last max mean median min n_unique quantile sum"
_POLARS_LAZY: Final = (
    "collect _collect_eager collect_schema filter group_by join select sort with_columns sink_csv sink_ipc "
    "sink_ndjson sink_parquet"
)
_POLARS_FUNCTIONS: Final = (
    "collect_all concat from_arrow from_dict from_dicts from_numpy from_pandas from_records json_normalize read_avro "
    "read_csv read_delta read_excel read_ipc read_ipc_stream read_json read_ndjson read_parquet "
    "scan_csv scan_ipc scan_ndjson scan_parquet select sql"
)
_POLARS_WRITING: Final = (
    "rows to_dict to_dicts serialize write_avro write_csv write_ipc write_ipc_stream write_json "
    "write_ndjson write_parquet"
)
_TRANSFORMS = "Compose ToTensor PILToTensor ToPILImage RandomChoice RandomOrder"
_IMAGE_FUNCTIONS = (
    "read_file read_image decode_image decode_jpeg decode_png decode_gif decode_webp decode_avif decode_heic "
    "write_file encode_jpeg encode_png write_jpeg write_png"
)


class _Thread(threading.local):
    """The request with an open operation: those inside belong to it, and would be hundreds of marks."""

    marks: Marks | None = None


_thread: Final = _Thread()


class _TableCall(LongCall):
    __slots__ = ()

    def __init__(self, marks: Marks, stage: str) -> None:
        self.marks, self.stage = marks, stage
        # Not a context variable: a small operation takes a microsecond, and no operation waits for a task.
        _thread.marks = marks
        self.started = clock()

    def end(self) -> None:
        super().end()
        _thread.marks = None


def _enter(stage: str) -> object:
    marks = current.get()
    return None if marks is None or _thread.marks is marks or inside.get() else _TableCall(marks, stage)


class TableInstrumentor(CallsInstrumentor):
    """Base class of a library of tables: the outermost operation is a stage, except inside of a model call."""

    def wrapper(self, stage: str) -> Probed:
        return Probed.until_end(functools.partial(_enter, stage))


class PandasInstrumentor(TableInstrumentor):
    """pandas: times the operations of tables, such as those that compute features.

    - Operations inside an operation, such as `apply`, or inside a prediction belong to it.
    - Stagelens does not read tables or names of files.
    """

    library = "pandas"
    title = "pandas"
    stages = {
        "preprocess": "operations of `DataFrame` and `Series`: construction, selection, arithmetic, `apply`, `groupby`, `merge`, "
        "windows, `.str`, `.dt`; and functions such as `concat`, `get_dummies`, `to_datetime` and `read_csv`; from 20 µs, also "
        "after a prediction",
        "serialize": "`to_dict`, `to_json`, `to_csv`, `to_parquet`, `tolist` and similar methods, from 20 µs",
    }
    not_timed = (
        "iteration over a table, such as `itertuples`: your code runs between the rows",
        "the methods of an `Index`, and attributes such as `df.column`, except the calls inside",
    )
    tested = {"pandas": "3.1.1"}
    calls = (
        ("pandas", "preprocess", _PANDAS_FUNCTIONS),
        ("pandas.core.frame:DataFrame", "preprocess", _FRAME),
        ("pandas.core.frame:DataFrame", "serialize", _PANDAS_WRITING),
        ("pandas.core.series:Series", "preprocess", _SERIES),
        ("pandas.core.series:Series", "serialize", _PANDAS_WRITING),
        ("pandas.core.generic:NDFrame", "preprocess", _ALL),
        ("pandas.core.generic:NDFrame", "serialize", _PANDAS_WRITING),
        ("pandas.core.base:IndexOpsMixin", "preprocess", "value_counts nunique to_numpy factorize"),
        ("pandas.core.base:IndexOpsMixin", "serialize", "tolist"),
        ("pandas.core.indexing:_LocationIndexer", "preprocess", "__getitem__ __setitem__"),
        ("pandas.core.groupby.groupby:GroupBy", "preprocess", _GROUPED),
        ("pandas.core.groupby.groupby:BaseGroupBy", "preprocess", "get_group"),
        ("pandas.core.groupby.generic:DataFrameGroupBy", "preprocess", _GROUPED),
        ("pandas.core.groupby.generic:SeriesGroupBy", "preprocess", _GROUPED),
        ("pandas.core.window.rolling:BaseWindow", "preprocess", "aggregate _apply _apply_pairwise"),
        ("pandas.core.window.rolling:Window", "preprocess", "_apply"),
        ("pandas.core.window.rolling:BaseWindowGroupby", "preprocess", "_apply _apply_pairwise"),
        ("pandas.core.resample:Resampler", "preprocess", "aggregate apply transform _groupby_and_aggregate"),
        ("pandas.core.resample:DatetimeIndexResampler", "preprocess", "_downsample _upsample"),
        ("pandas.core.strings.accessor:StringMethods", "preprocess", _STRINGS),
        ("pandas.core.indexes.accessors:Properties", "preprocess", _DELEGATING),
        ("pandas.core.indexes.accessors:CombinedDatetimelikeProperties", "preprocess", "__new__"),
        ("pandas.core.arrays.categorical:CategoricalAccessor", "preprocess", f"__init__ {_DELEGATING}"),
    )


class PolarsInstrumentor(TableInstrumentor):
    """polars: times the operations of tables, such as those that compute features.

    - Operations inside an operation, or inside a prediction, belong to it. The threads of polars work inside the call.
    - Stagelens does not read tables or names of files.
    """

    library = "polars"
    title = "polars"
    stages = {
        "preprocess": "operations of `DataFrame` and `Series`, `agg` of a `group_by`, `collect` of a `LazyFrame`, and functions "
        "such as `concat` and `read_csv`; from 20 µs, also after a prediction",
        "serialize": "`to_dict`, `to_dicts`, `write_json`, `write_csv`, `write_parquet` and similar methods, from 20 µs",
    }
    not_timed = (
        "expressions such as `pl.col('a') + 1`, which only describe an operation",
        "small operations, such as `df['column']`, `head` and `row`; and `collect_async`",
        "iteration over a table, such as `iter_rows`: your code runs between the rows",
    )
    tested = {"polars": "2.1.0"}
    calls = (
        ("polars", "preprocess", _POLARS_FUNCTIONS),
        ("polars.dataframe.frame:DataFrame", "preprocess", _POLARS_FRAME),
        ("polars.dataframe.frame:DataFrame", "serialize", _POLARS_WRITING),
        ("polars.dataframe.group_by:GroupBy", "preprocess", _POLARS_GROUPED),
        ("polars.dataframe.group_by:DynamicGroupBy", "preprocess", _POLARS_GROUPED),
        ("polars.dataframe.group_by:RollingGroupBy", "preprocess", _POLARS_GROUPED),
        ("polars.lazyframe.frame:LazyFrame", "preprocess", _POLARS_LAZY),
        ("polars.series.series:Series", "preprocess", _POLARS_SERIES),
        ("polars.series.series:Series", "serialize", "to_list"),
    )


class OutsideInstrumentor(CallsInstrumentor):
    """Base class of a library of functions that are called beside a model: calls inside a module of torch belong to the module."""

    def wrapper(self, stage: str) -> Probed:
        # Loaded only with these libraries, of which torch is the base.
        from .torch.models import outside  # noqa: PLC0415

        return Probed.until_end(functools.partial(outside, timed_call(stage).probe.enter))


class TorchvisionInstrumentor(OutsideInstrumentor):
    """torchvision: times transforms, and decoding and encoding of images.

    - Transforms are modules, except some of version 1. The [PyTorch](torch.md) module times them.
    - A call below 20 µs is not recorded. `torch.compile` and `torch.jit.script` work unchanged.
    - Stagelens does not read pixels or names of files.
    """

    library = "torchvision"
    title = "torchvision"
    stages = {
        "preprocess": "transforms of versions 1 and 2, `Compose`, and the functions of `torchvision.io` that read, decode, encode or write an image"
    }
    not_timed = ("`torchvision.transforms.functional` outside of a transform, and videos",)
    tested = {"torchvision": "0.28.0"}
    calls = (
        (f"torchvision.transforms.transforms:{_TRANSFORMS}", "preprocess", "__call__"),
        ("torchvision.io.image", "preprocess", _IMAGE_FUNCTIONS),
    )


class TorchaudioInstrumentor(OutsideInstrumentor):
    """torchaudio: times transforms, resampling, features, and decoding and encoding of audio.

    - Transforms are modules. The [PyTorch](torch.md) module times them.
    - A call below 20 µs is not recorded. `torch.compile` and `torch.jit.script` work unchanged.
    - Stagelens does not read samples or names of files.
    """

    library = "torchaudio"
    title = "torchaudio"
    stages = {
        "preprocess": "`load`, `save`, transforms, `resample`, `spectrogram`, `pitch_shift`, `loudness` and similar functions, and `fbank` and `mfcc` of `compliance.kaldi`"
    }
    not_timed = ("the other functions of `torchaudio.functional`, such as filters",)
    tested = {"torchaudio": "2.11.0"}
    calls = (
        ("torchaudio", "preprocess", "load save"),
        ("torchaudio.functional.functional", "preprocess", "resample speed pitch_shift loudness add_noise"),
        ("torchaudio.functional.functional", "preprocess", "spectrogram inverse_spectrogram griffinlim phase_vocoder"),
        ("torchaudio.compliance.kaldi", "preprocess", "fbank mfcc spectrogram"),
    )


class TokenizersInstrumentor(OutsideInstrumentor):
    """Hugging Face Tokenizers: times the encoding and decoding of text.

    - The tokenizers of [Transformers](transformers.md) call these methods: together they are one stage. Calls inside a model or `generate` belong to it.
    - A call below 20 µs is not recorded.
    - Stagelens does not read texts or token ids.
    """

    library = "tokenizers"
    title = "Tokenizers"
    stages = {
        "tokenize": "`encode`, `encode_batch` and `encode_batch_fast` of a `Tokenizer`",
        "postprocess": "`decode` and `decode_batch` of a `Tokenizer`",
    }
    not_timed = ("`async_encode` and the other methods of asyncio: they run in threads of Rust",)
    tested = {"tokenizers": "0.23.3"}
    calls = (
        ("tokenizers:Tokenizer", "tokenize", "encode encode_batch encode_batch_fast"),
        ("tokenizers:Tokenizer", "postprocess", "decode decode_batch"),
    )
