"""A server: listens, answers until it is told to stop, and ends what it has begun."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from devices.errors import ArgumentError, UnsupportedOperationError
from hetero.compile.compiled_model import CompiledModel

if TYPE_CHECKING:
    from hetero.serve.repository import Repository

#: Seconds that requests in flight have to end, once the server is closed.
DRAIN_S: Final = 30.0


class Server:
    """Serves models by HTTP until it is closed; made by `hetero.serve`.

    Parameters
    ----------
    repository : Repository
        The models.
    host, port : str, int
        Where to listen; port 0 takes one that is free.
    """

    def __init__(self, repository: Repository, host: str, port: int, **options: Any) -> None:
        import uvicorn

        from hetero.serve.app import ServingApp

        self._app = ServingApp(repository)
        self._socket = _listening(host, port)
        self.host: Final = host
        self.port: Final[int] = self._socket.getsockname()[1]
        config = uvicorn.Config(
            self._app, http="httptools", loop="auto", ws="none", lifespan="off", log_config=None,
            access_log=False, server_header=False, date_header=False,
            timeout_graceful_shutdown=int(DRAIN_S), **options,
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="serve", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<Server {self.url}>"

    @property
    def url(self) -> str:
        """Where it answers, as ``http://127.0.0.1:8000``."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    def wait(self) -> None:
        """Return once the server has ended; Ctrl-C does not end it, `close` does."""
        self._thread.join()

    def close(self) -> None:
        """Take no more requests, answer those that are there, and end; again is harmless."""
        self._app.is_draining = True
        self._server.should_exit = True
        self._thread.join(DRAIN_S + 5)

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self) -> None:
        self._server.run([self._socket])

    def until_started(self, patience_s: float = 30.0) -> Server:
        """Return once it answers."""
        deadline_s = time.monotonic() + patience_s
        while not self._server.started and self._thread.is_alive():
            if time.monotonic() > deadline_s:
                raise ArgumentError(f"the server at {self.url} has not started.")
            time.sleep(0.005)
        return self


def serve(
    models: CompiledModel | Mapping[str, CompiledModel],
    port: int = 8000,
    *,
    host: str = "127.0.0.1",
) -> Server:
    """Serve compiled models by the Open Inference Protocol, in the background.

    ::

        with hetero.serve(compiled, port=8000) as server:
            server.wait()

    Parameters
    ----------
    models : CompiledModel, or mapping of str to CompiledModel
        One model, under its own name, or several by the names that clients ask for.
    port : int
        Where to listen; 0 takes one that is free.
    host : str
        The address to listen on; ``0.0.0.0`` for all of this machine's.

    Returns
    -------
    Server
        To be closed; the models stay open.

    Raises
    ------
    ArgumentError
        It cannot listen there.
    ProtocolError
        A model has inputs or outputs of types that the protocol does not know.
    UnsupportedOperationError
        The extra ``serve`` is not installed.
    """
    require_extra()
    from hetero.serve.repository import fixed

    named = {models.name: models} if isinstance(models, CompiledModel) else models
    return Server(fixed(named), host, port).until_started()


def require_extra() -> None:
    """Raise UnsupportedOperationError where what serving needs is not installed."""
    try:
        import httptools, orjson, uvicorn  # noqa: E401, F401, I001 - whether they are there
    except ImportError as error:
        raise UnsupportedOperationError(
            f"serving needs {error.name}: pip install 'hetero[serve]'."
        ) from error


def _listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens.

    Raises ArgumentError: it cannot.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(2048)
    except (OSError, OverflowError) as error:
        listener.close()
        raise ArgumentError(
            f"cannot serve at {host}:{port}: {error}. Give another port; 0 takes one that is free."
        ) from error
    return listener
