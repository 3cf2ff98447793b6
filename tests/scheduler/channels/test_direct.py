"""The direct channel: messages arrive once; liveness and losses are reported."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from itertools import count
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import pytest
import zmq

from hetero.devices.errors import BlobError, ClusterError
from hetero.scheduler.channels import addresses
from hetero.scheduler.channels.addresses import to_address, to_endpoint
from hetero.scheduler.channels.direct import DirectChannel
from hetero.scheduler.channels.lane import (
    TO_STAGE,
    LaneHead,
    lane_key,
    read_head,
    read_tensors,
)
from hetero.scheduler.channels.peers import SHARED_NBYTES
from hetero.scheduler.types.messages import Dropped
from tests.scheduler.endpoints import (
    LONG_S,
    TASK,
    ChannelEndpoint,
    check,
    echo_process,
    number_of,
    values,
    wait_for,
)


@pytest.fixture(params=["ipc", "tcp", "tcp with CURVE"])
def pair(
    request,
    make_endpoint,
    monkeypatch,
):
    """Two endpoints on one node, or on two simulated nodes."""
    if request.param == "ipc":
        return make_endpoint(), make_endpoint()
    parties = [make_endpoint(host="127.0.0.1", curve="CURVE" in request.param) for _ in range(2)]
    monkeypatch.setattr(addresses, "this_node", lambda: "elsewhere")
    return parties[0], parties[1]


@pytest.mark.parametrize("size", [4, 10_000, 1_000_000])
@pytest.mark.parametrize("count", [1, 15])
def test_messages_and_replies_arrive_once(pair, size, count):
    first, second = pair
    for number in range(count):
        first.channel.send(second.address, values(number, size))
    for number, message in enumerate(sorted((second.next() for _ in range(count)), key=number_of)):
        check(message, number, size)
    assert second.channel.pump(0) == 0
    second.channel.send(first.address, values(7, size))
    check(first.next(), 7, size)


def test_messages_beyond_kernel_buffers_wait_and_arrive_in_order(
    make_endpoint,
):
    first, second = make_endpoint(), make_endpoint()
    count = 2000  # more than the buffers of any kernel
    for number in range(count):
        first.channel.send(second.address, values(number))
    assert [number_of(second.next()) for _ in range(count)] == list(range(count))


def test_mixed_sizes_beyond_kernel_buffers_arrive_in_order(
    make_endpoint,
):
    first, second = make_endpoint(shared_nbytes=None), make_endpoint()
    sizes = (4, 1_000_000, 40_000, 200_000)
    for number in range(20):
        first.channel.send(second.address, values(number, sizes[number % 4]))
    for number in range(20):
        check(second.next(), number, sizes[number % 4])
    assert not second.channel._inbox.losses


def test_packed_messages_beyond_kernel_buffers_wait_and_arrive_in_order(
    make_endpoint,
):
    first, second = make_endpoint(), make_endpoint()
    first.channel.send(second.address, values(0))
    check(second.next(), 0)
    arrived: list[tuple[int, np.ndarray]] = []

    def receive(data: bytes, start: int) -> None:
        head = read_head(data, start)
        arrived.append((head.request_id, *read_tensors(data, head, second.channel.stored_tensor)))

    second.channel.receive_lane = receive
    memory = np.zeros(SHARED_NBYTES, np.float32)
    for number in range(2000):  # more than the buffers of any kernel
        memory[:] = number  # it is used again for each message
        tensor = memory[:4] if number % 100 else memory
        head = LaneHead(TO_STAGE, 0, 0, lane_key("key"), number, 1, 0, 0, 1, 0)
        assert first.channel.send_lane(second.address, head, b"", [tensor])
    wait_for(lambda: second.channel.pump(0.1) and len(arrived) == 2000)
    for number, (request_id, tensor) in enumerate(arrived):
        size = 4 if number % 100 else memory.size
        assert request_id == number
        np.testing.assert_array_equal(tensor, np.full(size, number, np.float32))


def test_packed_message_that_cannot_be_sent_frees_its_shared_memory(
    make_endpoint,
):
    first, second = make_endpoint(), make_endpoint()
    first.channel.send(second.address, values(0))
    large = np.ones(SHARED_NBYTES, np.float32)
    head = LaneHead(TO_STAGE, 0, 0, lane_key("key"), 1, 1, 0, 0, 3, 0)
    assert not first.channel.send_lane(second.address, head, b"", [large, large[::2]])
    assert not first.channel._pool._filled_slots()
    assert first.channel.send_lane(second.address, head, b"", [large, large])
    assert len(first.channel._pool._filled_slots()) == 2


def test_corked_messages_are_sent_together_others_at_once(
    make_endpoint,
):
    first, second, third = (
        make_endpoint(heartbeat_s=LONG_S, timeout_s=3 * LONG_S),
        make_endpoint(),
        make_endpoint(),
    )
    first.channel.cork()
    for number in range(100):  # more than the kernel's buffer
        first.channel.send(second.address, values(number))
    first.channel.send(third.address, values(0, 8_000))
    first.channel.send(third.address, values(1, 8_000))  # leaves no room for a third message
    assert second.channel.pump(0) == third.channel.pump(0) == 0
    first.channel.send(third.address, values(2, 100_000))
    other = threading.Thread(target=first.channel.send, args=(third.address, values(3)))
    other.start()
    other.join(LONG_S)
    assert {number_of(third.next()) for _ in range(2)} == {2, 3}
    first.channel.send(third.address, values(4, 1_000))
    check(third.next(), 0, 8_000)
    check(third.next(), 1, 8_000)
    assert third.channel.pump(0) == 0
    first.channel.uncork()
    check(third.next(), 4, 1_000)
    for number in range(100):
        check(second.next(), number)
    first.channel.send(second.address, values(100))
    check(second.next(), 100)


def test_corked_messages_without_room_are_sent_whole(
    make_endpoint,
):
    first, second = make_endpoint(), make_endpoint()
    first.channel.cork()
    for number in range(3):
        first.channel.send(second.address, values(number, SHARED_NBYTES // 4))
    first.channel.uncork()
    for number in range(3):
        check(second.next(), number, SHARED_NBYTES // 4)
    assert not second.channel._inbox.losses


def test_messages_corked_by_a_stuck_thread_follow_a_heartbeat(
    make_endpoint,
):
    first, second = make_endpoint(), make_endpoint()
    first.channel.cork()
    first.channel.send(second.address, values(1))
    check(second.next(), 1)


def test_corked_messages_beyond_kernel_buffers_wait(
    make_endpoint,
):
    first, second = make_endpoint(), make_endpoint()
    for number in range(0, 2000, 2):
        first.channel.cork()
        first.channel.send(second.address, values(number))
        first.channel.send(second.address, values(number + 1))
        first.channel.uncork()
    assert sorted(number_of(second.next()) for _ in range(2000)) == list(range(2000))


def test_local_and_remote_messages_do_not_starve_each_other(make_endpoint, monkeypatch):
    local, remote, receiver = (make_endpoint(host="127.0.0.1", curve=False) for _ in range(3))
    local.channel.send(receiver.address, values(0))  # local messages never end
    check(receiver.next(), 0)
    monkeypatch.setattr(addresses, "this_node", lambda: "elsewhere")
    remote.channel.send(receiver.address, values(1))
    check(receiver.next(), 1)
    for endless, other in ((local, remote), (remote, local)):
        for number in range(200):
            endless.channel.send(receiver.address, values(number))
        other.channel.send(receiver.address, values(1000))
        came: list[int] = []
        while 1000 not in came:
            endless.channel.send(receiver.address, values(0))
            came.append(number_of(receiver.next()))
        for _ in range(201):  # each received message caused one
            receiver.next()


def test_process_that_ends_without_close_leaves_no_files(folder):
    code = (
        "import sys; from pathlib import Path\n"
        "from hetero.scheduler.channels.direct import DirectChannel\n"
        "from tests.scheduler.endpoints import values\n"
        "one, two = (DirectChannel(print, folder=Path(sys.argv[1])) for _ in range(2))\n"
        "one.send(two.address, values(1, 100_000))\n"
    )
    command = [sys.executable, "-c", code, folder]
    with subprocess.Popen(command, cwd=Path(__file__).parents[3]) as process:
        assert process.wait(LONG_S) == 0
    assert list(folder.iterdir()) == []
    assert not list(Path("/dev/shm").glob(f"hetero-*-{process.pid}-*"))


def test_drop_notice_arrives_without_a_pump(pair):
    first, second = pair
    first.channel.send(second.address, Dropped(TASK.request))
    assert second.messages.get(timeout=LONG_S) == Dropped(TASK.request)


def test_observed_endpoint_reports_status_and_clock(make_endpoint, monkeypatch):
    numbers = count()
    first = make_endpoint(host="127.0.0.1", heartbeat_s=0.01)
    second = make_endpoint(host="127.0.0.1", status=lambda: {"queued": 3, "asked": next(numbers)})
    monkeypatch.setattr(addresses, "this_node", lambda: "elsewhere")
    assert first.channel.clock_offset_s(second.address) is None
    first.channel.watch(second.address)
    wait_for(lambda: first.channel.status_of(second.address).get("asked", 0) > 2)
    assert first.channel.status_of(second.address)["queued"] == 3
    offset_s = first.channel.clock_offset_s(second.address)
    assert offset_s is not None
    assert abs(offset_s) < LONG_S  # both endpoints use the clock of this machine
    assert second.channel.status_of("nobody") == {}
    assert not first.channel.is_suspected(second.address)
    assert first.channel.silent_s(second.address) == 0.0


def test_oversized_status_is_empty(make_endpoint):
    first = make_endpoint()
    second = make_endpoint(status=lambda: {f"{i}" * 1000: 1.0 for i in range(64)})
    first.channel.watch(second.address)
    wait_for(lambda: first.channel.clock_offset_s(second.address) is not None)
    assert first.channel.status_of(second.address) == {}


def test_pump_returns_after_wake_or_close(make_endpoint):
    one = make_endpoint()
    one.channel.wake()
    assert one.channel.pump(LONG_S) == 0
    ended_threads: Queue[int] = Queue()
    threads = [
        threading.Thread(target=lambda: ended_threads.put(one.channel.pump())) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    one.channel.close()
    for thread in threads:
        thread.join(LONG_S)
    assert [ended_threads.get(timeout=LONG_S) for _ in threads] == [0, 0, 0]
    assert one.channel.pump(0) == 0
    one.channel.send(one.address, values(1))
    one.channel.wake()
    one.channel.close()


def test_concurrent_pumps_deliver_each_message_once(
    make_endpoint,
):
    first, second = make_endpoint(), make_endpoint()
    count = 200

    def pump() -> None:
        while second.messages.qsize() < count:
            second.channel.pump(0.05)

    threads = [threading.Thread(target=pump) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(count):
        first.channel.send(second.address, values(number))
    for thread in threads:
        thread.join(LONG_S)
    assert sorted(number_of(second.messages.get_nowait()) for _ in range(count)) == list(
        range(count)
    )


@pytest.fixture
def other(folder, make_endpoint):
    """A local endpoint, and one in another process that returns each message."""
    one = make_endpoint(timeout_s=2 * LONG_S)
    with echo_process(folder, one.address) as (process, address):
        yield one, process, address


@pytest.mark.slow
def test_suspended_process_is_suspected_then_live_and_loses_messages(other, make_endpoint):
    one, process, address = other
    one.channel.send(address, values(1))
    check(one.next(), 1)
    impatient = make_endpoint(timeout_s=0.8, heartbeat_s=0.1)
    impatient.channel.watch(address)
    wait_for(lambda: impatient.channel.clock_offset_s(address) is not None)
    process.send_signal(signal.SIGSTOP)
    suspected, silent_s = impatient.suspected.get(timeout=LONG_S)
    assert suspected == address
    assert silent_s > 0.0
    assert impatient.channel.is_suspected(address)
    one.channel.watch(address)
    one.channel.watch(impatient.address)
    impatient.channel.send(address, values(3))  # the message is dropped and reported
    assert one.losses.get(timeout=LONG_S) == impatient.address
    process.send_signal(signal.SIGCONT)
    assert impatient.live_addresses.get(timeout=LONG_S) == address
    assert impatient.channel.silent_s(address) == 0.0
    one.channel.send(address, values(2))
    check(one.next(), 2)
    assert impatient.ended_addresses.empty()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_suspended_process_is_suspected_and_ended_one_reported(
    other,
    make_endpoint,
    number,
):
    one, (_, process, address) = make_endpoint(), other
    one.channel.watch(address)
    wait_for(lambda: one.channel.clock_offset_s(address) is not None)
    begun_s = time.monotonic()
    process.send_signal(number)
    if number == signal.SIGSTOP:
        one.suspected.get(timeout=LONG_S)
        assert one.ended_addresses.empty()
        process.kill()  # its end is reported although it is suspected
    assert one.ended_addresses.get(timeout=LONG_S) == address
    assert time.monotonic() - begun_s < LONG_S


BUSY = """
import ctypes, sys
from pathlib import Path
from hetero.scheduler.channels.direct import DirectChannel
_, folder, client, stall_allowance_s = sys.argv
status = {} if stall_allowance_s == "any" else {"stall_allowance_s": float(stall_allowance_s)}
def compute(message):
    channel.send(client, message)
    ctypes.PyDLL(None).sleep(2)  # C code that keeps the interpreter's lock
    channel.send(client, message)
