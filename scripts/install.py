"""Install the pinned dependencies and the project into ``.venv``; called by ``scripts/setup`` with a stamp.

Standard library alone: it runs before anything is installed.
"""

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
STAMP = VENV / "setup-stamp"

BOOTSTRAP_LOCK = "requirements-bootstrap.lock"
REQUIRED_LOCKS = ("requirements.lock", "requirements-dev.lock")
OPTIONAL_LOCKS = ("requirements-local.lock", "requirements-model.lock")

CERTIFICATES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
"""Where systems keep the certificates they trust; one of them says that there are any."""

LOCKED_PACKAGE = re.compile(r"^([A-Za-z0-9._-]+)==.*(?:\n[ \t]+.*)*", re.MULTILINE)
"""A package of a lock file, with its hashes."""


class SetupError(Exception):
    """The set-up cannot go on; the message is one sentence that says what to do."""


def main() -> int:
    """Bring ``.venv`` up to date, one caller at a time, and return the exit code."""
    stamp = sys.argv[1] + "\n"
    started = time.monotonic()
    try:
        with only_one_at_a_time():
            if STAMP.is_file() and STAMP.read_text() == stamp and VENV_PYTHON.exists():
                return 0
            set_up()
            STAMP.write_text(stamp)
    except SetupError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except OSError as error:
        sys.stderr.write(f"Cannot set up {VENV}: {error.strerror or error}.\n")
        return 1
    say(f"Set up in {time.monotonic() - started:.0f} s.")
    return 0


@contextlib.contextmanager
def only_one_at_a_time() -> Iterator[None]:
    """Hold a lock that ends with the process, on a file that is always there."""
    with Path(__file__).open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def set_up() -> None:
    """Make the environment, then install what the locks name, then the project itself."""
    version = ".".join(str(part) for part in sys.version_info[:3])
    say(f"Setting up .venv with Python {version} ({sys.executable}); the first time takes a minute or two.")
    STAMP.unlink(missing_ok=True)
    uv = shutil.which("uv")
    if not has_this_python():
        shutil.rmtree(VENV, ignore_errors=True)
        make_environment(uv)
    if uv is None:
        uv = install_uv()
    install_locked(uv)
    # The project is linked, not copied; its build tool is among what the locks installed.
    run_uv(uv, "install", "--no-deps", "--no-build-isolation", "--offline", "--quiet", "--editable", str(ROOT))
    # Modules are compiled once here: importing them uncompiled costs each start seconds.
    run([VENV_PYTHON, "-m", "compileall", "-q", "-j", "0", "horde"], "compile the project's modules")


def has_this_python() -> bool:
    """Whether the environment exists, works and has the version of the Python that runs this."""
    script = "import sys; print(sys.version_info[:2])"
    try:
        result = subprocess.run([VENV_PYTHON, "-I", "-c", script], capture_output=True, text=True, check=False)
    except OSError:
        return False
    return result.stdout.strip() == str(sys.version_info[:2])


def make_environment(uv: str | None) -> None:
    """Make an empty ``.venv``."""
    if uv is not None:
        run([uv, "venv", "--quiet", "--no-project", "--python", sys.executable, VENV], "make .venv with uv")
        return
    import_check = subprocess.run([sys.executable, "-I", "-c", "import ensurepip"], capture_output=True, check=False)
    if import_check.returncode != 0:
        raise SetupError(
            f"{sys.executable} cannot make virtual environments (no ensurepip); install its venv package (on Debian"
            f" and Ubuntu: python3.{sys.version_info.minor}-venv) or uv (https://docs.astral.sh/uv/), then run this"
            " again.",
        )
    run([sys.executable, "-I", "-m", "venv", VENV], "make .venv")


def install_uv() -> str:
    """Put the pinned uv into the environment with pip and return its path."""
    uv = VENV / "bin" / "uv"
    if not uv.is_file():
        say("Installing uv into .venv, which installs the rest.")
        pip: list[str | Path] = [
            VENV_PYTHON,
            "-I",
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-cache-dir",
        ]
        run([*pip, "--no-deps", "--require-hashes", "-r", BOOTSTRAP_LOCK], "install uv with pip")
    return str(uv)


