"""A value that will be there: what those who run a request give, at a tenth of a future's cost."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from hetero.devices.plugin.one_shot_event import OneShotEvent

_log = logging.getLogger(__name__)

T = TypeVar("T")


class Promise(Generic[T]):
    """A value, or an error, that one thread sets, once, and others wait for."""

    __slots__ = ("_callbacks", "_error", "_is_done", "_value")

    def __init__(self) -> None:
        self._is_done = False
        self._value: T | None = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[Any], object]] = []

    def set_result(self, value: T) -> None:
        """Give the value."""
        self._value = value
        self._is_done = True
        if self._callbacks:
            self._call_back()

    def set_exception(self, error: BaseException) -> None:
        """Give an error in its place."""
        self._error = error
        self._is_done = True
        if self._callbacks:
            self._call_back()

    def done(self) -> bool:
        """Whether it has ended."""
        return self._is_done

    def result(self, timeout: float | None = None) -> T:
        """Wait for the value and return it.

        Raises TimeoutError: it is not there in `timeout` seconds.
        Raises BaseException: the error in its place.
        """
        if not self._is_done:
            self._wait(timeout)
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # it is set, or there is an error

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the end; return the error, if it is one.

        Raises TimeoutError: it has not ended in `timeout` seconds.
        """
        if not self._is_done:
            self._wait(timeout)
        return self._error

    def add_done_callback(self, fn: Callable[[Any], object], /) -> None:
        """Call `fn` with this object once it has ended, in the thread that ends it, or at once."""
        self._callbacks.append(fn)
        if self._is_done:
            self._call_back()

    def _call_back(self) -> None:
        # Who adds and who ends may both be here: each callback is popped by one of them.
        while self._callbacks:
            try:
                fn = self._callbacks.pop(0)
            except IndexError:
                return
            try:
                fn(self)
            except Exception:  # the thread that ends a promise has others to end
                _log.exception("a callback of a promise failed")

    def _wait(self, timeout: float | None) -> None:
        ended = OneShotEvent()
        self.add_done_callback(lambda _: ended.set())
        if not ended.wait(timeout):
            raise TimeoutError(f"there is no answer after {timeout} s")


#: What is waited for.
FutureLike = Promise[T] | Future[T]
