"""Libraries of tables, with which a service computes the features of a model.

The docstring of a class is the text of its page in the documentation.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeAlias

from ..instrumentor import CallsInstrumentor, LongCall, Probed
from ..records import Marks, clock, current
from .catalog import methods
from .model_common import inside

# Most operations of pandas end in few internal methods: all arithmetic in `_arith_method`, all reductions in `_reduce`.
_BOTH: Final = "__init__ __getitem__ __setitem__ _arith_method _cmp_method _logical_method _reduce"
_FRAME: Final = (
    f"{_BOTH} agg aggregate apply map applymap assign transform drop dropna drop_duplicates duplicated set_index reset_index "
    "sort_values sort_index merge join groupby pivot pivot_table melt stack unstack explode nlargest nsmallest corr cov "
    "count nunique idxmin idxmax mode quantile value_counts isna notna isin select_dtypes query eval insert transpose dot compare "
    "update diff shift round rename reindex from_dict from_records to_numpy values"
)
_SERIES: Final = (
    f"{_BOTH} agg aggregate apply map transform drop dropna drop_duplicates duplicated reset_index sort_values sort_index groupby "
    "unstack explode nlargest nsmallest corr cov count mode quantile unique isin between isna notna update "
    "diff round rename reindex repeat searchsorted argsort idxmin idxmax dot compare to_frame"
)
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


# Import name, stage, class, methods.
_Operations: TypeAlias = Iterable[tuple[str, str, str, str]]


def _calls(library: str, functions: str, operations: _Operations) -> Mapping[str, Mapping[str, Sequence[str]]]:
    calls: dict[str, dict[str, list[str]]] = {library: {"preprocess": functions.split()}}
    for module, stage, owner, names in operations:
        calls.setdefault(f"{library}.{module}", {}).setdefault(stage, []).extend(methods(owner, names))
    return calls


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
    stages = MappingProxyType(
        {
            "preprocess": "operations of `DataFrame` and `Series`: construction, selection, arithmetic, `apply`, `groupby`, `merge`, "
            "windows, `.str`, `.dt`; and functions such as `concat`, `get_dummies`, `to_datetime` and `read_csv`; from 20 µs, also "
            "after a prediction",
            "serialize": "`to_dict`, `to_json`, `to_csv`, `to_parquet`, `tolist` and similar methods, from 20 µs",
        }
    )
    not_timed = (
        "iteration over a table, such as `itertuples`: your code runs between the rows",
        "the methods of an `Index`, and attributes such as `df.column`, except the calls inside",
    )
    tested = MappingProxyType({"pandas": "3.1.1"})
    calls = _calls(
        "pandas",
        _PANDAS_FUNCTIONS,
        [
            ("core.frame", "preprocess", "DataFrame", _FRAME),
            ("core.frame", "serialize", "DataFrame", _PANDAS_WRITING),
            ("core.series", "preprocess", "Series", _SERIES),
            ("core.series", "serialize", "Series", _PANDAS_WRITING),
            ("core.generic", "preprocess", "NDFrame", _ALL),
            ("core.generic", "serialize", "NDFrame", _PANDAS_WRITING),
            ("core.base", "preprocess", "IndexOpsMixin", "value_counts nunique to_numpy factorize"),
            ("core.base", "serialize", "IndexOpsMixin", "tolist"),
            ("core.indexing", "preprocess", "_LocationIndexer", "__getitem__ __setitem__"),
            ("core.groupby.groupby", "preprocess", "GroupBy", _GROUPED),
            ("core.groupby.groupby", "preprocess", "BaseGroupBy", "get_group"),
            ("core.groupby.generic", "preprocess", "DataFrameGroupBy", _GROUPED),
            ("core.groupby.generic", "preprocess", "SeriesGroupBy", _GROUPED),
            ("core.window.rolling", "preprocess", "BaseWindow", "aggregate _apply _apply_pairwise"),
            ("core.window.rolling", "preprocess", "Window", "_apply"),
            ("core.window.rolling", "preprocess", "BaseWindowGroupby", "_apply _apply_pairwise"),
            ("core.resample", "preprocess", "Resampler", "aggregate apply transform _groupby_and_aggregate"),
            ("core.resample", "preprocess", "DatetimeIndexResampler", "_downsample _upsample"),
            ("core.strings.accessor", "preprocess", "StringMethods", _STRINGS),
            ("core.indexes.accessors", "preprocess", "Properties", _DELEGATING),
            ("core.indexes.accessors", "preprocess", "CombinedDatetimelikeProperties", "__new__"),
            ("core.arrays.categorical", "preprocess", "CategoricalAccessor", f"__init__ {_DELEGATING}"),
        ],
    )


class PolarsInstrumentor(TableInstrumentor):
    """polars: times the operations of tables, such as those that compute features.

    - Operations inside an operation, or inside a prediction, belong to it. The threads of polars work inside the call.
    - Stagelens does not read tables or names of files.
    """

    library = "polars"
    title = "polars"
    stages = MappingProxyType(
        {
            "preprocess": "operations of `DataFrame` and `Series`, `agg` of a `group_by`, `collect` of a `LazyFrame`, and functions "
            "such as `concat` and `read_csv`; from 20 µs, also after a prediction",
            "serialize": "`to_dict`, `to_dicts`, `write_json`, `write_csv`, `write_parquet` and similar methods, from 20 µs",
        }
    )
    not_timed = (
        "expressions such as `pl.col('a') + 1`, which only describe an operation",
        "small operations, such as `df['column']`, `head` and `row`; and `collect_async`",
        "iteration over a table, such as `iter_rows`: your code runs between the rows",
    )
    tested = MappingProxyType({"polars": "2.1.0"})
    calls = _calls(
        "polars",
        _POLARS_FUNCTIONS,
        [
            ("dataframe.frame", "preprocess", "DataFrame", _POLARS_FRAME),
            ("dataframe.frame", "serialize", "DataFrame", _POLARS_WRITING),
            ("dataframe.group_by", "preprocess", "GroupBy", _POLARS_GROUPED),
            ("dataframe.group_by", "preprocess", "DynamicGroupBy", _POLARS_GROUPED),
            ("dataframe.group_by", "preprocess", "RollingGroupBy", _POLARS_GROUPED),
            ("lazyframe.frame", "preprocess", "LazyFrame", _POLARS_LAZY),
            ("series.series", "preprocess", "Series", _POLARS_SERIES),
            ("series.series", "serialize", "Series", "to_list"),
        ],
    )