def install_locked(uv: str) -> None:
    """Make the environment hold exactly what the locks name.

    Packages of the optional locks that have no wheel for this platform are left out, and named.
    """
    sync = ("sync", "--require-hashes", "--compile-bytecode", "--quiet")
    if run_uv(uv, *sync, *only_wheels(), *REQUIRED_LOCKS, *OPTIONAL_LOCKS, may_fail=True):
        return
    run_uv(uv, *sync, *REQUIRED_LOCKS)
    for name, requirement in optional_packages():
        install_optional(uv, name, requirement)


def optional_packages() -> Iterator[tuple[str, str]]:
    """Yield name and locked requirement of each package that a platform may do without."""
    for lock in OPTIONAL_LOCKS:
        for match in LOCKED_PACKAGE.finditer((ROOT / lock).read_text()):
            yield match[1], match[0]


def only_wheels() -> list[str]:
    """Return the options that keep the optional packages from being compiled, which takes many minutes."""
    return [option for name, _ in optional_packages() for option in ("--only-binary", name)]


def install_optional(uv: str, name: str, requirement: str) -> None:
    """Install one package of the optional locks, or say that this platform goes without.

    Raises:
        SetupError: It failed for another reason than a missing wheel.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".txt", dir=VENV) as file:
        file.write(requirement + "\n")
        file.flush()
        arguments = ["install", "--no-deps", "--require-hashes", "--compile-bytecode", "--only-binary", name]
        result = subprocess.run(
            [uv, "pip", *arguments, "--quiet", "--python", VENV_PYTHON, "-r", file.name],
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
            env=uv_environment(uv),
        )
    if result.returncode == 0:
        return
    if "wheel" not in result.stderr and "platform" not in result.stderr:
        sys.stderr.write(result.stderr)
        raise SetupError(f"Cannot install {name}; see above.")
    say(f"{name} has no wheel for this platform: `horde up` needs a server of yours in its place (horde up --help).")


def run_uv(uv: str, command: str, *arguments: str, may_fail: bool = False) -> bool:
    """Run one of uv's pip commands on the environment and say whether it succeeded."""
    argv = [uv, "pip", command, "--python", str(VENV_PYTHON), *arguments]
    return run(argv, f"install packages (uv pip {command})", may_fail=may_fail, environment=uv_environment(uv))


def uv_environment(uv: str) -> dict[str, str]:
    """Return the person's environment, less what would lead uv elsewhere."""
    ignored = {"VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "PYTHONHOME", "UV_SYSTEM_PYTHON", "UV_NO_CACHE"}
    environment = {key: value for key, value in os.environ.items() if key not in ignored}
    if any(Path(path).is_file() for path in CERTIFICATES):
        # As pip does: a network that inspects what it carries has its certificate there, and not in uv.
        environment.setdefault("UV_SYSTEM_CERTS", "true")
    if Path(uv).is_relative_to(VENV):
        # Who has no uv expects no cache of it in the home folder, which may not even be writable.
        environment.setdefault("UV_CACHE_DIR", str(VENV / "cache"))
    return environment


def run(
    argv: Sequence[str | Path],
    doing: str,
    *,
    may_fail: bool = False,
    environment: dict[str, str] | None = None,
) -> bool:
    """Run a program in the project's folder and say whether it succeeded.

    Args:
        argv: Program and arguments.
        doing: What it does, as it continues "Cannot …".
        may_fail: A failure is returned, and what it printed is dropped.
        environment: The whole environment; None inherits.

    Raises:
        SetupError: It failed.
    """
    output = subprocess.DEVNULL if may_fail else None
    succeeded = subprocess.run(argv, check=False, cwd=ROOT, env=environment, stderr=output).returncode == 0
    if not succeeded and not may_fail:
        raise SetupError(f"Cannot {doing}; the reason is above.")
    return succeeded


def say(sentence: str) -> None:
    """Print a line at once, also into a pipe."""
    sys.stdout.write(sentence + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
