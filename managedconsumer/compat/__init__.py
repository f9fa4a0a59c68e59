"""pykafka's objects, in and out. Only ``patch_pykafka()`` imports pykafka.

``client``, ``cluster``, ``parts``: our KafkaClient, Cluster, Topic, Partition, Broker with pykafka's attributes.
``accept``, ``membership``, ``tls``: a user's objects, pykafka's or ours, as the values that the core works with.
"""
