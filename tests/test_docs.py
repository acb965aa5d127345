"""The documentation matches the code."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from itertools import count
from pathlib import Path

import pytest
import yaml
from packaging.version import Version

from docs import generate
from stagelens.alerts.config import AlertsConfig
from stagelens.alerts.delivery.outbox import GIVE_UP_SECONDS
from stagelens.collector.config import CollectorConfig
from stagelens.core.histogram import MAX_RELATIVE_ERROR
from stagelens.core.settings import schema
from stagelens.core.settings.schema import Setting
from stagelens.core.stages import BY_KEY
from stagelens.dashboard.config import DashboardConfig
from stagelens.instrumentors.bootstrap import LIBRARIES, Library
from stagelens.instrumentors.config import AgentConfig
from tests.support.tiers import tier_of_file

ROOT = Path(__file__).parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
PARTS = ("alerts", "analysis", "collector", "core", "dashboard", "instrumentors", "questions", "store")
# Set by `stagelens run` and `doctor` for their own children; no settings.
INTERNAL = {"STAGELENS_DOCTOR", "STAGELENS_RUN_PID"}


def _settings_in_code() -> set[str]:
    sources = [ROOT / "__main__.py", *(path for part in PARTS for path in (ROOT / part).rglob("*.py"))]
    return {name for path in sources for name in re.findall(r'"(STAGELENS_[A-Z0-9_]+)"', path.read_text())} - INTERNAL


def test_every_setting_is_documented_and_every_documented_one_exists() -> None:
    documented = set(re.findall(r"`(STAGELENS_[A-Z0-9_]+)`", (ROOT / "docs" / "configuration.md").read_text()))

    assert documented == _settings_in_code()


@pytest.mark.parametrize(
    ("read", "settings"),
    [
        (AgentConfig.from_env, schema.AGENT),
        (CollectorConfig.from_env, (*schema.STORE, *schema.COLLECTOR)),
        (DashboardConfig.from_env, schema.DASHBOARD),
        (
            lambda env: AlertsConfig.from_env(env).model_copy(update={"env": {}}),
            (*schema.ALERTS, *schema.ALERT_METRICS),
        ),
    ],
    ids=["agent", "collector", "dashboard", "alerts"],
)
def test_the_default_that_is_documented_is_the_one_that_holds(
    read: Callable[[Mapping[str, str]], object], settings: Sequence[Setting]
) -> None:
    written = {
        setting.variable: setting.default for setting in settings if setting.default and " " not in setting.default
    }

    for variable, default in written.items():
        assert read({variable: default}) == read({}), variable


def test_links_between_pages_lead_somewhere() -> None:
    missing = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in PAGES
        for link in re.findall(r"\]\(([^)#]+)|^\[[^\]]+\]: ([^\s#]+)", page.read_text(), re.MULTILINE)
        if "://" not in (target := "".join(link)) and not page.parent.joinpath(target).exists()
    ]

    assert missing == []


def test_links_to_headings_name_a_heading() -> None:
    code = [
        path
        for part in (*PARTS, "cli", "helm", "examples")
        for path in sorted((ROOT / part).rglob("*"))
        if path.suffix in {".md", ".py", ".tpl", ".txt", ".yaml", ".yml"}
    ]
    links = [
        (path, target, anchor)
        for path in (*PAGES, *code)
        for target, anchor in re.findall(r"([^\s\"'`(<>]*\.md|(?<=\]\())#([\w-]+)", path.read_text())
        if "://" not in target
    ]
    missing = [
        f"{path.relative_to(ROOT)}: {target}#{anchor}"
        for path, target, anchor in links
        if not any(anchor in _anchors(page) for page in _candidates(path, target))
    ]

    assert len(links) > 50
    assert missing == []


def _candidates(path: Path, target: str) -> list[Path]:
    """Return the pages that *target* in the file *path* can mean: code names them from the root or from `docs/`."""
    if not target:
        return [path]
    folders = (path.parent,) if path.suffix == ".md" else (ROOT, ROOT / "docs")
    return [page for folder in folders if (page := folder / target).exists()]


def _anchors(page: Path) -> set[str]:
    text = re.sub(r"^ *(```|~~~).*?^ *\1", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    anchors = set[str]()
    for heading in re.findall(r"^#{1,6} +(.+?) *$", text, re.MULTILINE):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        anchors.add(next(name for name in _numbered(slug) if name not in anchors))
    return anchors


def _numbered(slug: str) -> Iterator[str]:
    """Yield `slug`, `slug-1`, `slug-2`, …."""
    yield slug
    for number in count(1):
        yield f"{slug}-{number}"


@pytest.mark.stacks
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    command = ("-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet", str(ROOT / "docs"), str(tmp_path))
    done = subprocess.run([sys.executable, *command], check=False, capture_output=True, text=True)

    assert done.stderr == ""
    assert done.returncode == 0
    assert "Get started" in (tmp_path / "index.html").read_text()


def test_generated_pages_are_current() -> None:
    written, docs = generate.pages(), ROOT / "docs"

    assert {page: (docs / page).read_text() for page in written} == written
    assert {f"libraries/{path.name}" for path in (docs / "libraries").glob("*.md")} <= written.keys()


def test_each_test_of_a_stack_exists() -> None:
    stacks = yaml.safe_load((ROOT / "docs" / "libraries" / "stacks.yaml").read_text())

    assert [stack["name"] for stack in stacks if "test" in stack and not (ROOT / stack["test"]).is_file()] == []
    assert all(("test" in stack) != ("not_run" in stack) for stack in stacks)


def test_start_pages_show_each_file_of_their_example() -> None:
    for page in sorted((ROOT / "docs" / "start").glob("*.md")):
        text = page.read_text()
        folder = ROOT / "examples" / "start" / page.stem
        names = [str(path.relative_to(ROOT)) for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"]
        hidden = [name for name in names if "/." not in name and f"<!-- file: {name} -->" not in text]

        assert hidden == [], page.name
        assert "```{" not in text, page.name


def test_every_attack_names_a_test_that_tries_it() -> None:
    text = (ROOT / "docs" / "design" / "attacks.md").read_text()
    path, missing = "", list[str]()
    for named in re.findall(r"`((?:[\w/]+\.py|…)(?:::\w+)?)`", text):
        file, _, test = named.partition("::")
        path = path if file == "…" else file
        if f"def {test}" not in (ROOT / "tests" / path).read_text():
            missing.append(named)

    assert path
    assert missing == []


def test_every_test_named_in_the_documentation_exists() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    table = text[text.index("| promise |") : text.index("## Packages")]
    rows = [line.split("|")[2:4] for line in table.splitlines()[2:] if line]
    first, others = (
        [ROOT / "tests" / name for cell in cells for name in re.findall(r"`([\w/]+\.py)`", cell)]
        for cells in zip(*rows, strict=True)
    )

    assert len(first) > 5
    assert [path for path in (*first, *others) if not path.exists()] == []
    assert [path for path in first if tier_of_file(path) != "first"] == []


def test_every_python_file_that_documents_name_is_there() -> None:
    folders = [path for path in ROOT.iterdir() if path.is_dir() and path.name[0] != "."]
    known = {path.name for paths in (ROOT.glob("*.py"), *(each.rglob("*.py") for each in folders)) for path in paths}
    missing = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / "docs").rglob("*.md"))
        for name in re.findall(r"`[\w/]*?(\w+\.py)`", path.read_text())
        if name not in known
    ]

    assert missing == []


# Distributions they name are installed for the second tier.
HEAVY = {"cv2", "onnxruntime", "sentence_transformers", "sklearn", "torch", "tornado", "tritonclient"}


@pytest.mark.parametrize(
    "library",
    [
        pytest.param(library, id=library.trigger, marks=[pytest.mark.stacks] if library.trigger in HEAVY else [])
        for library in LIBRARIES
    ],
)
def test_every_library_declares_what_it_times(library: Library) -> None:
    cls = library.load()

    assert cls.title
    assert set(cls.stages) <= set(BY_KEY)
    assert cls.tested or cls.library.partition(".")[0] in sys.stdlib_module_names
    for distribution, tested in cls.tested.items():
        assert Version(tested) <= Version(_installed(distribution))


def _installed(distribution: str) -> str:
    beside = [
        path.read_text()
        for folder in ("tests", "benchmarks")
        for path in (ROOT / folder).rglob("*.txt")
        if path.stem in {distribution, "around", "models", "gradio", "llama", "servers", "tensorflow"}
    ]
    pinned = re.findall(rf"^{distribution}(?:-cpu)?==(\S+)", "\n".join(beside), re.MULTILINE)
    return pinned[0] if pinned else version(distribution)


def test_the_readme_has_short_lines_and_paragraphs() -> None:
    text = re.sub(r"^```.*?^```$", "", (ROOT / "README.md").read_text(), flags=re.MULTILINE | re.DOTALL)
    paragraphs = [part.splitlines() for part in text.split("\n\n")]

    assert [line for lines in paragraphs for line in lines if len(line) > 160] == []
    assert [lines for lines in paragraphs if len(lines) > 5 and not lines[0].startswith(("|", "- ", "["))] == []


def test_the_headline_numbers_of_the_readme_are_those_of_the_code() -> None:
    readme = " ".join((ROOT / "README.md").read_text().split())
    defaults = {setting.variable: setting.default for setting in (*schema.AGENT, *schema.STORE)}
    share, time = defaults["STAGELENS_OVERHEAD_BUDGET"].split(",")
    hours = {severity: round(seconds / 3600) for severity, seconds in GIVE_UP_SECONDS.items()}

    assert f"each quantile is within {100 * MAX_RELATIVE_ERROR:.1f} % of the true value" in readme
    assert f"exceeds {share[:-1]} % or {time[:-2]} µs" in readme
    assert f"a budget of {defaults['STAGELENS_STORAGE_BUDGET'].replace('GiB', ' GiB')} by default" in readme
    assert f"sends them every {AgentConfig().interval_seconds:.0f} s" in readme
    assert f"retried for {hours['page']} hours, tickets for {hours['ticket']} hours" in readme


# The tests run only one version of these: other builds of torch for CPUs are on no index, each other one is large or has its
# own set of packages, and of libraries around the models only a few functions are patched, which are older than any of these.
SINGLE_VERSION = {
    "SQLAlchemy", "bentoml", "boto3", "catboost", "ctranslate2", "diffusers", "gradio", "hypercorn", "jax",
    "kafka-python", "keras", "kserve", "librosa", "lightgbm", "litestar", "litserve", "llama-cpp-python",
    "mlserver", "numpy", "opencv-python", "openvino", "orjson", "pandas", "pillow", "polars", "psycopg", "pydantic",
    "ray", "redis", "sanic", "scikit-learn", "sentence-transformers", "soundfile", "tensorflow-cpu", "torch",
    "torchaudio", "torchvision", "tornado", "vllm", "xgboost-cpu",
}  # fmt: skip


def test_every_library_has_a_minimum_that_is_tested() -> None:
    oldest = generate.oldest_versions()
    tested = {library.trigger: library.load().tested for library in LIBRARIES}
    main = {trigger: next(iter(versions)) for trigger, versions in tested.items() if versions}

    assert {trigger for trigger, name in main.items() if name not in oldest} == {
        trigger for trigger, name in main.items() if name in SINGLE_VERSION
    }
    for versions in tested.values():
        assert [name for name in versions if Version(oldest.get(name, versions[name])) > Version(versions[name])] == []


def test_the_minimum_of_opentelemetry_is_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    oldest = generate.oldest_versions()

    for requirement in project["dependencies"]:
        name, _, minimum = requirement.partition(">=")
        assert oldest[name] == f"{minimum}.0"


def test_every_library_is_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()

    assert [library.trigger for library in LIBRARIES if library.load().title not in readme] == []
