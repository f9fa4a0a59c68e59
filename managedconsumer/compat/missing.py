"""A topic that is not accessible: Kafka's own error, and a KeyError, as ``client.topics`` is a mapping."""

from __future__ import annotations

from managedconsumer import errors as err


class MissingTopic(err.ProtocolClientError, KeyError):
    """Both at once; the text is a sentence, not KeyError's quoted key."""

    def __str__(self) -> str:
        return f"{self.args[0]} (Kafka error {self.code}, {self.kafka_name})"


# The classes of error codes are made by a table, so mypy takes them for variables.
class UnknownTopicError(err.UnknownTopicOrPartition, MissingTopic):  # type: ignore[valid-type,misc]
    """There is no such topic, and the broker does not create it."""


class HiddenTopicError(UnknownTopicError):
    """Kafka's own topics are hidden (``exclude_internal_topics``)."""

    def __str__(self) -> str:
        return str(self.args[0])


class IllegalTopicError(err.InvalidTopic, MissingTopic):  # type: ignore[valid-type,misc]
    """No topic can have that name."""


class ForbiddenTopicError(err.TopicAuthorizationFailed, MissingTopic):  # type: ignore[valid-type,misc]
    """The broker does not let us see (or create) the topic."""


#: Error code of a topic in the metadata -> what to raise; these topics are not there (as far as we may know).
MISSING: dict[int, type[MissingTopic]] = {
    cls.ERROR_CODE: cls for cls in (UnknownTopicError, IllegalTopicError, ForbiddenTopicError)
}
