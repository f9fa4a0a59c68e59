"""Tables of Spark's catalog (``CREATE TABLE ... USING managedkafka OPTIONS (...)``): where their options are. Pure.

Spark 4.3 hands a table's options over when the table is made. When it is read, a source in Python gets those of the
query alone (``WITH``, ``spark.read.options``) and the table's schema. So the schema keeps them, as metadata of the
first column.
"""

from __future__ import annotations

import json
import re
from typing import Any, Mapping

from managedconsumer.errors import ConfigurationError
from managedconsumer.shown import without_secrets

_KEY = "managedkafka.options"
_TWIN = "option."
_SECRET = re.compile("password|secret|jaas|extensions", re.IGNORECASE)


def of_user(options: Mapping[str, str]) -> Mapping[str, str]:
    """The user's own options, of those that Spark hands over when a table is made; names in lower case.

    Spark adds the table's properties (``provider``, ``owner``, ``location``, those of the user), and says each option a
    second time as ``option.NAME``. So what is said once is no option.
    """
    if "provider" not in options:
        return options
    return {name: value for name, value in options.items() if f"{_TWIN}{name}" in options}


def metadata_of(options: Mapping[str, str]) -> dict[str, str]:
    """Return the metadata for the first column of a table; {} if ``options`` are not those of a table that is made.

    Raises ConfigurationError for secrets: who writes rows of the table elsewhere writes the metadata, too.
    """
    given = {name.lower(): str(value) for name, value in options.items()}
    if "provider" not in given:
        return {}
    kept = of_user(given)
    for name, value in kept.items():
        if _SECRET.search(name) or without_secrets(value) != value:
            raise ConfigurationError(
                f"a table cannot keep the option {name}, which may be a secret: Spark would write it into files that "
                "are made of the table. CREATE TEMPORARY VIEW ... USING managedkafka OPTIONS (...) takes it"
            )
    return {_KEY: json.dumps(kept)}


def with_those_of(schema: Any, options: Mapping[str, str]) -> dict[str, str]:
    """``options`` of a query, which count first, and those of the table that has ``schema``."""
    noted = next((field.metadata[_KEY] for field in schema.fields if _KEY in (field.metadata or {})), "{}")
    given = {name.lower(): value for name, value in options.items()}
    return {**json.loads(noted), **given}
