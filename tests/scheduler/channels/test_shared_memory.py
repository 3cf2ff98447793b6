"""Shared memory: slots are freed with their last view, bounded, and never leaked."""

from __future__ import annotations

import gc
import mmap
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hetero.devices.errors import BlobError
from hetero.scheduler.channels.shared_memory import FOLDER, Slot, SlotPool, SlotReader
from hetero.scheduler.processes.owned_files import Process
from tests.scheduler.endpoints import LONG_S, ChannelEndpoint, check, echo_process, values, wait_for

PAGE = mmap.ALLOCATIONGRANULARITY
READER = Process(2**22 + 1, "1")
#: Larger than the minimum size of tensors in shared memory.
LARGE = 500_000


@pytest.fixture
def pool():
    pool = SlotPool()
    yield pool
    pool.close()
    assert files() == set()


@pytest.fixture
def reader():
    return SlotReader()


def files(process: int | None = None) -> set[Path]:
    """Return the shared memory files of a process."""
    return set(FOLDER.glob(f"hetero-*-{process or os.getpid()}-*"))


def contents(nbytes: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


@pytest.mark.parametrize("nbytes", [1, 4095, 4096, 4097, 1_000_000, 10_000_000])
def test_slot_is_read_without_a_copy(pool, reader, nbytes):
    data = contents(nbytes)
    slot = pool.fill(data, READER)
    assert slot is not None
    actual = reader.view(list(slot.place), nbytes)
    np.testing.assert_array_equal(actual, data)
    slot.data[0] ^= 255
    assert actual[0] == data[0] ^ 255
    assert slot.data.nbytes <= max(PAGE, 1.25 * nbytes + PAGE)


def test_views_of_a_slot_are_read_only(pool, reader):
    slot = pool.fill(contents(100), READER)
    assert slot is not None
    actual = reader.view(list(slot.place), 100)
    with pytest.raises(ValueError, match="cannot set WRITEABLE"):
        actual.setflags(write=True)


@pytest.mark.parametrize(
    "derive",
    [
        lambda flat: flat.view(np.float32),
        lambda flat: flat.view(np.float32).reshape(5, 5)[1:, ::2].T,
        lambda flat: memoryview(flat.view(np.int16)),
        lambda flat: [np.asarray(memoryview(flat))[3:]],
        lambda flat: np.lib.stride_tricks.as_strided(flat, (3, 3), (2, 1)),
    ],
)
def test_slot_is_free_after_its_last_view(pool, reader, derive):
    slot = pool.fill(contents(100), READER)
    assert slot is not None
    view = derive(reader.view(list(slot.place), 100))
    gc.collect()
    assert not slot.is_free
    del view
    gc.collect()
    assert slot.is_free


def test_freed_slots_are_reused(pool, reader):
    for seed in range(300):
        data = contents(100_000, seed)
        slot = pool.fill(data, READER)
        assert slot is not None
        np.testing.assert_array_equal(reader.view(list(slot.place), data.nbytes), data)
    assert len(files()) == 1


def test_slot_with_a_view_is_never_overwritten(pool, reader):
    views = []
    for seed in range(200):
        slot = pool.fill(contents(60_000, seed), READER)
        assert slot is not None
        view = reader.view(list(slot.place), 60_000)
        if seed % 3:
            views.append((seed, view))
    for seed, view in views:
        np.testing.assert_array_equal(view, contents(60_000, seed))


def test_full_pool_declines_until_slots_are_freed(reader):
    pool = SlotPool(nbytes=20_000_000)
    slots = [pool.fill(contents(8_000_000), READER) for _ in range(3)]
    assert slots[0] is not None
    assert slots[1] is not None
    assert slots[2] is None
    assert pool.nbytes <= 20_000_000
    slots[0].free()
    assert pool.fill(contents(8_000_000), READER) is slots[0]
    slots[1].free()
    assert pool.fill(contents(9_500_000), READER) is not None  # replaces the file of the other size
    assert pool.nbytes <= 20_000_000
    pool.close()
    assert files() == set()


def test_full_disk_makes_the_pool_decline(pool, monkeypatch):
    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    assert pool.fill(contents(100), READER) is None
    assert files() == set()


def test_half_of_the_file_system_stays_free(pool, monkeypatch):
    status = os.statvfs(FOLDER)
    fields = [*status[:2], 1000, 600, 510, *status[5:]]  # blocks: all, free, free for users
    fields[1] = 4096
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result((*fields, 0)))
    assert pool.fill(contents(9 * 4096), READER) is None
    assert files() == set()


