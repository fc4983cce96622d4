"""Reading a cluster file as TOML; whatever cannot be read is refused in one line."""

import os
import re
import stat
import tomllib
from typing import Any

from mpkv.cluster.words import shown
from mpkv.errors import ConfigRefused

# Far more than a cluster of thousands of nodes needs.
LARGEST_FILE = 1 << 20


def read_toml(path: str) -> dict[str, Any]:
    """Raises ConfigRefused."""
    try:
        # A byte-order mark is how some editors say UTF-8.
        text = _read(path).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigRefused(f"{path}: is not UTF-8 text; save it as UTF-8.") from None
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ConfigRefused(
            f"{path}: arrays or tables are nested too deep to be read; take the nesting out: "
            "a cluster file has sections, and keys in them."
        ) from None
    except ValueError as error:
        # Not all are TOMLDecodeError: Python itself refuses a number of 5,000 digits.
        where = re.search(r"^(?P<what>.*) \(at (?P<where>[^)]*)\)$", str(error), re.DOTALL)
        what, line = (where["what"], where["where"]) if where else (str(error), "TOML")
        raise ConfigRefused(f"{path}: {line}: {shown(what)}; correct the TOML there.") from None


def _read(path: str) -> bytes:
    try:
        # A FIFO would have its reader wait for a writer.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise ConfigRefused(
                    f"{path}: is no regular file; name the cluster file, or save it as one."
                )
            text = file.read(LARGEST_FILE + 1)
    except FileNotFoundError:
        raise ConfigRefused(
            f"{path}: no such file; name an existing cluster file, such as configs/local.toml."
        ) from None
    except IsADirectoryError:
        raise ConfigRefused(f"{path}: is a directory; name the cluster file in it.") from None
    except PermissionError as error:
        raise ConfigRefused(
            f"{path}: cannot be read ({error.strerror}); make it readable for this user."
        ) from None
    except OSError as error:
        raise ConfigRefused(
            f"{shown(path)}: cannot be read ({error.strerror}); name an existing cluster file."
        ) from None
    except ValueError:  # a NUL
        raise ConfigRefused(f"{shown(path)}: is no file's name; name a cluster file.") from None
    if len(text) > LARGEST_FILE:
        raise ConfigRefused(
            f"{path}: is larger than {LARGEST_FILE >> 20} MiB and no cluster file; name another."
        )
    return text
