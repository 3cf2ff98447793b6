"""A link that loses, delays and reorders: frames between two network devices go through here.

``python -m tests.hosts.lossy DEVICE OTHER SHARE DELAY_S``: loses a share of them, drawn; the others
come half to one and a half times `DELAY_S` late. For kernels without netem.
"""

from __future__ import annotations

import heapq
import itertools
import random
import select
import socket
import sys
import time
from contextlib import suppress

_ALL, _LEVEL, _HEADER, _IGNORE_OUTGOING = 3, 263, 15, 23  # of <linux/if_packet.h>


def _listen(device: str) -> socket.socket:
    found = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL))
    found.setsockopt(_LEVEL, _IGNORE_OUTGOING, 1)
    found.setsockopt(_LEVEL, _HEADER, 1)  # checksums and segments are left to whoever sends
    found.bind((device, 0))
    return found


def main(device: str, other: str, share: str, delay_s: str) -> None:
    draw = random.Random(1)
    ends = [_listen(device), _listen(other)]
    late: list[tuple[float, int, int, bytes]] = []
    for number in itertools.count():
        wait_s = max(0.0, late[0][0] - time.monotonic()) if late else None
        for found in select.select(ends, [], [], wait_s)[0]:
            frame = found.recv(2**17)
            if draw.random() >= float(share):
                at_s = time.monotonic() + float(delay_s) * (0.5 + draw.random())
                heapq.heappush(late, (at_s, number, ends.index(found), frame))
        while late and late[0][0] <= time.monotonic():
            _, _, came_by, frame = heapq.heappop(late)
            with suppress(OSError):  # no room: it is lost too
                ends[1 - came_by].send(frame)


if __name__ == "__main__":
    main(*sys.argv[1:])
