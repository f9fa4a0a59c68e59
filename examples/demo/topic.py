"""The demo's topic: made if it is not there, looked at before anything is written into one that is."""

from __future__ import annotations

from managedconsumer import errors as err
from managedconsumer.runtime.fetch_range import RangeLimits, fetch_range
from managedconsumer.spark.events import PageViews
from managedconsumer.spark.options import SourceOptions
from managedconsumer.spark.topics import TopicView
from managedconsumer.structs import TopicPartition
from managedconsumer.testing.kafka.producer import partition_for
from managedconsumer.wire.protocol import schemas

_CREATE_MS = 15_000


class DemoTopic:
    """A topic at ``bootstrap``; connections are opened by :meth:`prepare` and closed by :meth:`close`."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self.bootstrap, self.name = bootstrap, name
        self.partitions = 0
        options = {"kafka.bootstrap.servers": bootstrap, "subscribe": name, "kafkaConsumer.pollTimeoutMs": "15000"}
        self._view = TopicView(SourceOptions.parse(options, streaming=True))

    def prepare(self, partitions: int | None) -> bool:
        """Look at the topic, or make it with so many partitions; True if it was made. None: it must be there."""
        snapshot = self._view.cluster.refresh_until([self.name], 5.0)
        info = snapshot.topics.get(self.name)
        missing = info is None or info.error_code == err.UnknownTopicOrPartition.ERROR_CODE
        if missing and partitions is None:
            raise err.UnknownTopicOrPartition(f"there is no topic {self.name!r} at {self.bootstrap}")
        if missing and partitions is not None:
            self._create(partitions)
        self._view.refresh()
        self.partitions = len(self._view.partitions())
        return missing

    def _create(self, partitions: int) -> None:
        topic = {
            "name": self.name,
            "num_partitions": partitions,
            "replication_factor": -1,
            "assignments": [],
            # The events are dated: with an ordinary retention Kafka would delete them at once.
            "configs": [{"name": "retention.ms", "value": "-1"}],
        }
        body = {"topics": [topic], "timeout_ms": _CREATE_MS, "validate_only": False}
        answer = self._view.cluster.request(schemas.CREATE_TOPICS, body, _CREATE_MS + 5000)["topics"][0]
        if answer["error_code"] not in (0, err.TopicAlreadyExists.ERROR_CODE):
            raise err.error_for_code(answer["error_code"], f"topic {self.name!r}: {answer.get('error_message')}")

    def delete(self) -> None:
        """Delete the topic, if it is there, and wait until it is gone."""
        cluster = self._view.cluster
        body = {
            "topic_names": [self.name],
            "topics": [{"name": self.name, "topic_id": bytes(16)}],
            "timeout_ms": _CREATE_MS,
        }
        cluster.request(schemas.DELETE_TOPICS, body, _CREATE_MS + 5000)
        for _ in range(100):
            info = cluster.refresh([self.name]).topics.get(self.name)
            if info is None or info.error_code:
                return
            cluster.handler.sleep(0.1)

    @property
    def identity(self) -> str:
        """Tells this topic from a later one of the same name."""
        snapshot = self._view.cluster.snapshot
        info = snapshot.topics[self.name]
        return f"{snapshot.cluster_id}/{self.name}/{(info.topic_id or b'').hex()}"

    def all(self) -> list[TopicPartition]:
        """Its partitions."""
        return [TopicPartition(self.name, number) for number in range(self.partitions)]

    def ends(self) -> dict[TopicPartition, int]:
        """Where the logs end, at most a tenth of a second ago."""
        return self._view.ends(self.all())

    def starts(self) -> dict[TopicPartition, int]:
        """Where the logs begin."""
        return self._view.starts(self.all())

    def counts(self) -> dict[int, int]:
        """How many events each partition holds; for a topic that only the demo writes to."""
        view = TopicView(self._view.options)  # the writer has its own thread, and so its own view
        try:
            view.refresh()
            return {tp.partition: end for tp, end in view.ends(self.all(), fresh=True).items()}
        finally:
            view.close()

    def check_ours(self, events: PageViews) -> None:
        """Raise unless what the topic holds are the first of ``events``: the demo adds to nobody's data."""
        firsts: dict[int, tuple[bytes, bytes, int]] = {}
        for block in events.blocks():
            for event in block:
                firsts.setdefault(partition_for(event[0], self.partitions), event)
            if len(firsts) == self.partitions:
                break
        ends = self._view.ends(self.all(), fresh=True)
        for tp, end in ends.items():
            if end and self._first(tp) != firsts.get(tp.partition):
                raise err.ConfigurationError(
                    f"topic {self.name!r} holds records that are not this demo's, and it does not write among them: "
                    "--records 0 reads what is there; another --topic makes a new one"
                )
        if sum(ends.values()) > events.records:
            raise err.ConfigurationError(
                f"topic {self.name!r} holds {sum(ends.values()):,} records, more than --records {events.records}: "
                "--records 0 reads what is there; another --topic makes a new one"
            )

    def _first(self, tp: TopicPartition) -> tuple[bytes | None, bytes | None, int] | None:
        for chunk in fetch_range(self._view.cluster, *tp, 0, 1, RangeLimits(patience=10.0), on_lost=lambda *_: None):
            for message in chunk.take(1, 1):
                return message.partition_key, message.value, message.timestamp
        return None

    def close(self) -> None:
        """Close the connections."""
        self._view.cluster.close()
        self._view.close()
