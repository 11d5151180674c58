"""The project's images, built by buildah on a base of Debian's own python3.11, and programs that run out of them."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from tests.conftest import ROOT

BASE = "debian-python"


def missing_requirement() -> str:
    """Why images cannot be built on this machine; "": they can."""
    if os.geteuid() != 0:
        return "images are built as root"
    missing = [tool for tool in ("buildah", "debootstrap") if shutil.which(tool) is None]
    return f"{' and '.join(missing)} not installed (Debian: {' '.join(missing)})" if missing else ""


class Images:
    """A store of images in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._store = ("--root", str(folder / "store"), "--runroot", str(folder / "run"))

    def buildah(self, *arguments: str) -> str:
        done = subprocess.run(["buildah", *self._store, *arguments], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, f"buildah {' '.join(arguments)}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done.stdout.strip()

    def build_base(self) -> None:
        """Debian with python3.11, from the mirror that debootstrap knows."""
        root = self._folder / "debian"
        command = ["debootstrap", "--variant=minbase", "--include=python3,python3-venv", "bookworm", str(root)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        container = self.buildah("from", "scratch")
        self.buildah("add", "--quiet", container, str(root), "/")
        self.buildah("commit", "--quiet", container, BASE)
        self.buildah("rm", container)
        shutil.rmtree(root)

    def download_wheels(self, extras: str) -> None:
        """Fetch wheels with this machine's pip: the build container has no pip configuration."""
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary", ":all:"]
        command = [
            *pip,
            "--constraint",
            "constraints.txt",
            "--dest",
            str(self._folder / "wheels"),
            "setuptools>=77",
            f".[{extras}]",
        ]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        (self._folder / "pip.conf").write_text("[global]\nno-index = true\nfind-links = /wheels\n")

    def build(self, dockerfile: str, name: str, extras: str) -> None:
        wheels = (f"{self._folder / 'wheels'}:/wheels:ro", f"{self._folder / 'pip.conf'}:/etc/pip.conf:ro")
        mounts = [argument for mount in wheels for argument in ("--volume", mount)]
        arguments = ("--build-arg", f"BASE=localhost/{BASE}", "--build-arg", f"EXTRAS={extras}")
        self.buildah("build", "--isolation=chroot", *mounts, *arguments, "--file", dockerfile, "--tag", name, ".")

    def entrypoint(self, name: str) -> list[str]:
        return list(json.loads(self.buildah("inspect", "--type", "image", name))["OCIv1"]["config"]["Entrypoint"])

    def size_mb(self, name: str) -> float:
        images = {
            image["names"][0]: image["size"] for image in json.loads(self.buildah("images", "--json")) if image["names"]
        }
        whole, base = (_megabytes(images[f"localhost/{each}:latest"]) for each in (name, BASE))
        return whole - base

    @contextlib.contextmanager
    def running(
        self, name: str, command: list[str], log: IO[str], volumes: dict[Path, str] | None = None
    ) -> Iterator["RunningContainer"]:
        """Run a command as the image's own user. `volumes`: where folders of this machine are mounted; read-only but
        /out."""
        container = self.buildah("from", name)
        mounts = [f"{source}:{target}{'' if target == '/out' else ':ro'}" for source, target in (volumes or {}).items()]
        flags = [argument for mount in mounts for argument in ("--volume", mount)]
        arguments = ["buildah", *self._store, "run", "--isolation=chroot", *flags, container, "--", *command]
        process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True)
        running = RunningContainer(process)
        try:
            yield running
        finally:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(running.pid(), signal.SIGKILL)
            process.wait(60)
            process.stdout.close()
            self.buildah("rm", container)

    def remove(self) -> None:
        self.buildah("rmi", "--all", "--force")


def _megabytes(text: str) -> float:
    number, unit = text.split()
    return float(number) * {"MB": 1.0, "GB": 1000.0}[unit]


class RunningContainer:
    """A command that runs in a container; `process` is buildah's, with the command's output and exit code."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process

    def pid(self) -> int:
        """The process of the command itself: the first one below buildah's own. Raises ProcessLookupError."""
        found = self.process.pid
        while "buildah" in Path(f"/proc/{found}/comm").read_text():
            # buildah is a Go program: any of its threads may have started the command
            children = [
                pid for path in Path(f"/proc/{found}/task").glob("*/children") for pid in path.read_text().split()
            ]
            if not children:
                raise ProcessLookupError(f"buildah's process {found} has started no command")
            found = int(children[0])
        return found
