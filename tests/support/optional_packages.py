"""Hooks of pytest that skip tests of packages which are not installed.

The extra `dev` has what the core's tests need, so that they can run minutes after a clone; the extra `test` has all,
and CI installs it. A test that fails since one of the packages between the two is missing is skipped, with its name.
"""

import importlib.util
from collections.abc import Generator
from typing import Any

import pytest

OPTIONAL = (
    "cloudpickle", "datasets", "gigatoken", "jax", "matplotlib", "mistral_common", "optax",
    "orbax", "prometheus_client", "tensorboardX", "wandb",
)  # fmt: skip
MISSING = {name for name in OPTIONAL if importlib.util.find_spec(name) is None}


def missing_package(error: BaseException | None) -> str:
    """The optional package whose absence has led to an error; empty if it is another one."""
    while error is not None:
        package = (getattr(error, "name", None) or "").partition(".")[0]
        if isinstance(error, ModuleNotFoundError) and package in MISSING:
            return package
        error = error.__cause__ or error.__context__
    return ""


def _reason(package: str) -> str:
    return f"{package} is not installed: make .venv/.ready-test"


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    report = yield
    call = getattr(report, "call", None)
    if report.failed and call is not None and (package := missing_package(call.excinfo.value)):
        report.outcome = "skipped"
        report.longrepr = (str(collector.path), 0, f"Skipped: {_reason(package)}")
        del report.call
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, Any, Any]:
    return (yield from _skipping())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, Any, Any]:
    return (yield from _skipping())


def _skipping() -> Generator[None, Any, Any]:
    try:
        return (yield)
    except Exception as error:
        if package := missing_package(error):
            pytest.skip(_reason(package))
        raise
