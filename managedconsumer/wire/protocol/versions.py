"""The version of a request that client and broker share."""

from __future__ import annotations

import struct
from typing import Any, Final, Mapping

from managedconsumer.errors import MalformedResponseError, UnsupportedBrokerError, UnsupportedVersion
from managedconsumer.wire.protocol.api import Api
from managedconsumer.wire.protocol.schemas import API_VERSIONS

Ranges = Mapping[int, "tuple[int, int]"]
OLDEST_BROKER: Final = "2.1"


def decode_api_versions(version: int, data: bytes | bytearray | memoryview) -> dict[str, Any]:
    """Decode a response to ApiVersions ``version``.  Raises MalformedResponseError.

    A broker without that version answers UNSUPPORTED_VERSION in version 0's form (KIP-511), with its own versions of
    ApiVersions, so that the client can ask again.
    """
    view = memoryview(data)
    if len(view) < 2:
        raise MalformedResponseError(f"an answer to ApiVersions has only {len(view)} bytes")
    error_code = struct.unpack_from(">h", view, 0)[0]
    return API_VERSIONS.decode(0 if error_code == UnsupportedVersion.ERROR_CODE else version, view)


def broker_ranges(body: Mapping[str, Any]) -> dict[int, tuple[int, int]]:
    """Return first and last version by api key, of a decoded response to ApiVersions."""
    return {each["api_key"]: (each["min_version"], each["max_version"]) for each in body["api_keys"]}


def supports(api: Api, ranges: Ranges, at_least: int = 0) -> bool:
    """Return whether broker and client share a version of ``api``, not below ``at_least``.

    Kafka 3.9 offers ConsumerGroupHeartbeat and refuses it when it is sent.
    """
    common = _common(api, ranges, None)
    return common is not None and common >= at_least


def negotiate(api: Api, ranges: Ranges, broker: str, *, at_most: int | None = None) -> int:
    """Return the highest version of ``api`` that ``broker`` ("host:port") and this client share, up to ``at_most``.

    Raises UnsupportedBrokerError.
    """
    common = _common(api, ranges, at_most)
    if common is not None:
        return common
    ours = (api.asked_from, api.max_version if at_most is None else min(api.max_version, at_most))
    theirs = ranges.get(api.key)
    raise UnsupportedBrokerError(broker, api.name, ours, theirs, _remedy(api, ours, theirs))


def _common(api: Api, ranges: Ranges, at_most: int | None) -> int | None:
    theirs = ranges.get(api.key)
    if theirs is None:
        return None
    highest = min(api.max_version, theirs[1], api.max_version if at_most is None else at_most)
    return highest if highest >= max(api.asked_from, theirs[0]) else None


def _remedy(api: Api, ours: tuple[int, int], theirs: tuple[int, int] | None) -> str:
    if theirs is None and api.since is not None:
        return f"{api.name} came with Kafka {api.since}: upgrade the broker, or do without what needs it."
    if theirs is None:
        return f"Use a broker of Kafka {OLDEST_BROKER} or newer; a proxy in between may also hide the request."
    if theirs[1] < ours[0]:
        return f"The broker is too old: upgrade it to Kafka {OLDEST_BROKER} or newer."
    return "The broker is newer than this client: upgrade managedconsumer."
