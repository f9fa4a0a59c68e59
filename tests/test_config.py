"""Every option: what is accepted, and that a refusal names the argument, the value and what is allowed."""

from __future__ import annotations

import inspect
from datetime import timedelta
from fractions import Fraction
from typing import Any

import pytest

from managedconsumer import BalancedConsumer, KafkaClient, ManagedBalancedConsumer, OffsetType, SimpleConsumer
from managedconsumer.config import ConsumerOptions, GroupOptions, check_group, check_reset, duration_of
from managedconsumer.errors import ConfigurationError, KafkaException, UnicodeException

# No broker is needed: arguments are looked at before anybody is asked.
NOWHERE = "127.0.0.1:1"
ABOVE_ZERO = [
    "fetch_message_max_bytes",
    "num_consumer_fetchers",
    "auto_commit_interval_ms",
    "queued_max_messages",
    "queued_max_bytes",
]
ZERO_TOO = [
    "fetch_min_bytes",
    "fetch_wait_max_ms",
    "fetch_error_backoff_ms",
    "offsets_channel_backoff_ms",
    "offsets_commit_max_retries",
]
GROUP_ABOVE_ZERO = ["heartbeat_interval_ms", "session_timeout_ms", "rebalance_timeout_ms", "max_processing_ms"]
GROUP_ZERO_TOO = ["rebalance_max_retries", "rebalance_backoff_ms", "revoke_drain_ms"]


def managed(**options: Any) -> ManagedBalancedConsumer:
    return ManagedBalancedConsumer("t", NOWHERE, options.pop("consumer_group", "g"), auto_start=False, **options)


def simple(**options: Any) -> SimpleConsumer:
    return SimpleConsumer("t", NOWHERE, auto_start=False, **options)


def refusal(kind: type[BaseException], make: Any, **options: Any) -> str:
    with pytest.raises(kind) as caught:
        make(**options)
    return str(caught.value)


@pytest.mark.parametrize("name", ABOVE_ZERO + ZERO_TOO + ["consumer_timeout_ms"])
@pytest.mark.parametrize("make", [managed, simple])
def test_what_is_no_number(make: Any, name: str) -> None:
    for wrong in ("5", None, b"5", [5], object):
        text = refusal(TypeError, make, **{name: wrong})
        assert text.startswith(f"{name} must be a number of at least")
        assert text.endswith(f", not {type(wrong).__name__}: {wrong!r}")


@pytest.mark.parametrize("name", ABOVE_ZERO)
@pytest.mark.parametrize("make", [managed, simple])
def test_numbers_that_are_too_small(make: Any, name: str) -> None:
    for wrong in (0, -1, 0.5, float("nan"), float("inf"), float("-inf")):
        text = refusal(ConfigurationError, make, **{name: wrong})
        assert text.startswith(f"{name} must be a number of at least 1")
        assert text.endswith(f", not {wrong!r}")
        with pytest.raises(ValueError, match=name):  # what pykafka's users catch
            make(**{name: wrong})


@pytest.mark.parametrize("name", ZERO_TOO)
@pytest.mark.parametrize("make", [managed, simple])
def test_zero_is_a_number_where_it_means_something(make: Any, name: str) -> None:
    make(**{name: 0})
    assert refusal(ConfigurationError, make, **{name: -1}).startswith(f"{name} must be a number of at least 0")


@pytest.mark.parametrize("name", GROUP_ABOVE_ZERO)
def test_group_options_above_zero(name: str) -> None:
    assert refusal(ConfigurationError, managed, **{name: 0}) == f"{name} must be a number of at least 1 ms, not 0"
    text = refusal(TypeError, managed, **{name: "1"})
    assert text == f"{name} must be a number of at least 1 ms, not str: '1'"


@pytest.mark.parametrize("name", GROUP_ZERO_TOO)
def test_group_options_from_zero(name: str) -> None:
    managed(**{name: 0})
    assert refusal(ConfigurationError, managed, **{name: -1}).startswith(f"{name} must be a number of at least 0")


