"""CRC-32C against its published check value, and the Python version against the fast one."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from managedconsumer.wire.records import crc32c as module
from managedconsumer.wire.records.crc32c import crc32c, crc32c_pure


def test_known_values() -> None:
    """The check value of the CRC catalogue, and the vectors of RFC 3720 B.4."""
    for function in (crc32c, crc32c_pure):
        assert function(b"") == 0
        assert function(b"123456789") == 0xE3069283
        assert function(bytes(32)) == 0x8A9136AA
        assert function(b"\xff" * 32) == 0x62A8AB43
        assert function(bytes(range(32))) == 0x46DD794E


@given(data=st.binary(max_size=300), cut=st.integers(0, 300))
def test_both_agree_and_can_be_continued(data: bytes, cut: int) -> None:
    whole = crc32c(data)
    assert crc32c_pure(memoryview(data)) == whole
    assert crc32c(data[cut:], crc32c(data[:cut])) == whole
    assert crc32c_pure(data[cut:], crc32c_pure(data[:cut])) == whole


def test_the_accelerators_own(twin: ModuleType) -> None:
    """With the processor's instruction and with its tables, over every length that its three-fold loop splits."""
    function = getattr(twin, "crc32c", crc32c_pure)
    data = bytes(range(256)) * 60
    for size in [*range(70), 255, 256, 257, 767, 768, 769, 1500, 2303, 12287, 12288, 12289, 13100, 15000]:
        for start in (0, 1, 3):
            part = data[start : start + size]
            assert function(part) == crc32c(part)
            if twin.IMPLEMENTATION == "cython":
                assert function(part, 0, True) == crc32c(part)
            assert function(part[size // 2 :], function(part[: size // 2])) == crc32c(part)


def test_without_the_package_the_python_version_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "managedconsumer.wire.records._records", raising=False)
    assert module.chosen.__wrapped__() is not crc32c_pure
    monkeypatch.setitem(sys.modules, "crc32c", None)
    assert module.chosen.__wrapped__() is crc32c_pure
