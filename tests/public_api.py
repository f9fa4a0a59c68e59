"""What users may import, written down as text: ``python -m tests.public_api`` writes ``public_api.txt`` anew.

The file is the contract. A change of it is a change of behaviour: it has a news fragment in changes.d.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SNAPSHOT = Path(__file__).with_suffix(".txt")
ALL = "__all__"
_OF_OURS = "managedconsumer"

#: Module and the names that users import from it; ALL: its ``__all__``, or every public name that it defines.
PROMISED: dict[str, list[str] | str] = {
    "managedconsumer": ALL,
    "managedconsumer.tokens": ALL,
    "managedconsumer.coordinator.assignors": [
        "CooperativeStickyPartitionAssignor",
        "RangePartitionAssignor",
        "RoundRobinPartitionAssignor",
        "StickyPartitionAssignor",
    ],
    "managedconsumer.coordinator.assignors.abstract": ["AbstractPartitionAssignor"],
    "managedconsumer.coordinator.assignors.cooperative_sticky": ["CooperativeStickyPartitionAssignor"],
    "managedconsumer.coordinator.assignors.range": ["RangePartitionAssignor"],
    "managedconsumer.coordinator.assignors.roundrobin": ["RoundRobinPartitionAssignor"],
    "managedconsumer.coordinator.assignors.sticky": ["StickyPartitionAssignor"],
    "managedconsumer.coordinator.base": ["BaseCoordinator", "GroupCoordinatorMetrics", "HeartbeatTask"],
    "managedconsumer.coordinator.consumer": ["AutoCommitTask", "ConsumerCoordinator", "ConsumerCoordinatorMetrics"],
    "managedconsumer.coordinator.heartbeat": ["Heartbeat"],
    "managedconsumer.coordinator.protocol": [
        "ConsumerProtocol",
        "ConsumerProtocolMemberAssignment",
        "ConsumerProtocolMemberMetadata",
    ],
    "managedconsumer.errors": ALL,
    "managedconsumer.listeners": ["AsyncConsumerRebalanceListener", "ConsumerRebalanceListener"],
    "managedconsumer.observe": ALL,
    "managedconsumer.observe.metrics": ["Metrics"],
    "managedconsumer.observe.recorder": ["Recorder"],
    "managedconsumer.stores": ALL,
    "managedconsumer.structs": ["OffsetAndMetadata", "OffsetResetStrategy", "OffsetType", "TopicPartition"],
    "managedconsumer.subscription_state": ["SubscriptionState", "TopicPartitionState"],
    "managedconsumer.testing": ALL,
    "managedconsumer.testing.kafka.devbroker": ["DevBroker"],
    "managedconsumer.testing.kafka.producer": ["Producer", "encode_plain"],
    "managedconsumer.typed_options": [
        "BalancedConsumerOptions",
        "ManagedConsumerOptions",
        "SecurityOptions",
        "SimpleConsumerOptions",
    ],
    "managedconsumer.wire.records": ["__impl__", "__impl_reason__"],
}
#: Needs PySpark, whose import takes seconds.
OF_SPARK: dict[str, list[str] | str] = {"managedconsumer.spark": ALL}
#: Run by ``python -m``.
PROGRAMS = ["managedconsumer"]
#: Users are given these and make none: their constructors are not promised.
_GIVEN = ("Commit",)
#: What one implementation of the decoder has more than the other.
_TWINS_OWN = ("origin", "raw_headers")
#: Where bases are promised.
_BASES = ("managedconsumer", "managedconsumer.errors", "managedconsumer.coordinator.base")
#: Users of pykafka override and call these.
_PRIVATE = (
    "_build_default_error_handlers",
    "_handle_error",
    "_join_group",
    "_setup_heartbeat_worker",
    "_sync_group",
    "_update_member_assignment",
)


def names_in(module: str, names: list[str] | str) -> list[str]:
    """The promised names of one module."""
    if names != ALL:
        return sorted(names)
    held = importlib.import_module(module)
    own = [
        name
        for name, value in vars(held).items()
        if not name.startswith("_") and name != "Root" and str(getattr(value, "__module__", "")).startswith(_OF_OURS)
    ]
    return sorted(getattr(held, ALL, own))


def described(promised: dict[str, list[str] | str]) -> str:
    """All of it as text: a module, its names, the members of the classes."""
    seen: dict[int, str] = {}
    lines = []
    for module, names in promised.items():
        lines.append(f"[{module}]")
        for name in names_in(module, names):
            value = getattr(importlib.import_module(module), name)
            known = seen.setdefault(id(value), f"{module}.{name}") if callable(value) else f"{module}.{name}"
            lines += [f"{name}: see {known}"] if known != f"{module}.{name}" else _item(name, value)
        lines.append("")
    return "\n".join(lines)


def _item(name: str, value: Any) -> Iterator[str]:
    if not inspect.isclass(value):
        yield f"{name}{_signature(value)}" if callable(value) else f"{name}: {type(value).__name__}"
        return
    code = f" = {value.ERROR_CODE}" if "ERROR_CODE" in vars(value) else ""
    yield f"class {name}({', '.join(base.__name__ for base in value.__mro__[1:] if _is_promised(base))}){code}"
    if issubclass(value, enum.Enum):
        yield from (f"    {member.name} = {member.value!r}" for member in value)
    if issubclass(value, BaseException):
        return
    if not issubclass(value, enum.Enum) and value.__name__ not in _GIVEN:
        yield f"    __init__{_signature(value)}"
    for key in sorted({key for key in dir(value) if not key.startswith("_")} | set(_PRIVATE)):
        if _defined_by_us(value, key):
            yield from (f"    {line}" for line in _member(key, inspect.getattr_static(value, key)))


def _is_promised(base: type) -> bool:
    """Where else a class comes from is nobody's business."""
    if not base.__module__.startswith(_OF_OURS):
        return base.__module__ == "builtins" and base not in (object, Exception, BaseException)
    return base.__name__ != "Root" and any(
        getattr(importlib.import_module(module), base.__name__, None) is base for module in _BASES
    )


