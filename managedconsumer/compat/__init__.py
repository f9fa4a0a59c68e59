"""pykafka's objects, in and out.

``client``, ``objects``: our own KafkaClient, Cluster, Topic, Partition, Broker with pykafka's attributes.  ``accept``,
``membership``, ``tls``: what users hand to our consumers, theirs or ours, turned into what the core works with.
``patch``: an unchanged pykafka program gets our consumers.  Nothing here imports pykafka except ``patch_pykafka()``.
"""
