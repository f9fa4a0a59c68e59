"""``patch_pykafka()``: an unchanged pykafka program gets our consumers."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Callable

from managedconsumer import errors as err
from managedconsumer.compat import registry

_MARK = "__managedconsumer_original__"


def patch_pykafka() -> Callable[[], None]:
    """Make ``get_simple_consumer`` and ``get_balanced_consumer`` of pykafka's Topic give our consumers.

    Takes effect for all topics, not for existing consumers. Calling it again changes nothing. The function returned
    restores pykafka's methods. Everything else of pykafka (its client, its producers) stays pykafka's.

    Raises MissingPackageError (an ImportError) when pykafka cannot be imported.
    """
    topic_class = _topic_class()
    for name, make in _REPLACEMENTS.items():
        theirs = getattr(topic_class, name)
        if not hasattr(theirs, _MARK):
            ours = make()
            setattr(ours, _MARK, theirs)
            setattr(topic_class, name, ours)
    return lambda: _restore(topic_class)


def _restore(topic_class: Any) -> None:
    for name in _REPLACEMENTS:
        original = getattr(getattr(topic_class, name), _MARK, None)
        if original is not None:
            setattr(topic_class, name, original)


# A new function for each use: it carries the method that it replaces.
def _simple() -> Callable[..., Any]:
    def get_simple_consumer(self: Any, consumer_group: Any = None, use_rdkafka: bool = False, **kwargs: Any) -> Any:
        """managedconsumer's SimpleConsumer of this topic."""
        return registry.make_simple_consumer(self, self._cluster, consumer_group, use_rdkafka, kwargs)

    return get_simple_consumer


def _balanced() -> Callable[..., Any]:
    def get_balanced_consumer(self: Any, consumer_group: Any, managed: bool = False, **kwargs: Any) -> Any:
        """managedconsumer's ManagedBalancedConsumer of this topic."""
        return registry.make_balanced_consumer(self, self._cluster, consumer_group, managed, kwargs)

    return get_balanced_consumer


_REPLACEMENTS = {"get_simple_consumer": _simple, "get_balanced_consumer": _balanced}


def _topic_class() -> Any:
    try:
        return import_module("pykafka.topic").Topic
    except ImportError as error:
        reason = f"it cannot be imported here: {error}"
        if getattr(error, "name", None) == "pkg_resources":
            reason = (
                "it needs pkg_resources, which setuptools has no longer since version 81: pip install 'setuptools<81'"
            )
        elif getattr(error, "name", None) in ("pykafka", "pykafka.topic"):
            reason = (
                "it is not installed: pip install 'pykafka>=2.8' 'setuptools<81' "
                "(what the extra 'managedconsumer[pykafka]' brings)"
            )
        raise err.MissingPackageError(f"patch_pykafka() is for programs that use pykafka, and {reason}") from error
