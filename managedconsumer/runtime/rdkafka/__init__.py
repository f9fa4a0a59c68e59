"""librdkafka as the fetcher (``use_rdkafka``)."""
