"""The options of tables in Spark's catalog (``CREATE TABLE ... USING managedkafka OPTIONS (...)``). Pure.

Spark 4.3 hands a table's options over when the table is made, but not when it is read: then a source in Python gets the
options of the query (``WITH``, ``spark.read.options``) and the table's schema. So the schema keeps the table's options,
as metadata of its first column.
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
    """Return the user's own options of those that Spark passes when a table is made; names in lower case.

    Spark adds the table's properties (``provider``, ``owner``, ``location``, those of the user), and passes each option
    twice, as ``NAME`` and ``option.NAME``. So a name without that twin is no option.
    """
    if "provider" not in options:
        return options
    return {name: value for name, value in options.items() if f"{_TWIN}{name}" in options}


def metadata_of(options: Mapping[str, str]) -> dict[str, str]:
    """Return the metadata for the first column of a table; {} if ``options`` are not those of a table that is made.

    Raises ConfigurationError for secrets: Spark copies the metadata into files that are made of the table.
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
    """Return ``options`` of a query, which come first, with those of the table that has ``schema``."""
    noted = next((field.metadata[_KEY] for field in schema.fields if _KEY in (field.metadata or {})), "{}")
    given = {name.lower(): value for name, value in options.items()}
    return {**json.loads(noted), **given}
