"""Both implementations of the record decoder, for every test that asks for ``twin``."""

from __future__ import annotations

import os
from types import FunctionType, ModuleType

import pytest
from hypothesis import settings

from managedconsumer.wire import records


def _built() -> list[str]:
    """The implementations to test: both, or the one that MANAGEDCONSUMER_IMPL forces; a forced one must be there."""
    forced = os.environ.get(records.ENVIRONMENT_VARIABLE)
    if forced:
        records.load(forced)
        return [forced]
    try:
        records.load("cython")
    except ImportError:
        return ["python"]
    return ["python", "cython"]


def pytest_report_header() -> str:
    return f"managedconsumer records: {records.__impl__} ({records.__impl_reason__}); tested: {', '.join(_built())}"


@pytest.fixture(params=_built())
def twin(request: pytest.FixtureRequest) -> ModuleType:
    """The module of one implementation, which is really the one that its name says."""
    module = records.load(request.param)
    assert request.param == module.IMPLEMENTATION
    assert isinstance(module.RecordChunk.take, FunctionType) == (request.param == "python")
    return module


# pytest --hypothesis-profile=deep tests/wire: for an hour of waiting.
settings.register_profile("deep", max_examples=10_000, deadline=None)
