"""Typed keys and values: bytes in Avro, JSON or Protobuf become Arrow columns. Pure; imports no Spark."""
