"""Addresses at which processes of this machine listen, from /proc."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Final

#: State of a listening socket in /proc/net/tcp.
_LISTEN: Final = "0A"
#: Addresses of this machine alone, as in /proc/net/tcp and /proc/net/tcp6.
LOOPBACK: Final = {
    "0100007F",
    "00000000000000000000000001000000",
    "0000000000000000FFFF00000100007F",
}


def listening_addresses(process: Path) -> set[str]:
    """Return the addresses at which a process (its folder in /proc) listens; none if it ended."""
    inodes = set()
    try:
        for entry in (process / "fd").iterdir():
            with contextlib.suppress(OSError):  # the process has closed it
                inodes |= set(re.findall(r"socket:\[(\d+)\]", str(entry.readlink())))
        rows = [
            line.split()
            for name in ("tcp", "tcp6")
            for line in (process / "net" / name).read_text().splitlines()[1:]
        ]
    except OSError:  # the process has ended
        return set()
    return {row[1].partition(":")[0] for row in rows if row[3] == _LISTEN and row[9] in inodes}


def session_members(session: int) -> list[Path]:
    """Return the folders in /proc of the processes of a session."""
    members = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(ProcessLookupError):  # the process has ended
            if os.getsid(int(folder.name)) == session:
                members.append(folder)
    return members
