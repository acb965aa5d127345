"""Packages of the wheel. This folder is `stagelens`, so their names need a prefix that pyproject.toml cannot express."""

from setuptools import find_packages, setup

PACKAGES = ["stagelens", *(f"stagelens.{name}" for name in find_packages(exclude=["tests*", "benchmarks*"]))]

# With its own name, this file stays out of the wheel.
setup(packages=PACKAGES, script_name="setup.py")
