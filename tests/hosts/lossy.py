"""Relay of frames between two network devices that loses, delays and reorders them.

``python -m tests.hosts.lossy DEVICE OTHER LOSS_RATE DELAY_S`` loses a random share of the frames
and delays the others by 0.5 to 1.5 times `DELAY_S`. It replaces netem, which some kernels lack.
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
    connection = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL))
    connection.setsockopt(_LEVEL, _IGNORE_OUTGOING, 1)
    connection.setsockopt(_LEVEL, _HEADER, 1)  # the sender computes checksums and segments
    connection.bind((device, 0))
    return connection


def main(device: str, other: str, loss_rate: str, delay_s: str) -> None:
    draw = random.Random(1)
    ends = [_listen(device), _listen(other)]
    late: list[tuple[float, int, int, bytes]] = []
    for number in itertools.count():
        wait_s = max(0.0, late[0][0] - time.monotonic()) if late else None
        for connection in select.select(ends, [], [], wait_s)[0]:
            frame = connection.recv(2**17)
            if draw.random() >= float(loss_rate):
                at_s = time.monotonic() + float(delay_s) * (0.5 + draw.random())
                heapq.heappush(late, (at_s, number, ends.index(connection), frame))
        while late and late[0][0] <= time.monotonic():
            _, _, source, frame = heapq.heappop(late)
            with suppress(OSError):  # a full buffer loses the frame, too
                ends[1 - source].send(frame)


if __name__ == "__main__":
    main(*sys.argv[1:])
