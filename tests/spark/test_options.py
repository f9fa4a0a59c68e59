"""The source's options: Spark's names, and errors that say what to write instead."""

from __future__ import annotations

import pickle

import pytest

from managedconsumer.errors import ConfigurationError
from managedconsumer.spark.options import SourceOptions, Where
from managedconsumer.structs import TopicPartition

BASE = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "views"}

BEARER = {
    "kafka.security.protocol": "SASL_PLAINTEXT",
    "kafka.sasl.mechanism": "OAUTHBEARER",
    "kafka.sasl.oauthbearer.token.provider": f"{__name__}:give_token",
}


def give_token() -> str:
    return "to.ke.n"


def parse(streaming: bool = True, **more: str) -> SourceOptions:
    names = {name.replace("__", "."): value for name, value in more.items()}
    return SourceOptions.parse({**BASE, **names}, streaming=streaming)


def test_names_count_in_any_case_as_in_spark() -> None:
    options = SourceOptions.parse(
        {"KAFKA.Bootstrap.Servers": "h:1", "SUBSCRIBE": "a, b", "MaxOffsetsPerTrigger": "5"}, streaming=True
    )
    assert (options.bootstrap, options.topics.names, options.max_offsets) == ("h:1", ("a", "b"), 5)


def test_defaults_are_sparks() -> None:
    assert parse().starting == Where("latest")
    assert parse(streaming=False).starting == Where("earliest")
    options = parse()
    assert options.fail_on_data_loss
    assert options.columns == ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
    assert options.group_id is None
    assert parse(includeHeaders="true").columns[-1] == "headers"


def test_offsets_in_json() -> None:
    where = parse(startingOffsets='{"views": {"0": 23, "1": -2}}').starting
    assert where == Where("offset", {TopicPartition("views", 0): 23, TopicPartition("views", 1): -2})


