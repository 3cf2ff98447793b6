"""The loopback channel: parties in one process, with messages that go through the envelope."""

from __future__ import annotations

from hetero.scheduler.channels import envelope
from hetero.scheduler.channels.memory import MemoryChannel
from hetero.scheduler.vocabulary.messages import Message


class LoopbackChannel(MemoryChannel):
    """A memory channel on which messages travel as they do between processes; for tests."""

    def send(self, address: str, message: Message) -> None:
        """Send a message as bytes, and what they are read as."""
        parts = [bytes(frame) for frame in envelope.to_frames(message)]
        super().send(address, envelope.from_frames(parts))
