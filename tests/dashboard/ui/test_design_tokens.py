"""The palette: every stage has a hue, neighbouring hues are distinguishable, and texts are readable."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest

from stagelens import dashboard
from stagelens.core.stages import STAGES, Stage
from stagelens.dashboard.ui.design_tokens import hue

Colour = np.ndarray
CSS = (Path(dashboard.__path__[0]) / "assets" / "tokens.css").read_text()
PAIRS = dict(re.findall(r"--([\w-]+): light-dark\((#\w{6}, #\w{6})\)", CSS))
THEMES = ("light", "dark")

# Machado, Oliveira, Fernandes, "A Physiologically-based Model for Simulation of Color Vision Deficiency", 2009, severity 1.
VISION = {
    "normal": np.eye(3),
    "protan": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deutan": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritan": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
# Ottosson, "A perceptual color space for image processing", 2020.
LMS = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def colour(token: str, theme: str) -> str:
    return PAIRS[token].split(", ")[THEMES.index(theme)]


def linear(value: str) -> Colour:
    channels = np.array([int(value[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def distance(one: str, other: str, vision: str) -> float:
    """Return the distance in OKLab, times 100."""
    seen = [LAB @ np.cbrt(LMS @ np.clip(VISION[vision] @ linear(each), 0, 1)) for each in (one, other)]
    return 100 * float(np.linalg.norm(seen[0] - seen[1]))


def contrast(one: str, other: str) -> float:
    """Return the contrast of WCAG 2."""
    light, dark = sorted((float(linear(each) @ [0.2126, 0.7152, 0.0722]) for each in (one, other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_every_stage_has_a_colour_and_a_class() -> None:
    missing = [stage.key for stage in STAGES if f"st-{stage.key}" not in PAIRS or f".st-{stage.key} " not in CSS]

    assert missing == []
    assert all(f"st-{hue(name)}" in PAIRS for name in ("rerank", "<b>", "__other__", "überprüfen"))


def close(pairs: Iterable[tuple[Stage, Stage]], theme: str, vision: str, least: float) -> list[tuple[str, str]]:
    return [
        (one.key, other.key)
        for one, other in pairs
        if distance(colour(f"st-{one.key}", theme), colour(f"st-{other.key}", theme), vision) < least
    ]


@pytest.mark.parametrize("theme", THEMES)
def test_stages_have_distinguishable_colours(theme: str) -> None:
    assert close(combinations(STAGES, 2), theme, "normal", 10.5) == []
    for vision in VISION:
        assert close(pairwise(STAGES), theme, vision, 6.8) == [], vision


@pytest.mark.parametrize("theme", THEMES)
def test_text_has_enough_contrast_on_every_background(theme: str) -> None:
    pairs = [(ink, ground) for ink in ("ink", "text", "muted", "faint") for ground in ("surface", "page", "sunken")]
    pairs += [(kind, f"{kind}bg") for kind in ("good", "warn", "bad")]

    assert [pair for pair in pairs if contrast(*(colour(each, theme) for each in pair)) < 4.5] == []