@pytest.mark.parametrize("good", [5, 5.0, 5.9, True, Fraction(11, 2)])
def test_numbers_of_all_kinds_pass_as_in_pykafka(good: Any) -> None:
    assert ConsumerOptions(queued_max_messages=good).queued_max_messages == int(good)


BOOLS = [
    "auto_commit_enable",
    "auto_start",
    "compacted_topic",
    "reset_offset_on_fetch",
    "reset_offset_on_start",
    "use_greenlets",
    "use_rdkafka",
]


@pytest.mark.parametrize("name", BOOLS)
@pytest.mark.parametrize("kind", [ManagedBalancedConsumer, SimpleConsumer])
def test_text_is_no_bool(kind: Any, name: str) -> None:
    """``auto_commit_enable="false"``, from a file or the environment, would count as true."""
    for wrong in ("false", "", "True", b"0", 2, 0.5, []):
        with pytest.raises(TypeError) as caught:
            kind("t", NOWHERE, "g", **{"auto_start": False, name: wrong})
        assert str(caught.value) == f"{name} must be True or False, not {type(wrong).__name__}: {wrong!r}"


@pytest.mark.parametrize("good", [0, 1, False, True])
def test_zero_and_one_are_bools_as_in_pykafka(good: Any) -> None:
    assert ConsumerOptions(auto_commit_enable=good).auto_commit_enable is bool(good)
    made = SimpleConsumer("t", NOWHERE, "g", auto_start=0, auto_commit_enable=good)  # type: ignore[arg-type]
    assert made.health()["running"] is False


@pytest.mark.parametrize("name", ["use_greenlets", "exclude_internal_topics", "ssl_check_hostname"])
def test_text_is_no_bool_for_a_client(name: str) -> None:
    text = refusal(TypeError, KafkaClient, hosts=NOWHERE, **{name: "false"})
    assert text == f"{name} must be True or False, not str: 'false'"


@pytest.mark.parametrize("good", [-1, 0, 1, 60000])
def test_consumer_timeout(good: int) -> None:
    assert ConsumerOptions(consumer_timeout_ms=good).consumer_timeout_ms == good


def test_a_consumer_timeout_below_minus_one() -> None:
    text = refusal(ConfigurationError, simple, consumer_timeout_ms=-2)
    assert text == "consumer_timeout_ms must be a number of at least 0 ms (or -1), not -2"


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (OffsetType.EARLIEST, "earliest"),
        (OffsetType.LATEST, "latest"),
        (-2, "earliest"),
        (-1, "latest"),
        ("earliest", "earliest"),
        ("latest", "latest"),
        ("none", "none"),
    ],
)
def test_offset_reset(given: Any, meant: str) -> None:
    assert check_reset(given) == meant


@pytest.mark.parametrize(
    ("given", "ms"),
    [
        (timedelta(days=1, milliseconds=5), 86_400_005),
        ("by_duration:P1D", 86_400_000),
        ("by_duration:P1DT2H30M1.5S", 95_401_500),
        ("BY_DURATION:pt36h", 129_600_000),
        ("by_duration:PT0.001S", 1),
    ],
)
def test_a_duration(given: Any, ms: int) -> None:
    assert duration_of(check_reset(given)) == ms


@pytest.mark.parametrize(
    "wrong",
    [
        *(5, -3, "smallest", None, [], {}, timedelta(0), timedelta(seconds=-1), "by_duration", "by_duration:"),
        *("by_duration:P", "by_duration:PT", "by_duration:P1DT", "by_duration:-P1D", "by_duration:P1W", "P1D"),
        *("by_duration:PT0S", "by_duration:P1.5D", "by_duration:P1D\n"),
    ],
)
def test_a_wrong_offset_reset(wrong: Any) -> None:
    text = refusal(ConfigurationError, simple, auto_offset_reset=wrong)
    assert text.startswith("auto_offset_reset must be OffsetType.EARLIEST (-2), OffsetType.LATEST (-1)")
    assert text.endswith(f", not {wrong!r}")


@pytest.mark.parametrize(
    ("name", "allowed"),
    [("isolation_level", "'read_uncommitted', 'read_committed'"), ("group_protocol", "'auto', 'classic', 'consumer'")],
)
@pytest.mark.parametrize("wrong", ["serializable", None, 1, []])
def test_a_wrong_choice(name: str, allowed: str, wrong: Any) -> None:
    assert refusal(ConfigurationError, managed, **{name: wrong}) == f"{name} must be one of {allowed}, not {wrong!r}"