def test_slots_of_closed_channels_and_ended_processes_are_free(pool, reader):
    slots = []
    for owner, channel in (
        (Process(1, "1"), b"another"),
        (READER, b"closed"),
        (READER, b"closed"),
        (READER, b"open"),
    ):
        slot = pool.fill(contents(100), owner, channel)
        assert slot is not None
        slots.append(slot)
    view = reader.view(list(slots[1].place), 100)
    pool.free_untaken(b"closed")
    assert [slot.is_free for slot in slots] == [False, False, True, False]
    del view
    assert slots[1].is_free
    pool.free_all_of(READER)
    assert [slot.is_free for slot in slots] == [False, True, True, True]
    pool.take_back([(slots[0], slots[0].generation - 1)])  # a place of an earlier use of the slot
    assert not slots[0].is_free
    pool.take_back([(slots[0], slots[0].generation)])
    assert slots[0].is_free


def copied_to(pool: SlotPool, data: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a copy in a slot, and its flat bytes as `fill` takes them."""
    copied = pool.copy_to_slot(data)
    assert copied is not None
    np.testing.assert_array_equal(copied, data)
    assert (copied.dtype, copied.shape, copied.flags.writeable) == (data.dtype, data.shape, True)
    return copied, copied.reshape(-1).view(np.uint8)


def test_copy_is_sent_without_another_copy(pool, reader):
    data = np.arange(50_000, dtype=np.float32).reshape(2, -1)
    copied, flat = copied_to(pool, data)
    data[:] = 1  # the copy is independent
    slot = pool.fill(flat, READER, b"first")
    assert slot is not None
    view = reader.view(list(slot.place), data.nbytes).view(np.float32).reshape(2, -1)
    np.testing.assert_array_equal(view, copied)
    copied[1, 1] = 77
    assert view[1, 1] == 77
    assert len(pool._filled_slots()) == 1


def test_second_reader_and_parts_take_other_slots(pool, reader):
    data = contents(100_000)
    copied, flat = copied_to(pool, data)
    part = pool.fill(flat[1:], READER)
    first, second = (pool.fill(flat, READER) for _ in range(2))
    assert part is not None
    assert first is not None
    assert second is not None
    copied[5] ^= 255
    assert reader.view(list(first.place), 100_000)[5] == data[5] ^ 255
    np.testing.assert_array_equal(reader.view(list(part.place), 99_999), data[1:])
    np.testing.assert_array_equal(reader.view(list(second.place), 100_000), data)


@pytest.mark.parametrize("first", ["copy", "view"])
def test_slot_is_free_after_copy_and_views(pool, reader, first):
    used = {}
    used["copy"], flat = copied_to(pool, contents(100_000))
    slot = pool.fill(flat, READER)
    assert slot is not None
    del flat
    used["view"] = reader.view(list(slot.place), 100_000)
    del used[first]
    gc.collect()
    assert not slot.is_free
    assert pool.fill(contents(100_000), READER) is not slot
    used.clear()
    gc.collect()
    assert slot.is_free
    assert pool.fill(contents(100_000), READER) is slot


def test_unsent_copy_frees_its_slot(pool):
    for seed in range(200):
        copied, flat = copied_to(pool, contents(100_000, seed))
        assert len(pool._filled_slots()) <= 2
    del copied, flat
    gc.collect()
    assert not pool._filled_slots()
    assert len(files()) == 1


def test_copy_outlives_its_reader_and_failed_messages(pool):
    data = contents(100_000)
    copied, flat = copied_to(pool, data)
    slot = pool.fill(flat, READER, b"closed")
    assert slot is not None
    pool.take_back([(slot, slot.generation)])
    pool.free_untaken(b"closed")
    pool.free_all_of(READER)
    others = [pool.fill(contents(100_000, seed), READER) for seed in range(100)]
    assert slot not in others
    np.testing.assert_array_equal(copied, data)
    again = pool.fill(flat, READER)
    assert again is not None
    np.testing.assert_array_equal(again.data[:100_000], data)


def test_copies_leave_half_of_the_pool():
    pool = SlotPool(nbytes=40_000_000)
    copies = [pool.copy_to_slot(contents(8_000_000)) for _ in range(3)]
    assert [copied is None for copied in copies] == [False, False, True]
    assert pool.fill(contents(8_000_000), READER) is not None
    copies.pop(0)
    assert pool.copy_to_slot(contents(8_000_000)) is not None
    assert pool.copy_to_slot(np.array(["a text"], object)) is None
    kept = copies[0]
    pool.close()
    assert files() == set()
    assert pool.copy_to_slot(contents(100)) is None
    np.testing.assert_array_equal(kept, contents(8_000_000))  # its memory remains


def test_closed_reader_takes_no_slot(pool, reader):
    slot = pool.fill(contents(100), READER, b"closed")
    assert slot is not None
    reader.view(list(slot.place), 100)  # after mapping it
    slot = pool.fill(contents(100), READER, b"closed")
    assert slot is not None
    reader.close()
    with pytest.raises(BlobError, match="closed channel"):
        reader.view(list(slot.place), 100)
    assert not slot.is_taken


@pytest.mark.parametrize("is_closed", [False, True])
def test_slot_filled_during_frees_keeps_its_reader(pool, reader, monkeypatch, is_closed):
    dead = Process(1, "1")
    given_back, kept_view = (pool.fill(contents(100), dead, b"closed") for _ in range(2))
    assert given_back is not None
    assert kept_view is not None
    given_back.free()  # its reader freed it before its end
    free = Slot.free
    sending = threading.Thread(target=lambda: filled.append(pool.fill(contents(100, 7), READER)))
    filled: list[Slot | None] = []

    def slowly(slot: Slot) -> None:
        if sending.ident is None:
            sending.start()
            sending.join(timeout=0.2)  # runs in between unless a lock prevents it
        free(slot)

    monkeypatch.setattr(Slot, "free", slowly)
    if is_closed:
        pool.free_untaken(b"closed")
    else:
        pool.free_all_of(dead)
    monkeypatch.setattr(Slot, "free", free)
    sending.join(LONG_S)
    (slot,) = filled
    assert slot is not None
    assert not slot.is_free
    view = reader.view(list(slot.place), 100)
    pool.fill(contents(100, 9), READER)
    np.testing.assert_array_equal(view, contents(100, 7))


@pytest.mark.parametrize(
    ("position", "value"),
    [
        (0, "../../etc/passwd"),
        (0, "0-1-1-0"),
        (0, 7),
        (1, 10**6),
        (1, -1),
        (2, 0),
        (2, 2**61),
        (3, 10**6),
        (3, 2**61),
        (3, "0"),
        (4, 2**64),
        (4, 1.5),
    ],
)
def test_invalid_slot_position_is_refused(pool, reader, position, value):
    slot = pool.fill(contents(100), READER)
    assert slot is not None
    place: list[Any] = list(slot.place)
    place[position] = value
    for bad in (place, place[:-1], None):
        with pytest.raises(BlobError):
            reader.view(bad, 100)


def test_file_of_another_format_is_refused(reader):
    owner = "1-1-1-1"
    path = FOLDER / f"hetero-{owner}.1"
    path.symlink_to("/etc/passwd")
    try:
        with pytest.raises(BlobError):
            reader.view([owner, 1, 4096, 0, 1], 100)
        path.unlink()
        path.write_bytes(b"short")
        with pytest.raises(BlobError):
            reader.view([owner, 1, 4096, 0, 1], 100)
    finally:
        path.unlink()


def test_reader_closes_deleted_files(pool, reader):
    other = SlotPool()
    slot = other.fill(contents(100), READER)
    assert slot is not None
    kept_view = reader.view(list(slot.place), 100)
    other.close()
    slot = pool.fill(contents(100), READER)
    assert slot is not None
    reader.view(list(slot.place), 100)
    assert len(reader._mapped) == 1
    np.testing.assert_array_equal(kept_view, contents(100))


@pytest.fixture
def relay(folder, make_endpoint):
    """A local endpoint, and one in another process that keeps and returns each message."""
    one = make_endpoint(timeout_s=2 * LONG_S)
    with echo_process(folder, one.address) as (process, address):
        yield one, process, address


def test_large_tensors_survive_the_end_of_reader_and_owner(relay, folder):
    one, process, address = relay
    one.channel.watch(address)
    came = []
    for number in range(3):
        one.channel.send(address, values(number, LARGE))
        came.append(one.next())
    pool = one.channel._pool
    busy = pool._filled_slots()
    assert len(busy) == 3
    assert files(process.pid)
    process.kill()
    assert one.ended_addresses.get(timeout=LONG_S) == address
    # Neither the reader frees slots nor the owner removes files; others do both.
    wait_for(lambda: all(slot.is_free for slot in busy))
    wait_for(lambda: files(process.pid) == set())
    process.wait()
    for number, message in enumerate(came):
        check(message, number, LARGE)
    for left in folder.glob(f"*-{process.pid}-*"):
        left.unlink()


def test_next_pool_removes_files_of_killed_owner(folder):
    code = (
        "import numpy as np\n"
        "from hetero.scheduler.channels.shared_memory import SlotPool\n"
        "pool = SlotPool(); pool.fill(np.zeros(10**6, np.uint8), None)\n"
        "print(flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    ) as owner:
        assert owner.stdout is not None
        owner.stdout.readline()
        SlotPool().close()
        assert files(owner.pid)  # the owner still runs
        owner.kill()
        owner.wait()
        SlotPool().close()
        assert files(owner.pid) == set()


def test_close_frees_slots_of_unreceived_messages(make_endpoint, folder):
    one, two = make_endpoint(timeout_s=2 * LONG_S), ChannelEndpoint(folder)
    one.channel.watch(two.address)
    for number in range(3):
        one.channel.send(two.address, values(number, LARGE))
    kept_view = two.next()
    wait_for(lambda: one.channel.clock_offset_s(two.address) is not None)
    two.channel.close()
    assert one.ended_addresses.get(timeout=LONG_S) == two.address
    busy = [slot for slot in one.channel._pool._filled_slots() if not slot.is_free]
    assert len(busy) == 1
    check(kept_view, 0, LARGE)
    del kept_view
    wait_for(lambda: busy[0].is_free)


def test_tensors_beyond_the_pool_use_sockets(make_endpoint):
    one, two = make_endpoint(pool_nbytes=0), make_endpoint(shared_nbytes=None)
    for first, second in ((one, two), (two, one)):
        first.channel.send(second.address, values(1, LARGE))
        check(second.next(), 1, LARGE)
    assert files() == set()


def test_unsendable_message_takes_no_slot(make_endpoint):
    one, two = make_endpoint(), make_endpoint()
    message = values(1, LARGE)
    bad = message._replace(tensors={**message.tensors, "y": object()})
    with pytest.raises(TypeError, match="not an ONNX value"):
        one.channel.send(two.address, bad)
    assert all(slot.is_free for slot in one.channel._pool._filled_slots())


def test_message_to_itself_is_passed_by_reference(
    make_endpoint,
):
    one = make_endpoint()
    message = values(1, LARGE)
    one.channel.send(one.address, message)
    actual = one.messages.get_nowait()
    check(actual, 1, LARGE)
    assert np.shares_memory(actual.tensors["x"], message.tensors["x"])  # type: ignore[union-attr]


def test_memory_of_a_burst_is_returned(pool, reader):
    slots = [pool.fill(contents(2_000_000), READER) for _ in range(10)]
    views = slots[0]
    assert views is not None
    view = reader.view(list(views.place), 2_000_000)
    for slot in slots[1:]:
        assert slot is not None
        slot.free()
    pool.remove_unused()
    most_nbytes = pool.nbytes
    pool.remove_unused()
    assert pool.nbytes < most_nbytes
    np.testing.assert_array_equal(view, contents(2_000_000))
    del view
    pool.remove_unused()
    assert pool.nbytes == 0
    reader.unmap_removed()
    assert not reader._mapped
