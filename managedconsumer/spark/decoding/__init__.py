"""Typed values: what ``value.format`` makes of a record's value, in the task. Imports no Spark."""