channel = DirectChannel(compute, folder=Path(folder), status=lambda: status)
print(channel.address, flush=True)
while True:
    channel.pump(1)
"""


@pytest.mark.slow
@pytest.mark.parametrize("stall_allowance_s", ["any", "0.2"])
def test_process_that_holds_the_gil_is_suspected_later(folder, make_endpoint, stall_allowance_s):
    one = make_endpoint(heartbeat_s=0.05, timeout_s=0.4)
    command = [sys.executable, "-c", BUSY, str(folder), one.address, stall_allowance_s]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3]
    ) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        one.channel.watch(address)
        wait_for(lambda: one.channel.clock_offset_s(address) is not None)
        one.channel.send(address, values(1))
        check(one.next(), 1)  # the process computes from now on
        check(one.next(), 1)  # and has
        assert one.suspected.empty() == (stall_allowance_s == "any")
        if stall_allowance_s != "any":
            assert one.live_addresses.get(timeout=LONG_S) == address
        process.kill()
        assert one.ended_addresses.get(timeout=LONG_S) == address
    for left in folder.glob(f"*-{process.pid}-*"):
        left.unlink(missing_ok=True)


def test_ended_local_process_is_reported_and_its_files_removed(other, folder):
    one, process, address = other
    one.channel.watch(address)
    one.channel.send(address, values(1))
    check(one.next(), 1)
    process.kill()
    assert one.ended_addresses.get(timeout=LONG_S) == address
    wait_for(lambda: not list(folder.glob(f"*-{process.pid}-*")))
    one.channel.send(address, values(2))  # the message is dropped without an error


def test_sockets_of_killed_process_are_removed_by_the_next(
    folder,
    other,
    make_endpoint,
):
    _, process, _ = other
    process.kill()
    process.wait()
    assert list(folder.glob(f"*-{process.pid}-*"))
    make_endpoint()
    assert not list(folder.glob(f"*-{process.pid}-*"))


@pytest.mark.parametrize("address", ["", "tcp://x", "hetero2:", "hetero2:!!", "hetero2:kwECAw=="])
def test_invalid_address_is_refused(address, make_endpoint):
    with pytest.raises(BlobError, match="address"):
        make_endpoint().channel.send(address, values(1))


def test_local_endpoint_is_unreachable_from_other_nodes(make_endpoint, monkeypatch):
    one, two = make_endpoint(), make_endpoint()
    monkeypatch.setattr(addresses, "this_node", lambda: "elsewhere")
    with pytest.raises(ClusterError, match="network address"):
        one.channel.watch(two.address)


def test_wrong_key_reaches_no_endpoint(make_endpoint, monkeypatch):
    one, two = make_endpoint(host="127.0.0.1"), make_endpoint(host="127.0.0.1")
    endpoint = to_endpoint(two.address)
    wrong = to_address(endpoint._replace(identity=b"somebody", key=zmq.curve_keypair()[0]))
    monkeypatch.setattr(addresses, "this_node", lambda: "elsewhere")
    one.channel.send(wrong, values(1))
    one.channel.send(two.address, values(2))
    check(two.next(), 2)
    assert two.channel.pump(0.2) == 0


def test_folder_open_to_other_users_is_refused(folder):
    folder.chmod(0o755)
    with pytest.raises(ClusterError, match="chmod 700"):
        ChannelEndpoint(folder)
    with pytest.raises(ClusterError, match="bytes"):
        ChannelEndpoint(folder / ("x" * 60))
    (folder / "file").touch()
    with pytest.raises(ClusterError, match="folder"):
        ChannelEndpoint(folder / "file")


def test_new_folder_is_private(folder):
    one = ChannelEndpoint(folder / "new")
    assert (folder / "new").stat().st_mode & 0o777 == 0o700
    one.channel.close()


def test_address_with_another_nodes_host_is_refused(folder):
    with pytest.raises(ClusterError, match="listen"):
        ChannelEndpoint(folder, host="192.0.2.1")


def test_channels_leave_no_descriptors_and_no_threads(folder):
    def count() -> tuple[int, int]:
        return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()

    def use() -> None:
        first, second = ChannelEndpoint(folder, host="127.0.0.1"), ChannelEndpoint(folder)
        first.channel.send(second.address, values(1, 100_000))
        check(second.next(), 1, 100_000)
        first.channel.close()
        second.channel.close()

    use()
    before = count()
    for _ in range(3):
        use()
    wait_for(lambda: count() <= before)


def test_close_does_not_wait_for_heartbeats(folder):
    began_s = time.monotonic()
    for _ in range(10):
        first, second = (
            ChannelEndpoint(folder, heartbeat_s=LONG_S, timeout_s=3 * LONG_S) for _ in range(2)
        )
        first.channel.send(second.address, values(1))
        check(second.next(), 1)
        first.channel.close()
        second.channel.close()
    assert time.monotonic() - began_s < LONG_S


def test_close_does_not_wait_for_ended_threads(folder):
    channel = ChannelEndpoint(folder).channel
    control = channel._control
    control._closed = True  # the thread may notice the close before it is woken
    control._thread.join()
    closing = threading.Thread(target=channel.close, daemon=True)
    closing.start()
    closing.join(timeout=30)
    assert not closing.is_alive()


def test_raising_callbacks_do_not_end_the_control_thread(folder, make_endpoint):
    reports: Queue[str] = Queue()

    def fails(*arguments: Any) -> Any:
        reports.put("once more")
        raise ValueError("a fault")

    faulty = DirectChannel(
        fails, folder=folder, heartbeat_s=0.02, status=fails, on_suspected=fails, on_ended=fails
    )
    two = make_endpoint(heartbeat_s=0.02, timeout_s=2 * LONG_S)
    brief = ChannelEndpoint(folder)
    faulty.watch(brief.address)
    brief.channel.close()
    two.channel.watch(faulty.address)
    for _ in range(3):
        reports.get(timeout=LONG_S)
    wait_for(lambda: two.channel.clock_offset_s(faulty.address) is not None)
    assert two.channel.status_of(faulty.address) == {}
    faulty.close()


CLIENTS = """
import sys
from pathlib import Path
from hetero.scheduler.channels.direct import DirectChannel
from tests.scheduler.endpoints import values
_, folder, target = sys.argv
for _ in range(8):
    channel = DirectChannel(print, folder=Path(folder))
    channel.watch(target)
    channel.send(target, values(1, 100_000))
    input()
    channel.close()
print(flush=True)
input()
"""


def test_short_lived_clients_leave_no_descriptors(folder, make_endpoint):
    one = make_endpoint(heartbeat_s=0.02, timeout_s=0.2)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with subprocess.Popen(
        [sys.executable, "-c", CLIENTS, folder, one.address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(8):
            one.next()
            print(file=process.stdin, flush=True)
        process.stdout.readline()
        # Two pipes, the process, and the mapped file until the next one replaces it.
        wait_for(lambda: len(list(Path("/proc/self/fd").iterdir())) <= before + 5)
        print(file=process.stdin, flush=True)
