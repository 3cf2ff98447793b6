"""A server: listens, answers until it is told to stop, and ends what it has begun."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from hetero.apps.serve.options import ServerOptions
from hetero.apps.serve.workers import bound
from hetero.compile.compiled_model import CompiledModel
from hetero.devices.errors import ArgumentError, UnsupportedOperationError

if TYPE_CHECKING:
    from hetero.apps.serve.grpc_server import GrpcServer
    from hetero.apps.serve.repository import Repository

_log = logging.getLogger(__name__)

#: Seconds that a server may take to start.
_PATIENCE_S: Final = 30.0
#: Seconds that a connection may be idle between two requests; nginx's default.
_KEEP_ALIVE_S: Final = 75
#: Milliseconds that a client may read nothing of its response.
_UNREAD_MS: Final = 60_000


class Server:
    """Serves models until it is closed; made by `hetero.serve`."""

    def __init__(self, repository: Repository, options: ServerOptions) -> None:
        import uvicorn

        from hetero.apps.serve.http_protocol import BoundedHttpProtocol
        from hetero.apps.serve.rest import ServingApp
        from hetero.apps.serve.service import Service

        #: The models and rules.
        self.service: Final = Service(repository, options)
        self.options: Final = options
        app: Any = ServingApp(self.service)
        config = uvicorn.Config(
            app,
            http=BoundedHttpProtocol,
            interface="asgi3",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=max(1, round(options.drain_s)),
            ssl_keyfile=options.tls_key,
            ssl_certfile=options.tls_certificate,
        )
        try:
            config.load()
        except OSError as error:
            raise ArgumentError(f"TLS: {options.tls_certificate}: {error}") from error
        self._socket = bound(options.host, options.port, shared=options.shared_port)
        # Connections inherit it.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD_MS)
        self._socket.listen(2048)
        self.host: Final = options.host
        self.port: Final[int] = self._socket.getsockname()[1]
        self._grpc: GrpcServer | None = None
        if options.grpc_port is not None:
            from hetero.apps.serve.grpc_server import GrpcServer

            self._grpc = GrpcServer(self.service, options.grpc_port)
        self._uvicorn = uvicorn.Server(config)
        self._closing, self._ended = threading.Event(), threading.Event()
        self._threads = [threading.Thread(target=self._run, name="serve", daemon=True)]
        if options.watch_s:
            self._threads.append(threading.Thread(target=self._watch, name="watch", daemon=True))
        for thread in self._threads:
            thread.start()

    def __repr__(self) -> str:
        grpc = f", gRPC {self.grpc_port}" if self._grpc else ""
        return f"<Server {self.url}{grpc}>"

    @property
    def url(self) -> str:
        """Where it answers, as ``http://127.0.0.1:8000``."""
        scheme = "https" if self.options.tls_certificate else "http"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{self.port}"

    @property
    def grpc_port(self) -> int | None:
        """Where it answers gRPC."""
        return self._grpc.port if self._grpc else None

    def wait(self) -> None:
        """Return once the server has ended; Ctrl-C does not end it, `close` does."""
        self._ended.wait()  # Python takes a thread whose `join` was interrupted for ended

    def close(self) -> None:
        """Take no more requests, answer those that are there, and end; again is harmless."""
        self.service.is_draining = True
        self._closing.set()
        self._uvicorn.should_exit = True
        if self._grpc is not None:
            self._grpc.close(self.options.drain_s)
        for thread in self._threads:
            thread.join(self.options.drain_s + 5)
        self._socket.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def until_started(self) -> Server:
        """Return once it answers; ArgumentError if it does not soon."""
        deadline_s = time.monotonic() + _PATIENCE_S
        while not self._uvicorn.started:
            if time.monotonic() > deadline_s or not self._threads[0].is_alive():
                raise ArgumentError(f"the server at {self.url} has not started.")
            time.sleep(0.005)
        return self

    def _run(self) -> None:
        try:
            self._uvicorn.run([self._socket])
        finally:
            self._ended.set()

    def _watch(self) -> None:
        while not self._closing.wait(self.options.watch_s):
            try:
                self.service.repository.refresh()
            except Exception:  # the folder may be there again next time
                _log.exception("the repository cannot be looked at")


def serve(
    models: CompiledModel | Mapping[str, CompiledModel],
    port: int = 8000,
    *,
    grpc_port: int | None = None,
    host: str = "127.0.0.1",
    **options: Any,
) -> Server:
    """Serve compiled models by the Open Inference Protocol, in the background.

    ::

        with hetero.serve(compiled, port=8000) as server:
            server.wait()

    Parameters
    ----------
    models : CompiledModel, or mapping of str to CompiledModel
        One model, under its own name, or several by the names that clients ask for.
    port, grpc_port : int
        Where to listen; 0 takes one that is free. Without `grpc_port` there is no gRPC.
    host : str
        The address to listen on; ``0.0.0.0`` for all of this machine's.
    **options : object
        More of `hetero.apps.serve.options.ServerOptions`: tokens, tls_key, tls_certificate,
        body_nbytes, shared_memory, access_log, drain_s and so on.

    Returns
    -------
    Server
        To be closed; the models stay open.

    Raises
    ------
    ArgumentError
        It cannot listen there, or there is no such option.
    ProtocolError
        A model has inputs or outputs of types that the protocol does not know.
    UnsupportedOperationError
        The extra ``serve`` is not installed.
    """
    require_extra()
    from hetero.apps.serve.repository import fixed

    named = {models.name: models} if isinstance(models, CompiledModel) else models
    try:
        chosen = ServerOptions(host=host, port=port, grpc_port=grpc_port, **options)
    except TypeError as error:
        raise ArgumentError(f"serve: {error}. Read ServerOptions.") from error
    return Server(fixed(named), chosen).until_started()


def require_extra() -> None:
    """Raise UnsupportedOperationError where what serving needs is not installed."""
    try:
        import grpc, httptools, orjson, uvicorn  # noqa: E401, F401, I001 - whether they are there
    except ImportError as error:
        raise UnsupportedOperationError(
            f"serving needs {error.name}: pip install 'hetero[serve]'."
        ) from error
