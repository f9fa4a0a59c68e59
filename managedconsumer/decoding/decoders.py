"""The decoders by the names of their formats."""

from __future__ import annotations

from functools import lru_cache
from typing import Callable, Mapping

from managedconsumer.decoding.avro_values import AvroDecoder
from managedconsumer.decoding.formats import Decoder, ValueFormat
from managedconsumer.decoding.json_values import JsonDecoder
from managedconsumer.decoding.protobuf_values import ProtobufDecoder

#: The names of formats. (Their packages are imported when the first decoder is made.)
FORMATS: Mapping[str, Callable[[ValueFormat], Decoder]] = {
    "avro": AvroDecoder,
    "json": JsonDecoder,
    "protobuf": ProtobufDecoder,
}


@lru_cache(maxsize=32)
def decoder_of(value_format: ValueFormat) -> Decoder:
    """Return the decoder; raises MissingPackageError if its package is not installed."""
    return FORMATS[value_format.name](value_format)
