"""A Python that is not installed here, from Debian's unstable packages in a directory of its own.

``python -m tests.chroot`` makes the directory with debootstrap (as root, once, in 40 s) and runs
``python -m tests.pythons 3.14`` in it. ``tests.pythons`` does that, too, for a version of these that it does not find.
The directory stays in the cache; remove it, and the next run makes a new one.

Everything is mounted in a mount namespace of the command's own, which ends with the command, however that ends: by
Ctrl-C or SIGKILL, too. So nothing is ever left mounted.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from managedconsumer.testing.kafka._jars import cache_dir

ROOT = Path(__file__).parent.parent
#: The versions that Debian's unstable packages have.
VERSIONS = ("3.14",)
MIRROR = "MANAGEDCONSUMER_DEBIAN_MIRROR"
#: Runs a command in a mount namespace: nobody else sees its mounts.
PRIVATE = ["unshare", "--mount", "--propagation", "private"]
#: What is the same inside: the kernel's trees, the network's settings, pip's settings and downloads.
KERNEL = ["/proc", "/dev", "/etc/resolv.conf", "/etc/hosts", "/etc/ssl/certs"]
PIP = ["/etc/pip.conf", "~/.config/pip", "~/.pip", "~/.netrc", "~/.cache/pip"]
#: How the names of variables begin that are the same inside. The first two may name files, which are there, too.
PASSED = ("PIP_", "SSL_", "MANAGEDCONSUMER_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "HOME", "CI", "TERM", "CFLAGS")


class NotSetUpError(Exception):
    """Why the directory cannot be made here."""


def run(version: str) -> int:
    """Run the tests on Python ``version``; the exit code. 0, and a line that says why, where it cannot be set up."""
    try:
        place = set_up(version)
    except NotSetUpError as error:
        print(f"Python {version} is not installed here, and cannot be set up: {error}. Not tested.", flush=True)
        return 0
    print(f"Python {version}: Debian's, in {place}", flush=True)
    return subprocess.call(inside(place, [f"python{version}", "-m", "tests.pythons", version]), env=environment())


def set_up(version: str) -> Path:
    """The directory with Python ``version``; NotSetUpError if there is none and it cannot be made."""
    if os.geteuid():
        raise NotSetUpError("only root can")
    attempt([*PRIVATE, "true"])
    place = cache_dir() / f"debian-python{version}"
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_name(f"{place.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            make(place, version)
    return place


def make(place: Path, version: str) -> None:
    """Unpack Debian's packages; ``place`` is there when all of them are."""
    if shutil.which("debootstrap") is None:
        attempt(["apt-get", "update", "-q"])
        attempt(["apt-get", "install", "-q", "-y", "debootstrap"])
    part = place.with_name(f"{place.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    python = f"python{version}"
    packages = ",".join([python, f"{python}-venv", f"{python}-dev", "gcc", "libc6-dev"])
    attempt([*PRIVATE, "debootstrap", "--variant=minbase", f"--include={packages}", "unstable", str(part), mirror()])
    part.rename(place)


def mirror() -> str:
    """The mirror of Debian that apt uses here."""
    if os.environ.get(MIRROR):
        return os.environ[MIRROR]
    only = ["Created-By: Packages", "Origin: Debian", "Label: Debian"]
    found = attempt(["apt-get", "indextargets", "--format", "$(REPO_URI)", *only]).split()
    if not found:
        raise NotSetUpError(f"apt uses no mirror of Debian here; {MIRROR} can name one")
    return found[0]


def attempt(command: list[str]) -> str:
    """What ``command`` prints; NotSetUpError with the last line of it if the command fails."""
    quiet = {"LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | quiet)
    except FileNotFoundError:
        raise NotSetUpError(f"there is no {command[0]}") from None
    if done.returncode:
        last = (done.stdout + done.stderr).strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise NotSetUpError(f"{shlex.join(command)}: {last[0]}")
    return done.stdout


def inside(place: Path, command: list[str]) -> list[str]:
    """The command that runs ``command`` in ``place``, in the checkout, whose path is the same there."""
    script = ["set -e"]
    for source in shared():
        target = Path(f"{place}{source}")
        folder = target if source.is_dir() else target.parent
        script.append(shlex.join(["mkdir", "-p", str(folder)]))
        if not source.is_dir():
            script.append(shlex.join(["touch", str(target)]))
        script.append(shlex.join(["mount", "--rbind", str(source), str(target)]))
    there = f"cd {shlex.quote(str(ROOT))} && exec {shlex.join(command)}"
    script.append(shlex.join(["exec", "chroot", str(place), "/bin/sh", "-c", there]))
    return [*PRIVATE, "sh", "-c", "\n".join(script)]


def shared() -> list[Path]:
    """What is the same inside and outside; nothing below something else of it."""
    named = [value for name, value in os.environ.items() if name.startswith(PASSED[:2]) and value.startswith("/")]
    wanted = {path for path in (Path(each).expanduser() for each in [*KERNEL, *PIP, *named]) if path.exists()} | {ROOT}
    return sorted(path for path in wanted if not wanted & set(path.parents))


def environment() -> dict[str, str]:
    """What holds inside, too: no path of this machine's programs or caches."""
    kept = {name: value for name, value in os.environ.items() if name.upper().startswith(PASSED)}
    kept.pop("MANAGEDCONSUMER_CACHE", None)
    return {**kept, "LANG": "C.UTF-8", "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"}


if __name__ == "__main__":
    sys.exit(max(run(version) for version in sys.argv[1:] or VERSIONS))
