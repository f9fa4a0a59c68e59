"""docs/howto/tasks.rst: every answer exists, and so does the test that does what it says."""

from __future__ import annotations

import re

import pytest
from docutils.nodes import make_id

from tests.pages import ROOT, page, text_of

#: Files in tests/; a file alone stands for all of its tests.
TESTS = {
    "know which extra I need": "interop/test_tutorial.py::test_every_extra_is_in_the_table",
    "go from the first program to production": "interop/test_tutorial.py",
    "move a pykafka program": "test_examples.py::test_pykafka_migration",
    "move from kafka-python, confluent-kafka or aiokafka": "interop/test_moving.py",
    "log in to a managed Kafka with SASL_SSL": "compat/test_client_secure.py::test_the_program_of_the_page",
    "read JSON into a class, and count what cannot be read": "interop/test_messages_page.py::test_json",
    "read Avro, and headers": "interop/test_messages_page.py::test_avro_with_headers",
    "read a range of offsets or times without a group": "interop/test_messages_page.py::test_a_part_of_a_topic",
    "read a compacted topic as a table, until it is caught up": (
        "interop/test_messages_page.py::test_a_compacted_topic_as_a_table"
    ),
    "read all topics of a pattern": "broker/test_topics.py::test_a_pattern_follows_the_topics",
    "get a new topic of a pattern sooner": "broker/test_topics.py::test_a_pattern_follows_the_topics",
    "pause and resume partitions": "interop/test_messages_page.py::test_pause_and_resume",
    "query messages with DuckDB": "interop/test_recipes.py::test_tables",
    "get a DataFrame of polars": "interop/test_recipes.py::test_polars",
    "get a DataFrame of pandas": "interop/test_recipes.py::test_pandas",
    "get columns of Avro by a schema registry": "interop/test_recipes.py::test_typed_columns",
    "use it in a notebook": "interop/test_recipes.py::test_a_notebook",
    "look at messages on the command line": "cli/test_documented.py::test_the_page",
    "make slow HTTP calls side by side, in order for each customer": "interop/test_tutorial.py::test_step_1",
    "try again, and put aside what fails for good": "processing/test_recipes.py::test_retries_and_dead_letters",
    "write batches into a database": "processing/test_recipes.py::test_batches_into_a_database",
    "store results exactly once, in SQLite or PostgreSQL": "stores/test_docs.py::test_a_program_of_the_page_runs",
    "read from Kafka and write to Kafka, exactly once": "broker/test_kafka_store.py::test_the_program_of_the_page",
    "share one consumer among eight threads": "interop/test_messages_page.py::test_eight_threads",
    "handle many messages at a time with asyncio": "processing/test_recipes.py::test_asyncio",
    "run under gevent": "processing/test_recipes.py::test_gevent",
    "use several processes": "interop/test_recipes.py::test_several_processes",
    "check my code with mypy": "interop/test_messages_page.py::test_the_typed_code_passes_mypy",
    "test my handler": "interop/test_messages_page.py::test_a_unit_test",
    "run inside of FastAPI": "interop/test_servers.py::test_fastapi",
    "run inside of gunicorn's workers": "interop/test_servers.py::test_gunicorn",
    "write a command of Django": "interop/test_servers.py::test_django",
    "end cleanly on SIGTERM in Kubernetes": "interop/test_recipes.py::test_in_kubernetes",
    "update pods without a rebalance": ("observe/test_kubernetes.py::test_a_pod_that_is_replaced_costs_no_rebalance"),
    "be back soon after kill -9": (
        "runtime/test_silent_connections.py::test_health_and_the_log_say_what_a_join_waits_for"
    ),
    "answer liveness and readiness probes": "observe/test_endpoint.py::test_live_and_ready",
    "see how far behind I am, in messages and in seconds": "observe/test_pages.py::test_progress",
    "see which groups are furthest behind": "cli/test_groups.py::test_with_and_without_time",
    "see who has which partition": "cli/test_documented.py::test_the_page",
    "see why partitions moved": "observe/test_timeline.py::test_the_command",
    "get metrics into Prometheus": "observe/test_pages.py::test_metrics",
    "write logs as JSON": "interop/test_recipes.py::test_logs_as_json",
    "follow a message from its producer to my handler (OpenTelemetry)": ("observe/test_pages.py::test_spans_of_a_run"),
    "move a group to a time": "cli/test_documented.py::test_the_page",
    "move one partition back to a time, while the group runs": (
        "interop/test_messages_page.py::test_a_group_from_a_time_on"
    ),
}
ROWS = dict(re.findall(r"^\* `(.+) <([./a-z_]+\.rst(?:#[a-z0-9-]+)?)>`__$", text_of("tasks.rst"), re.MULTILINE))


def test_every_task_has_a_test() -> None:
    assert list(ROWS) == list(TESTS)
    assert len(ROWS) == text_of("tasks.rst").count("\n* ")


@pytest.mark.parametrize("task", TESTS)
def test_the_answer_and_the_test_exist(task: str) -> None:
    path, _, anchor = ROWS[task].partition("#")
    text = (page("tasks.rst").parent / path).read_text(encoding="utf-8")
    headings = {make_id(heading) for heading in re.findall(r"^(\S.*)\n[=~-]{4,}$", text, re.MULTILINE)}
    assert not anchor or anchor in headings
    file, _, name = TESTS[task].partition("::")
    assert f"def {name or 'test_'}" in (ROOT / "tests" / file).read_text(encoding="utf-8")
