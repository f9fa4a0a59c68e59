"""Kafka's requests and answers: bytes to values and back."""
