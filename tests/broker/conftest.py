"""Tests in this directory run against a real Apache Kafka; see the fixtures in tests/conftest.py."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "/tests/broker/" in item.path.as_posix():
            item.add_marker(pytest.mark.broker)
