"""What the programs share. Each is run as ``PROGRAM MODE BOOTSTRAP TOPIC GROUP`` and prints facts: ``what: value``.

MODE is ``pykafka`` (the original), ``import`` (the import changed to managedconsumer) or ``patch`` (pykafka's, with one
call of ``patch_pykafka()``). The topic has two partitions; the first holds offsets 0 to 19, the second 0 to 4.
"""

from __future__ import annotations

import logging
import re
import sys
import time
import warnings

warnings.simplefilter("ignore")
logging.basicConfig(level=logging.CRITICAL)
MODE, BOOTSTRAP, TOPIC, GROUP = sys.argv[1:5]
#: How long (ms) a consumer waits for a message before its iteration ends.
TIMEOUT = 2000
#: What a program that was written for pykafka catches.
KINDS = {
    "AttributeError",
    "ConsumerStoppedException",
    "KafkaException",
    "KeyError",
    "NoBrokersAvailableError",
    "RuntimeError",
    "TypeError",
    "UnicodeException",
    "ValueError",
}

if MODE == "import":
    import managedconsumer as module
    from managedconsumer import errors
else:
    import pykafka as module
    from pykafka import exceptions as errors

    if MODE == "patch":
        import managedconsumer

        managedconsumer.patch_pykafka()
KafkaClient = module.KafkaClient


def say(what, value):
    """One fact, on one line; what is each run's own (addresses, names) is left out."""
    text = value if isinstance(value, str) else repr(value)
    for own in (GROUP, TOPIC):
        text = text.replace(own, "NAME")
    print(f"{what}: {re.sub(r'0x[0-9a-f]+', '0x', text)}", flush=True)


def outcome(function, *args, **kwargs):
    """What a call gives: its value, or the kind of its exception that a pykafka program can name."""
    try:
        value = function(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - what it is is printed
        kinds = {kind.__name__ for kind in type(error).__mro__ if kind.__module__ in ("builtins", errors.__name__)}
        return f"raises {' '.join(sorted(kinds & KINDS)) or 'Exception'}"
    return value


def offset(message):
    """A message's offset; None for none."""
    return getattr(message, "offset", message)


def places(messages):
    """Where messages come from, in a fixed order."""
    return sorted((message.partition_id, message.offset) for message in messages)


def ordered(offsets):
    """A dict of offsets by partition, in a fixed order; None for none."""
    return offsets if offsets is None else dict(sorted(offsets.items()))


def wait(what, condition, seconds=30.0, sleep=time.sleep):
    """Wait until a condition holds, and say whether it did."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            say(what, "yes")
            return
        sleep(0.05)
    say(what, "no")
