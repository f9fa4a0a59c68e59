"""A real browser: the machine's own Chromium, or the headless one that an npm package brings, asked over a pipe.

The pipe speaks Chromium's DevTools protocol: JSON, and a zero byte behind each message.
"""

from __future__ import annotations

import base64
import hashlib
import io
import itertools
import json
import os
import platform
import select
import shutil
import subprocess
import sys
import tarfile
import time
import urllib.request
from fcntl import F_DUPFD, fcntl
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "headless_shell")
_VERSION = "153.0.0"
_PACKAGE = f"https://registry.npmjs.org/@sparticuz/chromium/-/chromium-{_VERSION}.tgz"
_SHA512 = "jiGWqSvPMdu4+P9TilYqAR7yEGPEHINx+lCvE/NqNO/EHYzF/x1hUiI5T6ioVIt7dEy7n88byyT0vk+dnsgQwA=="
_CACHE = Path.home() / ".cache" / "managedconsumer" / f"chromium-{_VERSION}"
# Without a font, text has no height.
_FONTS = f"<fontconfig><dir>{_CACHE / 'fonts'}</dir><cachedir>{_CACHE / 'fonts-cache'}</cachedir></fontconfig>"
# Chromium reads commands from descriptor 3 and answers on 4.
_LAUNCH = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
)
_PATIENCE = 60.0


def find() -> Path | None:
    """The browser's program; None where there is none for this machine."""
    for name in NAMES:
        if path := shutil.which(name):
            return Path(path)
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return None
    if not _CACHE.exists():
        _install()
    return _CACHE / "headless_shell"


def _install() -> None:
    """Raises OSError where the registry cannot be reached, ValueError for a package that is not the known one."""
    import brotli

    with urllib.request.urlopen(_PACKAGE, timeout=_PATIENCE) as answer:
        package = answer.read()
    if base64.b64encode(hashlib.sha512(package).digest()).decode() != _SHA512:
        raise ValueError(f"{_PACKAGE} is not the package whose checksum is known")
    _CACHE.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(mkdtemp(dir=_CACHE.parent))
    with tarfile.open(fileobj=io.BytesIO(package)) as files:
        for name in ("chromium", "al2023.tar", "fonts.tar", "swiftshader.tar"):
            packed = files.extractfile(f"package/bin/{name}.br")
            assert packed is not None
            plain = brotli.decompress(packed.read())
            if name == "chromium":
                (draft / "headless_shell").write_bytes(plain)
                (draft / "headless_shell").chmod(0o755)
                continue
            with tarfile.open(fileobj=io.BytesIO(plain)) as more:
                more.extractall(draft, filter="data")
    (draft / "fonts.conf").write_text(_FONTS, encoding="utf-8")
    try:
        draft.rename(_CACHE)
    except OSError:  # another process was faster
        shutil.rmtree(draft)


class Browser:
    """Chromium without a window, 1280 by 900 pixels. Use it by ``with``."""

    def __init__(self, program: Path, home: Path) -> None:
        """``home``: an empty directory for its profile."""
        words = ["--headless", "--disable-gpu", "--remote-debugging-pipe", f"--user-data-dir={home}"]
        words += ["--window-size=1280,900", "--disable-dev-shm-usage"]
        if os.geteuid() == 0:
            words.append("--no-sandbox")  # Chromium refuses to run as root with it
        environment = dict(os.environ)
        if program.parent == _CACHE:  # with the libraries that come with it
            words.append("--no-zygote")
            environment.update(LD_LIBRARY_PATH=str(_CACHE / "lib"), FONTCONFIG_FILE=str(_CACHE / "fonts.conf"))
        theirs, self._to = os.pipe()
        self._from, answers = os.pipe()
        ends = [fcntl(end, F_DUPFD, 10) for end in (theirs, answers)]
        command = [sys.executable, "-c", _LAUNCH, *map(str, ends), str(program), *words]
        self._process = subprocess.Popen(
            command, pass_fds=ends, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        for end in (theirs, answers, *ends):
            os.close(end)
        self._numbers, self._got = itertools.count(1), b""

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        os.close(self._to)
        os.close(self._from)

    def ask(self, page: Path, expression: str) -> Any:
        """Open ``page``; what ``expression`` gives in it, as soon as that is something."""
        target = self._call("Target.createTarget", url=page.as_uri())["targetId"]
        session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        end = time.monotonic() + _PATIENCE
        while time.monotonic() < end:
            answer = self._call("Runtime.evaluate", session, expression=expression, returnByValue=True)
            if found := answer["result"].get("value"):
                return found
            time.sleep(0.05)
        raise TimeoutError(f"{expression} gave nothing: {answer}")

    def _call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + _PATIENCE
        while b"\0" not in self._got:
            ready, _, _ = select.select([self._from], [], [], max(0.0, end - time.monotonic()))
            more = os.read(self._from, 1 << 16) if ready else b""
            if not more:
                self._process.kill()
                said = self._process.communicate()[1].decode(errors="replace")
                raise RuntimeError(f"the browser {'ended' if ready else 'does not answer'}: {said}")
            self._got += more
        message, _, self._got = self._got.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found
