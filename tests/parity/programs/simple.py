"""SimpleConsumer: the rules of the usage guide for where it begins, and offsets that are read and set."""

import datetime as dt
from itertools import islice

from kit import BOOTSTRAP, GROUP, TIMEOUT, TOPIC, KafkaClient, offset, ordered, outcome, say

client = KafkaClient(hosts=BOOTSTRAP, broker_version="0.10.2")
topic = client.topics[TOPIC]
first = topic.partitions[0]


def consumer(**options):
    return topic.get_simple_consumer(**{"partitions": [first], "consumer_timeout_ms": TIMEOUT, **options})


made = consumer(consumer_group=GROUP, auto_offset_reset=-2)
say("a new group", offset(made.consume()))
say("held", ordered(made.held_offsets))
made.commit_offsets()
made.stop()
made = consumer(consumer_group=GROUP)
say("an existing group", offset(made.consume()))
made.stop()
made = consumer(consumer_group=GROUP, auto_offset_reset=-2, reset_offset_on_start=True)
say("reset on start", offset(made.consume()))
made.stop()
made = consumer(consumer_group=GROUP + "-latest", auto_offset_reset=-1)
say("a new group at LATEST", offset(made.consume()))
say("held at LATEST", ordered(made.held_offsets))
made.stop()
made = consumer()
say("no group", offset(made.consume()))
say("commit without a group", outcome(made.commit_offsets))
made.stop()
made = consumer(auto_offset_reset=-1)
say("no group at LATEST", offset(made.consume()))
made.stop()

made = consumer(consumer_group=GROUP + "-fresh")
say("committed at the start", [(p, r.offset) for p, r in made.fetch_offsets()])
say("reset to 10", outcome(made.reset_offsets, [(first, 10)]))
say("next after 10", offset(made.consume()))
say("committed by a reset", [(p, r.offset) for p, r in made.fetch_offsets()])
made.stop()

made = consumer(consumer_group=GROUP + "-targets")
for target in (1.5, "3", None, -7, True):
    say(f"reset to {target!r}", outcome(made.reset_offsets, [(first, target)]))
made.reset_offsets([(first, dt.datetime(1999, 1, 1))])
say("next after a datetime", offset(made.consume()))
say("commit by a dict", outcome(made.commit_offsets, {first: 5}))
say("commit by a number", outcome(made.commit_offsets, [(0, 5)]))
say("commit by a pair", outcome(made.commit_offsets, [(first, 5)]))
say("fetched", [(p, r.offset, r.err) for p, r in made.fetch_offsets()])
made.stop()
made = consumer(consumer_group=GROUP + "-targets", reset_offset_on_fetch=False)
say("reset_offset_on_fetch=False", offset(made.consume()))
made.stop()
say("from one expression", len(list(islice(consumer(), 2))))
say("an expression that consumes", offset(consumer().consume()))