@pytest.mark.parametrize("wrong", ["explode", None, 5, []])
def test_a_wrong_on_error(wrong: Any) -> None:
    text = refusal(ConfigurationError, simple, on_error=wrong)
    assert text == f"on_error must be 'raise', 'skip' or a function of (error, message), not {wrong!r}"


@pytest.mark.parametrize("name", ["deserializer", "post_rebalance_callback"])
def test_what_is_no_function(name: str) -> None:
    assert refusal(TypeError, managed, **{name: 5}) == f"{name} must be a function (or None), not int: 5"


def test_a_rack_that_is_no_text() -> None:
    assert refusal(TypeError, simple, client_rack=5) == "client_rack must be a str (or None), not int: 5"


@pytest.mark.parametrize("wrong", ["", 5, b"x"])
def test_a_wrong_instance_id(wrong: Any) -> None:
    text = refusal(ConfigurationError, managed, group_instance_id=wrong)
    assert text == f"group_instance_id must be a str that is not empty (or None), not {wrong!r}"


def test_heartbeats_must_be_quicker_than_the_session() -> None:
    text = refusal(ConfigurationError, managed, heartbeat_interval_ms=45000)
    assert "heartbeat_interval_ms=45000 must be lower than session_timeout_ms=45000" in text
    GroupOptions(heartbeat_interval_ms=44999)


class TestGroup:
    @pytest.mark.parametrize("good", ["orders", b"orders", bytearray(b"orders")])
    def test_text_and_bytes(self, good: Any) -> None:
        assert check_group(good, required=True) == "orders"

    def test_none_is_for_simple_consumers(self) -> None:
        assert check_group(None, required=False) is None
        text = refusal(ConfigurationError, managed, consumer_group=None)
        assert text == "consumer_group=None: a managed consumer needs the name of its group (str or bytes)"

    @pytest.mark.parametrize("empty", ["", b""])
    def test_empty(self, empty: Any) -> None:
        assert "cannot be empty" in refusal(ConfigurationError, managed, consumer_group=empty)
        assert "cannot be empty" in refusal(ConfigurationError, simple, consumer_group=empty)

    @pytest.mark.parametrize("wrong", [5, ["g"], object()])
    def test_no_text(self, wrong: Any) -> None:
        text = refusal(TypeError, managed, consumer_group=wrong)
        assert text == f"consumer_group must be str or bytes, not {type(wrong).__name__}: {wrong!r}"

    @pytest.mark.parametrize("wrong", ["grüße", "grüße".encode()])
    def test_not_ascii(self, wrong: Any) -> None:
        text = refusal(UnicodeException, managed, consumer_group=wrong)
        assert text == f"consumer_group={wrong!r}: only ASCII characters are allowed"
        assert not issubclass(UnicodeException, KafkaException)  # as in pykafka


class TestTopicAndCluster:
    @pytest.mark.parametrize("wrong", [None, 5, object()])
    def test_no_topic(self, wrong: Any) -> None:
        with pytest.raises(TypeError, match=f"topic must be a Topic .*, not {type(wrong).__name__}"):
            SimpleConsumer(wrong, NOWHERE, auto_start=False)

    @pytest.mark.parametrize("wrong", ["", "a b", "..", "x" * 250, []])
    def test_no_legal_topic(self, wrong: Any) -> None:
        with pytest.raises(ConfigurationError, match="topic"):
            SimpleConsumer(wrong, NOWHERE, auto_start=False)

    @pytest.mark.parametrize("wrong", [None, 5, object()])
    def test_no_cluster(self, wrong: Any) -> None:
        with pytest.raises(TypeError, match=f"cluster must be a KafkaClient .*, not {type(wrong).__name__}"):
            SimpleConsumer("t", wrong, auto_start=False)

    @pytest.mark.parametrize("wrong", ["", "localhost", "localhost:", "localhost:kafka", ":9092", "h:99999"])
    def test_no_address(self, wrong: str) -> None:
        with pytest.raises(ConfigurationError, match="host:port"):
            SimpleConsumer("t", wrong, auto_start=False)