def _defined_by_us(owner: type, key: str) -> bool:
    """Also what tuples and enums bring is left out."""
    if key in _TWINS_OWN:
        return False
    holder = next((base for base in owner.__mro__ if key in vars(base)), object)
    return holder.__module__.startswith(_OF_OURS) and not isinstance(vars(holder)[key], enum.Enum)


def _member(key: str, member: Any) -> Iterator[str]:
    if isinstance(member, (classmethod, staticmethod)):
        yield f"{type(member).__name__} {key}{_signature(member.__func__)}"
    elif callable(member) and not inspect.isclass(member):
        yield f"{key}{_signature(member)}"
    else:
        yield key


def _signature(call: Callable[..., Any]) -> str:
    """Names, kinds and defaults, and what is returned; "(...)" where the accelerator or C do not say."""
    module = str(getattr(call, "__module__", ""))
    if module.endswith(("._records", "_py")) or getattr(call, "__name__", "") == "consume":
        return "(...)"
    try:
        signature = inspect.signature(call)
    except (TypeError, ValueError):
        return "(...)"
    parameters = [parameter.replace(annotation=parameter.empty) for parameter in signature.parameters.values()]
    # The same with the accelerator, which does not say what it returns.
    say = not inspect.isclass(call) and signature.return_annotation is not signature.empty
    returned = f" -> {_text(signature.return_annotation)}" if say else ""
    plain = signature.replace(parameters=parameters, return_annotation=signature.empty)
    return re.sub(r" at 0x[0-9a-f]+|<class '([\w.]+)'>", r"\1", str(plain).replace("self, /", "self")) + returned


def _text(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else str(annotation)


def main() -> None:
    """Write the snapshot."""
    SNAPSHOT.write_text(described(PROMISED) + "\n" + described(OF_SPARK), encoding="utf-8")
    sys.stdout.write(f"{SNAPSHOT} was written\n")


if __name__ == "__main__":
    main()
