"""Claims in a Delta table. Needs the package deltalake."""

from __future__ import annotations

import math
from importlib.util import find_spec
from typing import Any, Collection, Mapping, Sequence
from urllib.parse import unquote, urlparse

from managedconsumer.errors import ConfigurationError, MissingPackageError
from managedconsumer.shown import without_secrets
from managedconsumer.spark.claims.tables import Ends, TableClaims, schema
from managedconsumer.stores import delta_commits
from managedconsumer.structs import TopicPartition

#: The scheme of ``store``, alone or with that of an object store: ``delta+s3``.
SCHEME = "delta"


class DeltaClaims(TableClaims):
    """A :class:`~managedconsumer.spark.claims.log.ClaimLog` in a Delta table, which it makes. Used by one thread.

    ``url``: ``delta:///absolute/path``, or ``delta+s3://bucket/path`` with any scheme that deltalake knows.
    ``storage_options`` go to deltalake; without them it looks for credentials in the environment. The ends are
    application transactions of the Delta protocol (``txn``), so they outlive checkpoints and clean-ups of the log.
    Opens nothing before the first call. Raises ConfigurationError for another URL, MissingPackageError without
    deltalake.
    """

    def __init__(self, url: str, storage_options: Mapping[str, str] | None = None) -> None:
        self._path = _path(url)
        self._options = dict(storage_options or {})
        self._made = False
        if find_spec("deltalake") is None or find_spec("pyarrow") is None:
            raise MissingPackageError(
                "claims in a Delta table need deltalake and pyarrow: pip install 'managedconsumer[delta]', in the "
                "driver's environment"
            )

    def __repr__(self) -> str:
        return f"DeltaClaims({without_secrets(self._path)!r})"

    def _look(self, *, make: bool) -> Any:
        """See :meth:`TableClaims._look`."""
        from deltalake import DeltaTable

        if not self._made:
            if make:
                delta_commits.make_table(self._path, schema(), self._options)
            elif not DeltaTable.is_deltatable(self._path, self._options):
                return None
            self._made = True
        # From its log each time: a table that is kept does not see that it was replaced by an older copy.
        return DeltaTable(self._path, storage_options=self._options)

    def _marks(self, version: Any, tps: Collection[TopicPartition]) -> Ends:
        """See :meth:`TableClaims._marks`."""
        found = {tp: version.transaction_version(_name(tp)) for tp in tps}
        return {tp: int(end) for tp, end in found.items() if end is not None}

    def _append(self, version: Any, ends: Ends, rows: Any) -> bool:
        """See :meth:`TableClaims._append`."""
        return delta_commits.append(version, {_name(tp): end for tp, end in ends.items()}, rows)

    def _rows(self, version: Any, columns: Sequence[str]) -> Any:
        """See :meth:`TableClaims._rows`."""
        return version.to_pyarrow_table(columns=list(columns))

    def vacuum(self, older_than: float) -> int:
        """See :meth:`TableClaims.vacuum`. It counts in hours, rounded up."""
        version = self._look(make=False)
        if version is None:
            return 0
        version.optimize.compact()
        version.create_checkpoint()
        hours = max(0, math.ceil(older_than / 3600))
        return len(version.vacuum(hours, dry_run=False, enforce_retention_duration=False))


def _name(tp: TopicPartition) -> str:
    return f"managedconsumer/claims/{tp.topic}/{tp.partition}"


def _path(url: str) -> str:
    scheme, _, rest = url.partition("://")
    if scheme.startswith(f"{SCHEME}+") and rest:
        return f"{scheme.removeprefix(f'{SCHEME}+')}://{rest}"
    parsed = urlparse(url)
    if scheme != SCHEME or parsed.netloc or len(parsed.path) < 2:
        raise ConfigurationError(
            f"{without_secrets(url)!r}: a Delta table of claims is delta:///absolute/path or delta+s3://bucket/path, "
            "for example"
        )
    return unquote(parsed.path)
