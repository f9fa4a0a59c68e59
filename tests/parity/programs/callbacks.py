"""``post_rebalance_callback``: what it is told, what its answer does, and what happens when it raises."""

from kit import BOOTSTRAP, GROUP, TIMEOUT, TOPIC, KafkaClient, ordered, outcome, places, say

client = KafkaClient(hosts=BOOTSTRAP, broker_version="0.10.2")
topic = client.topics[TOPIC]
number = 0


def consumer(callback, group=None, **options):
    global number
    number += 1
    options = {"consumer_timeout_ms": TIMEOUT, "heartbeat_interval_ms": 300, **options}
    return topic.get_balanced_consumer(
        consumer_group=group or f"{GROUP}-{number}", managed=True, post_rebalance_callback=callback, **options
    )


calls = []


def note(consumer, old, new):
    calls.append((type(consumer).__name__, dict(old), ordered(new)))


made = consumer(note)
say("called", calls)
say("reads", places(made))
made.stop()


def move(consumer, old, new):
    return {0: 17, 1: 3}


made = consumer(move)
say("after an answer", places(made))
made.stop()


def back(consumer, old, new):
    return new


made = consumer(back)
say("new handed back", places(made))
made.stop()


def beginning(consumer, old, new):
    return {0: -2, 1: -1}


made = consumer(beginning)
say("beginning and end", places(made))
made.stop()

inside = []


def look(consumer, old, new):
    inside.append((sorted(consumer.partitions), ordered(consumer.held_offsets)))


made = consumer(look)
say("inside the callback", inside)
made.stop()

latest = []


def tell(consumer, old, new):
    latest.append(ordered(new))


made = consumer(tell, auto_offset_reset=-1)
say("new at LATEST", latest)
say("held at LATEST", ordered(made.held_offsets))
made.stop()


def fail(consumer, old, new):
    raise RuntimeError("the callback's own")


made = outcome(consumer, fail)
say("made although the callback raises", (isinstance(made, str) and made) or type(made).__name__)
if not isinstance(made, str):
    say("then consume", outcome(made.consume))
    outcome(made.stop)


def foreign(consumer, old, new):
    return {7: 5}


made = outcome(consumer, foreign)
if not isinstance(made, str):
    made_consume = outcome(made.consume)
    say(
        "a foreign partition in the answer",
        made_consume if isinstance(made_consume, str) else type(made_consume).__name__,
    )
    outcome(made.stop)
else:
    say("a foreign partition in the answer", made)
