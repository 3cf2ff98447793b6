"""Stage of the plain ZeroMQ chain: receives a message and sends a new array of the same size.

``python -m benchmarks.zmq_relay RECEIVE SEND [SECONDS]``: addresses to receive from and send to,
and seconds to sleep as computation.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import zmq

#: From this size on ZeroMQ sends without a copy; below it a copy is faster.
COPIED_NBYTES = 64_000


def send(socket: zmq.Socket[bytes], header: bytes, array: np.ndarray) -> None:
    """Send a header and a tensor's bytes."""
    socket.send(header, zmq.SNDMORE)
    socket.send(array.data, copy=array.nbytes < COPIED_NBYTES)


def receive(socket: zmq.Socket[bytes]) -> tuple[bytes, np.ndarray]:
    """Receive a header and an array from `send`; the array uses the message's memory."""
    header = socket.recv()
    return header, np.frombuffer(socket.recv(copy=False), np.float32)


def main(take: str, give: str, seconds: str = "0") -> None:
    context = zmq.Context()
    pull, push = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    pull.bind(take)
    push.connect(give)
    while True:
        header, x = receive(pull)
        if float(seconds):
            time.sleep(float(seconds))
        send(push, header, np.zeros_like(x))


if __name__ == "__main__":
    main(*sys.argv[1:])
