"""A channel within one process that serializes each message like channels between processes."""

from __future__ import annotations

from hetero.scheduler.channels import envelope
from hetero.scheduler.channels.memory import MemoryChannel
from hetero.scheduler.types.messages import Message


class LoopbackChannel(MemoryChannel):
    """Memory channel that serializes and parses each message."""

    def send(self, address: str, message: Message) -> None:
        """Serialize a message, and deliver the parsed copy."""
        parts = [bytes(frame) for frame in envelope.to_frames(message)]
        super().send(address, envelope.from_frames(parts))
