"""Keys of call stacks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stagelens.core.code_stack import MAX_FRAMES, CodeFrame, split_stack_key, stack_key

_NAMES = st.text("abcxyz_.<>/", min_size=1, max_size=12)
_FRAMES = st.builds(CodeFrame, _NAMES, _NAMES, _NAMES, st.integers(0, 10_000))


@given(_NAMES, st.lists(_FRAMES, max_size=MAX_FRAMES))
def test_a_key_has_all_frames(stage: str, frames: list[CodeFrame]) -> None:
    assert split_stack_key(stack_key(stage, frames)) == (stage, tuple(frames))


def test_the_outer_frames_of_a_deep_stack_are_cut_off() -> None:
    frames = [CodeFrame("serve", f"f{depth}") for depth in range(2 * MAX_FRAMES)]
    assert split_stack_key(stack_key("handler", frames))[1] == tuple(frames[-MAX_FRAMES:])


@given(st.text())
def test_any_text_can_be_split(text: str) -> None:
    stage, frames = split_stack_key(text)
    assert ";" not in stage
    assert len(frames) == text.count(";")


def test_a_line_number_of_any_length_is_read() -> None:
    assert split_stack_key(f"handler;serve:resize@serve.py:{'1' * 5000}")[1][0].line == 0
