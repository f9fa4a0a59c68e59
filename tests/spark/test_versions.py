"""Older PySpark: too old ones are refused; 4.0 and 4.1 call the reader in another way, which ``Query`` can do."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from managedconsumer.errors import ConfigurationError
from managedconsumer.spark.lag import LagListener
from managedconsumer.testing import DevBroker
from tests.spark.conftest import committed, produce
from tests.spark.queries import Query
from tests.waiting import until

MakeQuery = Callable[..., Query]
MakeTopic = Callable[..., str]


@pytest.fixture
def without_admission_control(monkeypatch: pytest.MonkeyPatch) -> None:
    """As PySpark 4.0 and 4.1 do it, whichever is installed."""
    monkeypatch.setattr("tests.spark.queries.ADMISSION", False)
    monkeypatch.setattr("managedconsumer.spark.source._LIMITS", False)


def imported_without(module: str, first: str = "sys") -> str:
    code = f"import sys, {first}; sys.modules[{module!r}] = None; import managedconsumer.spark.source as s"
    code += "; print(s._LIMITS)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_pyspark_3_is_refused_and_the_error_says_which_is_needed() -> None:
    said = imported_without("pyspark.sql.datasource")
    assert "MissingPackageError: the Spark source needs PySpark 4.0 or newer and pyarrow" in said
    assert "pip install 'pyspark>=4.0' 'pyarrow>=18'" in said


def test_pyspark_without_admission_control_is_not_refused() -> None:
    assert imported_without("pyspark.sql.streaming.datasource", "pyspark.sql.datasource") == "False\n"


@pytest.mark.usefixtures("without_admission_control")
class TestWithoutAdmissionControl:
    def test_batches_are_limited_and_each_record_is_read_once(
        self, kafka44: DevBroker, topic: MakeTopic, query: MakeQuery, unique: Callable[[str], str]
    ) -> None:
        name, group = topic(kafka44, 4), unique("group")
        produce(kafka44, name, 400)
        first = query(kafka44, name, group__id=group, maxOffsetsPerTrigger="100")
        assert [len(first.batch()) for _ in range(2)] == [100, 100]
        planned = first.plan()
        assert committed(kafka44, name, group) == dict.fromkeys(range(4), 50)
        first.stop()  # the driver died before the batch ran; its checkpoint holds the plan
        after = query(kafka44, name, group__id=group, maxOffsetsPerTrigger="100", start=planned)
        after.start, before = planned, first.start
        after.reader.partitions(planned, planned)  # Spark's setLatestSeenOffset()
        after.start, after.planned = before, planned
        rows = after.execute()
        after.start = planned
        until(after.batch)
        assert after.batch() == []
        assert sorted(first.rows + rows + after.rows) == [(p, o) for p in range(4) for o in range(100)]
        assert committed(kafka44, name, group) == dict.fromkeys(range(4), 100)

    def test_a_new_query_at_the_end_of_its_topic_reads_what_comes_later(
        self, kafka44: DevBroker, topic: MakeTopic, query: MakeQuery
    ) -> None:
        name = topic(kafka44, 4)
        produce(kafka44, name, 400)
        late = query(kafka44, name, startingOffsets="latest")
        assert late.batch() == []
        assert late.reader.initialOffset() == late.start
        produce(kafka44, name, 4)
        assert sorted(until(late.batch)) == [(p, 100) for p in range(4)]

    @pytest.mark.parametrize("write", [json.dumps, str], ids=["classic", "a client of Spark Connect"])
    def test_the_lag_is_known_from_the_offset(
        self, kafka44: DevBroker, topic: MakeTopic, query: MakeQuery, write: Callable[[Any], str]
    ) -> None:
        name = topic(kafka44, 4)
        produce(kafka44, name, 400)
        limited = query(kafka44, name, maxOffsetsPerTrigger="100")
        limited.batch()
        found: list[int] = []
        listener = LagListener(lambda source: found.append(source.lag_messages))
        text = write(limited.start)
        source = SimpleNamespace(endOffset=text, latestOffset=text)
        progress = SimpleNamespace(id="q", name=None, batchId=0, timestamp="2026-11-25T00:00:00.000Z", sources=[source])
        listener.onQueryProgress(SimpleNamespace(progress=progress))  # type: ignore[arg-type]
        assert found == [300]

    def test_a_plan_made_before_the_checkpoint_is_known_fails(
        self, kafka44: DevBroker, topic: MakeTopic, query: MakeQuery
    ) -> None:
        """As Spark's wrapper for Trigger.AvailableNow does it. Otherwise all records would be read again."""
        name = topic(kafka44, 4)
        produce(kafka44, name, 400)
        before = query(kafka44, name, maxOffsetsPerTrigger="100")
        before.batch()
        again = query(kafka44, name)
        again.reader.latestOffset()
        with pytest.raises(ConfigurationError, match="triggerAvailableNowWrapper"):
            again.reader.partitions(before.start, before.start)
