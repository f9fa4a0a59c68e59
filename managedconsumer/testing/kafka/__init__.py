"""A real Apache Kafka on this machine."""
