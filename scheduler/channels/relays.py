"""One party of another node says how the others there are: a beat for all, however many they are.

Who has several peers on a node asks one of them, its relay, for the others. The relay looks at
their stamps, and sends what they say beside its beats; its own stamp says to them when it heard who
asks. Peers that hear of each other so, and have nothing to say of their links, send no beats.

A relay that is late or gone covers nobody: all beat for themselves until the next one is asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from hetero.scheduler.channels.direct_address import this_node
from hetero.scheduler.channels.peers import Peer
from hetero.scheduler.channels.protocol import MOST_CONTROL_NBYTES, Row

#: Addresses that are asked for together: they are a control message still.
_MOST_ASKED: Final = 40
#: With one row more a part of a roll is a control message still; and what a row has but its status.
_PAGE_NBYTES: Final = MOST_CONTROL_NBYTES // 2
_ROW_NBYTES: Final = 64


class Relays:
    """Those of a party on other nodes, and what to say to and as a relay.

    `fresh_s`: how old may be what is said of others.
    `asks`: for whom to ask each relay: peers of its node that nothing is heard of by others.
    """

    def __init__(self, fresh_s: float) -> None:
        self.asks: dict[Peer, list[str]] = {}
        self._fresh_s = fresh_s
        self._counts: dict[str, int] = {}

    def choose(self, peers: Iterable[Peer], now_s: float) -> None:
        """Choose relays among the peers on other nodes, and what to ask them.

        One is kept as long as it is heard. Of two parties with several peers on the other's node,
        only one needs a relay there: the one that has more of them.
        """
        nodes: dict[str, list[Peer]] = {}
        for peer in peers:
            if not peer.silent:
                nodes.setdefault(peer.endpoint.node, []).append(peer)
        self._counts = {node: len(found) for node, found in nodes.items()}
        last, self.asks = {peer for peer in self.asks if self._is_fresh(peer.said_s, now_s)}, {}
        for found in nodes.values():
            if sum(not self._asks_for_us(peer, now_s) for peer in found) > 1:
                relay = max(found, key=lambda peer: (peer in last, peer.said_s))
                unknown = (it for it in found if it is not relay and not self.is_covered(it, now_s))
                self.asks[relay] = [peer.address for peer in islice(unknown, _MOST_ASKED)]

    def is_covered(self, peer: Peer, now_s: float) -> bool:
        """Whether others say of a peer that it is there, and to it that we are."""
        return self._is_fresh(peer.covered_s, now_s)

    def is_asked_by(self, peer: Peer, now_s: float) -> bool:
        """Whether we are a peer's relay."""
        return self._is_fresh(peer.asked_s, now_s)

    def outranks(self, peer: Peer, num_asked: int) -> bool:
        """Whether a peer that has a relay for so many of our node is to have it, and we none."""
        node = peer.endpoint.node
        return (num_asked, node) > (self._counts.get(node, 0), this_node())

    def roll(self, peers: Iterable[Peer], now_s: float) -> list[Row]:
        """Return what to say of peers to others, as far as it is fresh."""
        return [
            Row(
                peer.endpoint.identity,
                now_s - peer.said_s,
                *((0.0, 0.0) if peer.endpoint.is_near else min(peer.clocks)),
                peer.packed_status,
                len(peer.asked) + 1,
            )
            for peer in peers
            if peer.clocks and self._is_fresh(peer.said_s, now_s)
        ]

    def _asks_for_us(self, peer: Peer, now_s: float) -> bool:
        """Whether a peer has a relay, ourselves or another, by which we hear of each other."""
        return self._is_fresh(peer.outranks_s, now_s) or self.is_asked_by(peer, now_s)

    def _is_fresh(self, said_s: float, now_s: float) -> bool:
        return now_s - said_s <= self._fresh_s


def pages(roll: list[Row]) -> Iterator[list[Row]]:
    """Yield a roll in parts that are control messages."""
    page: list[Row] = []
    nbytes = 0
    for row in roll:
        page.append(row)
        nbytes += len(row.status) + _ROW_NBYTES
        if nbytes > _PAGE_NBYTES:
            yield page
            page, nbytes = [], 0
    if page:
        yield page