def test_group_id_is_found_under_sparks_name_too() -> None:
    assert parse(kafka__group__id="g").group_id == "g"
    assert parse(group__id="g", startingOffsets="committed").starting.kind == "committed"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"subscribe": ""}, "exactly one of the options subscribe"),
        ({"subscribePattern": "v.*"}, "not subscribe and subscribepattern"),
        ({"maxOffsetPerTrigger": "5"}, "did you mean maxOffsetsPerTrigger"),
        ({"startingOfsets": "latest"}, "did you mean startingOffsets"),
        ({"maxOffsetsPerTrigger": "many"}, "a whole number of at least 1"),
        ({"failOnDataLoss": "no"}, "true or false"),
        ({"startingOffsets": "committed"}, "needs the option group.id"),
        ({"startingOffsets": "beginning"}, "must be earliest, latest, or JSON as in"),
        ({"startingOffsets": "[1]", "group.id": "g"}, "must be earliest, latest, committed, or JSON as in"),
        ({"startingOffsets": '{"views": {"0": "x"}}'}, "is not allowed"),
        ({"startingOffsets": '{"views": {"0": -3}}'}, "is not allowed"),
        ({"columns": "key,valeu"}, "valeu"),
        ({"endingOffsets": "latest"}, "a stream has no end"),
        ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, "must not be larger"),
        ({"maxTriggerDelay": "soon"}, "such as 15m"),
        ({"kafka.bootstrap.servers": "localhost"}, "host:port"),
        ({"kafka.bootstrap.servers": ""}, "kafka.bootstrap.servers is missing"),
        ({"kafka.auto.offset.reset": "earliest"}, "use the option startingOffsets"),
        ({"kafka.isolation.level": "commited"}, "read_committed"),  # codespell:ignore commited
        ({"kafka.partition.assignment.strategy": "best", "group.id": "g"}, "cooperative-sticky"),
        ({"kafka.session.timeout.ms": "-1", "group.id": "g"}, "session.timeout.ms"),
        ({"kafka.security.protocol": "SASL"}, "security_protocol"),
        ({"kafka.security.protocol": "SASL_SSL"}, "OAUTHBEARER, not None"),
        ({"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "OAUTHBEARER"}, "module:function"),
        ({**BEARER, "kafka.sasl.oauthbearer.token.provider": "nowhere:token"}, "pyFiles"),
        ({**BEARER, "kafka.sasl.oauthbearer.token.provider": f"{__name__}:BASE"}, "no function"),
        ({**BEARER, "kafka.sasl.oauthbearer.extensions": "tenant"}, "name=value"),
        ({"fetchOffset.numRetries": "5"}, "kafkaConsumer.pollTimeoutMs"),
        ({"fetchOffset.retryIntervalMs": "5"}, "kafkaConsumer.pollTimeoutMs"),
        ({"store": "s3a://bucket/claims"}, "need fsspec"),
        ({"group.mode": "watch", "group.id": "g"}, "group.mode must be one of member, progress"),
        ({"kafka.group.protocol": "new"}, "kafka.group.protocol must be one of classic, consumer"),
        ({"kafka.group.protocol": "consumer", "kafka.partition.assignment.strategy": "range"}, "the broker assigns"),
        ({"group.mode": "progress"}, "needs the option group.id"),
        ({"offsetConflict": "newest", "group.id": "g"}, "one of auto, fail, checkpoint, group"),
        ({"offsetConflict": "fail"}, "for members of a group"),
        ({"offsetConflict": "fail", "group.id": "g", "group.mode": "progress"}, "for members of a group"),
    ],
)
def test_mistakes_are_named(more: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        SourceOptions.parse({**BASE, **more}, streaming=True)
    assert said in str(caught.value)


def test_assign_and_group_exclude_each_other() -> None:
    with pytest.raises(ConfigurationError, match="exclude each other"):
        SourceOptions.parse({"kafka.bootstrap.servers": "h:1", "assign": '{"t": [0]}', "group.id": "g"}, streaming=True)


def test_jaas_settings_and_pem_files_become_security(tmp_path: object) -> None:
    options = parse(
        kafka__security__protocol="SASL_SSL",
        kafka__sasl__mechanism="SCRAM-SHA-512",
        kafka__sasl__jaas__config="org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="al\\"ice" password="s3;cret";',
        kafka__ssl__truststore__location="/etc/ca.pem",
    )
    security = options.settings().security
    assert (security.sasl_username, security.sasl_password) == ('al"ice', "s3;cret")
    assert security.ssl_cafile == "/etc/ca.pem"
    assert security.ssl_check_hostname
    assert "s3;cret" not in repr(options)
    assert pickle.loads(pickle.dumps(options)).settings().security == security


def test_a_token_function_is_named_and_called_in_whatever_process() -> None:
    options = SourceOptions.parse(
        {**BASE, **BEARER, "kafka.sasl.oauthbearer.extensions": "tenant=a, zone=b"}, streaming=True
    )
    security = pickle.loads(pickle.dumps(options)).settings().security
    assert security.sasl_oauth_token() == "to.ke.n"
    assert security.sasl_oauth_extensions == {"tenant": "a", "zone": "b"}
    assert security == options.settings().security


def test_a_query_is_a_cooperative_member_unless_it_says_otherwise() -> None:
    assert parse(group__id="g").assignor_names() == ["CooperativeStickyPartitionAssignor"]
    assert parse(group__id="g").is_member
    assert not parse(group__id="g", group__mode="progress").is_member
    assert not parse().is_member


def test_progress_goes_with_chosen_partitions() -> None:
    given = {"kafka.bootstrap.servers": "h:1", "assign": '{"t": [0]}', "group.id": "g", "group.mode": "progress"}
    assert SourceOptions.parse(given, streaming=True).topics.partitions == (TopicPartition("t", 0),)
    del given["group.id"], given["group.mode"]
    with pytest.raises(ConfigurationError, match="exclude each other"):
        SourceOptions.parse({**given, "kafka.group.id": "g"}, streaming=True)


@pytest.mark.parametrize("name", ["store", "group.mode", "offsetConflict"])
def test_what_is_for_streams_is_refused_in_a_batch(name: str) -> None:
    values = {"store": "/tmp/x", "group.mode": "member", "offsetConflict": "auto"}
    with pytest.raises(ConfigurationError, match=f"{name} is for streams"):
        SourceOptions.parse({**BASE, "group.id": "g", name: values[name]}, streaming=False)


def test_a_java_key_store_is_refused_with_the_remedy() -> None:
    with pytest.raises(ConfigurationError, match="export it as PEM"):
        parse(kafka__security__protocol="SSL", kafka__ssl__truststore__location="/etc/trust.jks")


def test_assignors_are_known_by_javas_names_too() -> None:
    strategy = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor,range"
    options = parse(group__id="g", kafka__partition__assignment__strategy=strategy)
    assert options.assignor_names() == ["CooperativeStickyPartitionAssignor", "RangePartitionAssignor"]
