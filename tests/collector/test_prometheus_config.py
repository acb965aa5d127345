"""Section `prometheus:` of the collector's file: parsing and errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from stagelens.collector.config import read_collector_file
from stagelens.collector.prometheus_config import PrometheusSettings
from stagelens.core.errors import ConfigError


def written(folder: Path, section: str) -> Path:
    path = folder / "collector.yaml"
    path.write_text(f"prometheus: {section}\n")
    return path


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ("", PrometheusSettings()),
        ("{labels: [route, version]}", PrometheusSettings(labels=("version", "route"))),
        ("{labels: []}", PrometheusSettings(labels=())),
        ("{histograms: 0}", PrometheusSettings(histograms=0)),
        ("{buckets: [1.5, 0.3, 0.3, 2]}", PrometheusSettings(buckets=(0.3, 1.5, 2.0))),
    ],
)
def test_written_settings_are_in_force(tmp_path: Path, section: str, expected: PrometheusSettings) -> None:
    assert read_collector_file(written(tmp_path, section), {}).prometheus == expected


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("{labels: [verson]}", "prometheus.labels[0] is 'verson'; write any of version, environment,"),
        ("{labels: route}", "prometheus.labels is 'route'; write a list"),
        ("{labels: [[route]]}", "prometheus.labels[0] is a list; write any of"),
        ("{histograms: yes}", "prometheus.histograms is True; write a whole number"),
        ("{histograms: -1}", "prometheus.histograms is -1; write"),
        ("{buckets: 0.3}", "prometheus.buckets is 0.3; write a list"),
        (f"{{buckets: {[*range(1, 32)]}}}", "prometheus.buckets has 31 bounds; write at most 30, such as [0.3, 1.5]"),
        ("{buckets: [0]}", "prometheus.buckets[0] is 0; write seconds from 1e-06 to 131072, such as 0.3"),
        ("{buckets: [.nan, .inf, a, true]}", "prometheus.buckets[2] is 'a'; write seconds"),
        ("{rules: []}", "prometheus.rules is not known"),
        ("[1]", "prometheus is a list; write keys and values, such as `labels: [version, route]`"),
    ],
)
def test_an_error_is_named_with_its_fix(tmp_path: Path, section: str, message: str) -> None:
    path = written(tmp_path, section)
    with pytest.raises(ConfigError) as raised:
        read_collector_file(path, {})

    assert f"{path}:1: " in str(raised.value)
    assert message in str(raised.value)
