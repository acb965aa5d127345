"""Functions, flame graphs and growth from the samples of the tail profiler."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.analysis.profile import (
    MIN_SAMPLED,
    CodeNode,
    FunctionGrowth,
    FunctionTime,
    ProfileBand,
    flame_graph,
    functions,
    grown_functions,
    main_function,
    profile_of_request,
)
from stagelens.core.code_stack import CodeFrame, stack_key

PREDICT = CodeFrame("serve", "predict", "serve.py", 30)
RESIZE = CodeFrame("serve", "resize", "serve.py", 41)
PILLOW = CodeFrame("PIL.Image", "Image.resize", "PIL/Image.py", 2100)
UVICORN = CodeFrame("uvicorn.protocols", "run_asgi", "uvicorn/protocols/http.py", 400)
FRAMES = st.lists(st.sampled_from([PREDICT, RESIZE, PILLOW, UVICORN]), min_size=1, max_size=6)


def band(stacks: dict[tuple[CodeFrame, ...], float], stage: str = "preprocess") -> ProfileBand:
    """Return a band with *stacks* of one stage, in seconds."""
    total = sum(stacks.values())
    keys = {stack_key(stage, frames): seconds for frames, seconds in stacks.items()}
    return ProfileBand(total, 50, {stage: total}, keys)


TAIL = band({(UVICORN, PREDICT, RESIZE, PILLOW): 0.18, (UVICORN, PREDICT, RESIZE): 0.01, (UVICORN, PREDICT): 0.01})
MEDIAN = band({(UVICORN, PREDICT, RESIZE, PILLOW): 0.004, (UVICORN, PREDICT): 0.016})


def test_a_library_counts_for_the_innermost_function_of_the_user() -> None:
    resize, predict = functions(TAIL, MEDIAN)

    assert (resize.title, resize.tail_self_ms, resize.median_self_ms) == (
        "resize (serve.py:41)",
        pytest.approx(190),
        pytest.approx(4),
    )
    assert resize.growth_ms == pytest.approx(186)
    assert resize.share == pytest.approx(0.95)
    assert (predict.tail_self_ms, predict.tail_total_ms) == (pytest.approx(10), pytest.approx(200))
    assert resize.stage_option == "--stage preprocess=serve:resize"


def test_a_function_is_named_with_its_wait() -> None:
    wait, lock = CodeFrame("threading", "Event.wait", "threading.py", 604), CodeFrame("_thread", "with model_lock")
    stacks = {
        (RESIZE, RESIZE, wait): 0.1,
        (RESIZE,): 0.01,
        (PREDICT, lock): 0.04,
        (PREDICT, PILLOW): 0.06,
        (wait,): 0.01,
    }

    assert {function.title for function in functions(band(stacks))} == {
        "resize (serve.py:41), waiting in Event.wait",
        "predict (serve.py:30)",
        "Event.wait (threading.py:604)",
    }
    assert {function.wait for function in functions(band({(PREDICT, lock): 0.1}))} == {"with model_lock"}


def test_recursion_counts_once() -> None:
    inner = replace_line(RESIZE, 44)
    (found,) = functions(band({(RESIZE, RESIZE, inner): 0.1}))

    assert (found.tail_total_ms, found.tail_self_ms, found.line) == (pytest.approx(100), pytest.approx(100), 44)


def replace_line(frame: CodeFrame, line: int) -> CodeFrame:
    return frame._replace(line=line)


@given(stacks=st.dictionaries(FRAMES.map(tuple), st.floats(0.001, 10), min_size=1, max_size=8))
def test_self_times_and_trees_add_up(stacks: dict[tuple[CodeFrame, ...], float]) -> None:
    tail = band(stacks)
    found = functions(tail)
    tree = flame_graph("preprocess", tail)

    assert sum(each.tail_self_ms for each in found) == pytest.approx(tail.latency * 1e3)
    assert all(each.tail_total_ms >= each.tail_self_ms - 1e-6 for each in found)
    assert tree.tail_ms == pytest.approx(tail.latency * 1e3)
    assert_children_fit(tree)


def assert_children_fit(node: CodeNode) -> None:
    """Assert that the children of each node take at most its time."""
    assert sum(child.tail_ms for child in node.children) <= node.tail_ms * (1 + 1e-9)
    for child in node.children:
        assert_children_fit(child)


def test_a_flame_graph_has_both_percentiles() -> None:
    tree = flame_graph("preprocess", TAIL, MEDIAN)
    predict = tree.children[0].children[0]
    resize = predict.children[0]

    assert (tree.name, tree.median_ms) == ("preprocess", pytest.approx(20))
    assert (predict.name, predict.place, predict.tail_ms) == ("serve:predict", "serve.py:30", pytest.approx(200))
    assert (resize.tail_ms, resize.median_ms) == (pytest.approx(190), pytest.approx(4))
    assert flame_graph("forward", TAIL).children == []


def growth_sentence(before: ProfileBand, after: ProfileBand, stage: str) -> str:
    """Sentence of the function that made *stage* grow; "" without one."""
    found = grown_functions(before, after)
    return next((each.sentence for each in found if each.stage == stage and each.is_cause), "")


def test_growth_between_two_selections_is_a_sentence() -> None:
    after = band({(PREDICT, RESIZE): 0.1856, (PREDICT,): 0.0344})
    before = band({(PREDICT, RESIZE): 0.02, (PREDICT,): 0.02})

    assert growth_sentence(before, after, "preprocess") == "preprocess grew +180 ms, 92 % in resize (serve.py:41)"
    assert [function.title for function in grown_functions(before, after)] == [
        "resize (serve.py:41)",
        "predict (serve.py:30)",
    ]
    assert growth_sentence(after, before, "preprocess") == ""
    assert growth_sentence(before, after, "forward") == ""


PREPARE = CodeFrame("serve", "prepare", "serve.py", 35)
CUT = CodeFrame("serve", "cut", "serve.py", 50)


@pytest.mark.parametrize(
    ("stacks", "named"),
    [
        # The innermost one with at least 80 %, with what it calls.
        (
            {(PREDICT, PREPARE, RESIZE): 0.05, (PREDICT, PREPARE, CUT): 0.04, (PREDICT,): 0.01},
            ("prepare (serve.py:35)", 0.9),
        ),
        ({(PREDICT, PREPARE, RESIZE): 0.09, (PREDICT, PREPARE, CUT): 0.01}, ("resize (serve.py:41)", 0.9)),
        # The outermost one has all of the time, which says nothing.
        ({(PREDICT, RESIZE): 0.06, (PREDICT, CUT): 0.04}, ("resize (serve.py:41)", 0.6)),
        ({(PREDICT, RESIZE): 0.04, (PREDICT, CUT): 0.04, (PREDICT,): 0.02}, None),
        # Unless it does the work itself.
        ({(PREDICT, RESIZE): 0.01, (PREDICT,): 0.09}, ("predict (serve.py:30)", 1.0)),
    ],
)
def test_the_main_function_of_a_stage(
    stacks: dict[tuple[CodeFrame, ...], float], named: tuple[str, float] | None
) -> None:
    tail = band(stacks)
    found = main_function(functions(tail), 100)
    before = band({(PREDICT,): 1e-9})

    assert (found and (found[0].title, pytest.approx(found[1]))) == named
    expected = f"preprocess grew +100 ms, {named[1] * 100:.0f} % in {named[0]}" if named else ""
    assert growth_sentence(before, tail, "preprocess") == expected
    causes = [function for function in grown_functions(before, tail) if function.is_cause]
    assert [(cause.title, pytest.approx(cause.share)) for cause in causes] == ([named] if named else [])


def test_too_few_samples_say_nothing() -> None:
    few = replace(TAIL, sampled=MIN_SAMPLED - 1)

    assert functions(few, MEDIAN) == []
    assert flame_graph("preprocess", few, MEDIAN).children == []
    assert grown_functions(few, TAIL) == grown_functions(TAIL, few) == []
    assert {function.median_self_ms for function in functions(TAIL, few)} == {None}
    assert {function.growth_ms for function in functions(TAIL, few)} == {None}


@pytest.mark.parametrize(
    ("module", "function", "stage", "expected"),
    [
        ("serve", "Model.predict", "preprocess", "--stage preprocess=serve:Model.predict"),
        ("app.serve", "fetch", "handler", "--stage fetch=app.serve:fetch"),
        ("app.serve", "load", "handler", "--stage preprocess=app.serve:load"),
        ("serve", "predict", "forward", ""),
        ("serve", "make.<locals>.run", "preprocess", ""),
        ("serve", "<lambda>", "preprocess", ""),
        ("serve", "<module>", "preprocess", ""),
        ("__main__", "run", "preprocess", ""),
        ("", "run", "preprocess", ""),
    ],
)
def test_only_functions_with_an_import_name_offer_a_stage(
    module: str, function: str, stage: str, expected: str
) -> None:
    found = FunctionTime(stage, module, function, "serve.py", 1, False, 1, 1, None, None, 1)

    assert found.stage_option == expected


def test_stacks_beyond_the_cap_are_no_function() -> None:
    rest = ProfileBand(0.1, 50, {"preprocess": 0.1}, {"preprocess;:__other__": 0.1})

    assert functions(rest) == []
    assert flame_graph("preprocess", rest).children[0].name == "__other__"


def test_the_profile_of_a_request_survives_garbage() -> None:
    text = (
        "1200 handler;serve:predict@serve.py:30\n800 handler;serve:predict@serve.py:30\n-5 a\n\nx y\n9\n"
        + "9" * 5000
        + " z"
    )

    assert profile_of_request(text) == {"handler;serve:predict@serve.py:30": 2000}


def test_the_growth_of_a_function_names_that_of_its_stage() -> None:
    resize = FunctionGrowth("preprocess", "resize (serve.py:41)", 2.0, 166.0, 178.0, is_cause=True, quantile=0.99)
    more = replace(resize, after_ms=251.0, stage_growth_ms=142.0, quantile=0.0)

    assert resize.amount_words == "+164 ms of preprocess +178 ms at p99"
    assert resize.sentence == "preprocess grew +178 ms at p99, 92 % in resize (serve.py:41)"
    assert more.amount_words == "+249 ms of preprocess +142 ms, other functions became faster"
