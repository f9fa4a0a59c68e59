"""What a wheel has to do where it was installed: ``python tests/installed.py``, away from the checkout.

cibuildwheel runs it in each environment that it builds for (pyproject.toml). It needs nothing but the wheel.
"""

from __future__ import annotations

import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
COUNT = 1000


def main() -> int:
    # Python puts the folder of the script on the path; the package must come from the wheel.
    sys.path[:] = [place for place in sys.path if Path(place).resolve() not in (CHECKOUT, CHECKOUT / "tests")]
    import managedconsumer
    from managedconsumer.testing import MemoryBroker, Record
    from managedconsumer.wire import records

    where = Path(managedconsumer.__file__).resolve().parent
    assert CHECKOUT not in where.parents, f"{where} is the checkout, not a wheel"
    assert (where / "py.typed").exists()
    assert records.__impl__ == "cython", f"the accelerator is not in the wheel: {records.__impl__}"
    with MemoryBroker({"orders": 2}) as broker:
        for partition in range(2):
            broker.produce("orders", [Record(b"%d" % n, b"k", n, ()) for n in range(COUNT)], partition=partition)
        with managedconsumer.ManagedBalancedConsumer("orders", broker.bootstrap, "billing") as consumer:
            seen = [consumer.consume() for _ in range(2 * COUNT)]
            consumer.commit_offsets()
        assert sorted((m.partition_id, m.offset) for m in seen) == [(p, n) for p in range(2) for n in range(COUNT)]
        assert sorted(broker.committed("billing").values()) == [COUNT, COUNT]
    print(f"managedconsumer {managedconsumer.__version__} on Python {sys.version.split()[0]}: {len(seen)} messages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
