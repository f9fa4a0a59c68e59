"""The machine, the versions, and certificates for the TLS rows."""

from __future__ import annotations

import os
import platform
import time
from importlib import metadata
from pathlib import Path
from typing import Any

_PACKAGES = (
    "managedconsumer",
    "confluent-kafka",
    "kafka-python",
    "aiokafka",
    "pykafka",
    "cramjam",
    "lz4",
    "zstandard",
    "gevent",
    "pyarrow",
)


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def _librdkafka() -> str:
    try:
        import confluent_kafka
    except ImportError:
        return "not installed"
    return str(confluent_kafka.libversion()[0])


def refuse_the_twin() -> None:
    """End the program where it would measure the Python twin in place of what users install: three to ten times slower.

    The checkout comes first on the path of these programs, whatever is installed.
    """
    from managedconsumer.decoding.compiled import compiled
    from managedconsumer.wire import records

    missing = [] if records.__impl__ == "cython" else [f"the decoder of records ({records.__impl_reason__})"]
    if not compiled():
        missing.append("the decoder of Avro and Protobuf")
    if missing:
        raise SystemExit(
            f"{' and '.join(missing)} of {Path(records.__file__).parents[2]} would be the Python twin, and the figures "
            "would be the twin's. Build it there, and run this again: python setup.py build_ext --inplace"
        )


def facts_of(runs: int, loads: list[float]) -> dict[str, Any]:
    """When, where and with what."""
    from managedconsumer.wire import records

    return {
        "when": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "system": f"{_processor()}, {platform.system()} {platform.machine()}",
        "load": [round(min(loads), 1), round(max(loads), 1)],
        "versions": {name: _version(name) for name in _PACKAGES} | {"librdkafka": _librdkafka()},
        "decoder": records.__impl__,
        "runs": runs,
    }


def tls_properties(home: Path) -> tuple[dict[str, str], str]:
    """Settings of a broker with a TLS listener, and the certificate to trust; in ``home``."""
    import trustme
    from cryptography.hazmat.primitives import serialization

    authority = trustme.CA()
    cafile, keystore = home / "ca.pem", home / "server.pem"
    authority.cert_pem.write_to_path(cafile)
    issued = authority.issue_cert("localhost", "127.0.0.1")
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    # Kafka wants PKCS#8, trustme writes the traditional form.
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    keystore.write_bytes(pem + b"".join(each.bytes() for each in issued.cert_chain_pems))
    settings = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(keystore)}
    return settings, str(cafile)
