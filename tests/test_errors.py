"""What a user catches: names, kinship with pykafka, codes, flags, texts."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from managedconsumer import codes, errors

#: The codes of Kafka 4.4, which the oracle does not know.
NEW = range(134, 137)
# InvalidMetadataException's children in Kafka 4.4's Java client.
REFRESH_METADATA = {3, 5, 6, 9, 13, 56, 72, 74, 80, 83, 84, 100, 103}


def test_every_code_of_kafka_is_there_with_java_s_flags() -> None:
    theirs = {int(code): code.retriable for code in ErrorCode if code != 0}
    assert {code: cls.retriable for code, cls in errors.ERROR_CODES.items() if code in theirs} == theirs
    assert {code for code, cls in errors.ERROR_CODES.items() if cls.refresh_metadata} == REFRESH_METADATA
    assert set(errors.ERROR_CODES) == {-1, *range(1, 137)}


def test_every_code_is_a_name_of_the_module() -> None:
    for code, cls in errors.ERROR_CODES.items():
        assert getattr(errors, cls.__name__) is cls
        assert cls.__module__ == "managedconsumer.errors"
        assert code == cls.ERROR_CODE
        assert issubclass(cls, errors.ProtocolClientError)
        assert cls.__doc__
        assert code in (-1, *NEW) or ErrorCode(code).name.upper() in (
            cls.kafka_name,
            cls.kafka_name.removesuffix("_EXCEPTION"),
        )


def test_a_code_becomes_its_exception_with_number_and_kafka_s_name_in_the_text() -> None:
    for code in sorted(errors.ERROR_CODES):
        plain, told = errors.error_for_code(code), errors.error_for_code(code, "the broker's words")
        assert plain.code == told.code == code
        assert str(told) == f"the broker's words (Kafka error {code}, {told.kafka_name})"
        assert str(plain) == f"{plain.description} (Kafka error {code}, {plain.kafka_name})"


@pytest.mark.parametrize("code", [0, 137, 999, -2, 32767, -32768])
def test_an_unknown_code_keeps_its_number_and_may_be_retried(code: int) -> None:
    error = errors.error_for_code(code)
    assert type(error) is errors.UnknownErrorCode
    assert (error.code, error.ERROR_CODE, error.retriable, error.refresh_metadata) == (code, code, True, False)
    assert f"Kafka error {code}" in str(error)
    assert "the broker's words" in str(errors.error_for_code(code, "the broker's words"))


EXAMPLES: list[Any] = [
    errors.RebalanceInProgress(),
    errors.FencedInstanceId("someone else"),
    errors.UnknownErrorCode(999, "words"),
    errors.CorruptRecordError("t", 3, 17, "CRC differs"),
    errors.RecordTooLargeError("t", 3, 17, 100, 50, "fetch_message_max_bytes"),
    errors.UnsupportedBrokerError("b:9092", "Fetch", (4, 17), None, "Upgrade."),
    errors.ConfigurationError("bad"),
    errors.MissingPackageError("install it"),
    errors.PartitionOwnedError("p0", "text"),
    errors.DeserializerError("failed", b"raw"),
    errors.ProtocolMismatchError("TLS"),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda e: type(e).__name__)
def test_exceptions_survive_pickling(error: Any) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert (str(copy), copy.args, vars(copy)) == (str(error), error.args, vars(error))


def test_they_do_so_beside_pykafka() -> None:
    program = (
        "import pickle, pykafka.exceptions as theirs; from managedconsumer import errors as ours;"
        "error = ours.PartitionOwnedError('p0', 'text'); copy = pickle.loads(pickle.dumps(error));"
        "assert isinstance(copy, theirs.PartitionOwnedError);"
        "assert copy.args == error.args == ('p0', 'text') and copy.partition == 'p0' and str(copy) == str(error)"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True, timeout=60)


def test_local_errors_say_what_a_user_needs() -> None:
    assert (
        str(errors.CorruptRecordError("t", 3, 17, "CRC differs")) == "corrupt record in t-3 at offset 17: CRC differs"
    )
    too_old = errors.UnsupportedBrokerError("b:9092", "Fetch", (4, 17), (0, 3), "Upgrade the broker to 2.1.")
    assert str(too_old) == (
        "broker b:9092 cannot be used for Fetch: this client speaks versions 4 to 17, "
        "the broker offers versions 0 to 3. Upgrade the broker to 2.1."
    )
    too_large = errors.RecordTooLargeError("t", 3, 17, 100, 50, "queued_max_bytes")
    assert "100 bytes" in str(too_large) and "raise queued_max_bytes" in str(too_large)
    assert isinstance(errors.ConfigurationError("x"), ValueError)
    assert isinstance(errors.MissingPackageError("x"), ImportError)
    assert errors.PartitionOwnedError("p0").partition == "p0"
    assert isinstance(errors.SaslAuthenticationFailed(), errors.SaslAuthenticationError)


IN_A_FRESH_PROCESS = """
import sys, warnings
warnings.simplefilter("ignore")
from managedconsumer import errors as ours
assert "pykafka" not in sys.modules
before = ours.RebalanceInProgress()            # made before pykafka is there
assert ours.KafkaException.__mro__[1].__name__ == "Root"
import pykafka.exceptions as theirs

names = [n for n, v in vars(theirs).items() if isinstance(v, type) and issubclass(v, Exception)]
assert len(names) >= 36, names
ours.IllegalStateError("any exception of ours makes the tie")
for name in names:
    mine, twin = getattr(ours, name), getattr(theirs, name)
    if name == "UnicodeException":
        assert not issubclass(mine, ours.KafkaException)
        assert issubclass(mine, twin)
        continue
    assert issubclass(mine, twin), name
    assert getattr(mine, "ERROR_CODE", "none") == getattr(twin, "ERROR_CODE", "none"), name
    parents = [c.__name__ for c in twin.__mro__ if c.__module__ == "pykafka.exceptions"]
    mine_parents = [c.__name__ for c in mine.__mro__ if c.__module__ == "managedconsumer.errors"]
    assert set(parents) <= set(mine_parents), (name, parents, mine_parents)
for code, twin in theirs.ERROR_CODES.items():
    try:
        raise ours.error_for_code(code)
    except twin as caught:
        assert caught.code == code
try:
    raise ours.ConfigurationError("x")
except theirs.KafkaException as caught:
    assert isinstance(caught, ValueError)
try:
    raise before
except theirs.ProtocolClientError:
    pass
try:
    raise theirs.RebalanceInProgress()          # the tie goes one way only
except ours.KafkaException:
    raise SystemExit("pykafka's own exceptions are not ours")
except theirs.KafkaException:
    print("fine")
"""


def test_except_clauses_of_a_pykafka_program_catch_ours() -> None:
    run = subprocess.run([sys.executable, "-c", IN_A_FRESH_PROCESS], capture_output=True, text=True, timeout=120)
    assert (run.stdout.strip(), run.returncode) == ("fine", 0), run.stderr


def test_the_named_codes_have_kafkas_names() -> None:
    named = {name: value for name, value in vars(codes).items() if isinstance(value, int)}
    assert named.pop("NONE") == 0
    assert {name: errors.ERROR_CODES[code].kafka_name for name, code in named.items()} == {name: name for name in named}