@pytest.mark.parametrize("wrong", [5, None])
def test_partitions_that_are_none(wrong: Any) -> None:
    if wrong is None:
        simple(partitions=None)  # all
        return
    assert refusal(TypeError, simple, partitions=wrong).startswith("partitions must be a list of ")


def test_a_partition_of_another_topic() -> None:
    text = refusal(KafkaException, simple, partitions=[("other", 0)])
    assert text == "unknown partition 0 of topic 'other': this consumer reads topic t"


def test_auto_commit_without_a_group() -> None:
    assert "needs a consumer_group" in refusal(ConfigurationError, simple, auto_commit_enable=True)


def test_an_option_that_does_not_exist_is_named() -> None:
    for make, kind in ((managed, "ManagedBalancedConsumer"), (simple, "SimpleConsumer")):
        text = refusal(TypeError, make, queued_max_mesages=5)
        assert "queued_max_mesages" in text
        assert kind in text
    with pytest.raises(TypeError, match=r"BalancedConsumer.*queued_max_mesages"):
        BalancedConsumer("t", NOWHERE, "g", auto_start=False, queued_max_mesages=5)


def test_zookeeper_is_said_to_be_ignored() -> None:
    with pytest.warns(DeprecationWarning, match="ZooKeeper arguments are ignored"):
        BalancedConsumer("t", NOWHERE, "g", auto_start=False, zookeeper_connect="zk:2181")


def test_a_listener_must_be_one() -> None:
    text = refusal(TypeError, managed, listener=5)
    assert "listener" in text
    assert "5" in text


# Names, order and defaults of pykafka 2.8.0 (managedbalancedconsumer.py, simpleconsumer.py).
PYKAFKA_MANAGED = [
    ("fetch_message_max_bytes", 1024 * 1024),
    ("num_consumer_fetchers", 1),
    ("auto_commit_enable", False),
    ("auto_commit_interval_ms", 60 * 1000),
    ("queued_max_messages", 2000),
    ("fetch_min_bytes", 1),
    ("fetch_error_backoff_ms", 500),
    ("fetch_wait_max_ms", 100),
    ("offsets_channel_backoff_ms", 1000),
    ("offsets_commit_max_retries", 5),
    ("auto_offset_reset", OffsetType.EARLIEST),
    ("consumer_timeout_ms", -1),
    ("rebalance_max_retries", 5),
    ("rebalance_backoff_ms", 2 * 1000),
    ("auto_start", True),
    ("reset_offset_on_start", False),
    ("post_rebalance_callback", None),
    ("use_rdkafka", False),
    ("compacted_topic", True),
    ("heartbeat_interval_ms", 3000),
]


def test_the_managed_consumers_arguments_are_pykafkas_in_its_order() -> None:
    parameters = list(inspect.signature(ManagedBalancedConsumer).parameters.values())
    assert [p.name for p in parameters[:3]] == ["topic", "cluster", "consumer_group"]
    assert [(p.name, p.default) for p in parameters[3 : 3 + len(PYKAFKA_MANAGED)]] == PYKAFKA_MANAGED
    after = [p.name for p in parameters[3 + len(PYKAFKA_MANAGED) :]]
    assert after[:3] == ["membership_protocol", "deserializer", "reset_offset_on_fetch"]


@pytest.mark.parametrize("consumer", [SimpleConsumer, BalancedConsumer, ManagedBalancedConsumer])
def test_the_constructors_have_the_defaults_of_config(consumer: type) -> None:
    declared = {name: getattr(options, name) for options in (ConsumerOptions, GroupOptions) for name in options._fields}
    if consumer is ManagedBalancedConsumer:
        declared["compacted_topic"] = True  # as in pykafka
    parameters = inspect.signature(consumer).parameters
    written = {name: parameter.default for name, parameter in parameters.items() if name in declared}
    assert written == {name: declared[name] for name in written}
    if consumer is ManagedBalancedConsumer:
        assert written.keys() == declared.keys(), "the others take the rest as **more"
