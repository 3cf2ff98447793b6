"""A server: listens, answers until it is closed, and ends the requests that it has begun."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from hetero.apps.serve.acceptor import Acceptor
from hetero.apps.serve.options import ServerOptions
from hetero.apps.serve.workers import bind
from hetero.compile.compiled_model import CompiledModel
from hetero.devices.errors import ArgumentError, UnsupportedOperationError
from hetero.devices.plugin.heap import reuse_free_memory
from hetero.devices.plugin.install_command import install_command

if TYPE_CHECKING:
    from hetero.apps.serve.grpc_server import GrpcServer
    from hetero.apps.serve.repository import Repository
    from hetero.apps.serve.worker_link import WorkerLink

_log = logging.getLogger(__name__)

#: Seconds that a server may take to start.
_START_S: Final = 30.0
#: Seconds that a connection may be idle between two requests; nginx's default.
_KEEP_ALIVE_S: Final = 75
#: Seconds that a thread may compute while the event loop waits for Python's lock. By default it is
#: 5 ms, and a request took 6.6 ms instead of 3 while the messages of another client were decoded.
_SWITCH_S: Final = 0.001
#: Milliseconds that a client may read nothing of its response.
_UNREAD_MS: Final = 60_000


class Server:
    """Serves models from a thread of its own until it is closed; made by `hetero.serve`."""

    def __init__(
        self, repository: Repository, options: ServerOptions, link: WorkerLink | None = None
    ) -> None:
        import uvicorn

        from hetero.apps.serve.http_protocol import BoundedHttpProtocol
        from hetero.apps.serve.rest import RestApplication
        from hetero.apps.serve.service import Service

        #: The models and rules.
        self.service: Final = Service(repository, options)
        self.options: Final = options
        self.service.link = link
        if link is not None:
            link.catch_up(self.service.carry_out)
        app: Any = RestApplication(self.service)
        config = uvicorn.Config(
            app,
            http=BoundedHttpProtocol,
            interface="asgi3",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",  # a warning for each malformed request would fill the log
            access_log=False,
            proxy_headers=options.access_log,  # which shows the client
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
        self._socket = bind(options.host, options.port, shared=options.shared_port)
        # Connections inherit both.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD_MS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.host: Final = options.host
        self.port: Final[int] = self._socket.getsockname()[1]
        #: The port for gRPC, if there is one.
        self.grpc_port: int | None = None
        self._uvicorn = uvicorn.Server(config)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._start_error: ArgumentError | None = None
        self._started, self._closing, self._ended = (threading.Event() for _ in range(3))
        self._threads = [threading.Thread(target=self._run, name="serve", daemon=True)]
        if options.watch_s:
            self._threads.append(threading.Thread(target=self._watch, name="watch", daemon=True))
        for thread in self._threads:
            thread.start()
        if not self._started.wait(_START_S) or self._start_error is not None:
            self.close()
            raise self._start_error or ArgumentError(
                f"the server at {self.url} has not started within {_START_S:g} s."
            )
        self._warn_if_open()

    def __repr__(self) -> str:
        grpc = f", gRPC {self.grpc_port}" if self.grpc_port else ""
        return f"<Server {self.url}{grpc}>"

    @property
    def url(self) -> str:
        """The server's URL, such as ``http://127.0.0.1:8000``."""
        scheme = "https" if self.options.tls_certificate else "http"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{self.port}"

    def _warn_if_open(self) -> None:
        missing = [] if self.options.tokens else ["tokens"]
        missing += [] if self.options.tls_key else ["TLS"]
        if missing and not self.options.is_loopback:
            _log.warning(
                "%s is open to the network without %s; see --tokens, --tls-key, --tls-certificate",
                self.url,
                " and ".join(missing),
            )

    def wait(self) -> None:
        """Wait until the server has ended; Ctrl-C does not end it, `close` does."""
        self._ended.wait()  # Python takes a thread whose `join` was interrupted for ended

    def close(self) -> None:
        """Take no more requests, answer those in progress, and end; may be repeated."""
        self.service.is_draining = True
        self._closing.set()
        self._uvicorn.should_exit = True
        for thread in self._threads:
            thread.join(self.options.drain_s + 5)
        self._socket.close()
        self.service.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        reuse_free_memory()
        try:
            with asyncio.Runner(loop_factory=self._uvicorn.config.get_loop_factory()) as runner:
                runner.run(self._serve())
        except ArgumentError as error:
            self._start_error = error
        finally:
            self._ended.set()
            self._started.set()

    async def _serve(self) -> None:
        """Serve HTTP and gRPC until the server is closed."""
        tasks = []
        if self.options.grpc_port is not None:
            from hetero.apps.serve.grpc_server import GrpcServer

            grpc_server = GrpcServer(self.service, self.options.grpc_port)
            await grpc_server.start()
            self.grpc_port = grpc_server.port
            tasks.append(asyncio.ensure_future(self._stop_when_closed(grpc_server)))
        # Without sockets, because the acceptor has the only one.
        tasks.append(asyncio.ensure_future(self._uvicorn.serve([])))
        while not (self._uvicorn.started or tasks[-1].done()):
            await asyncio.sleep(0.005)
        if self._uvicorn.started:
            acceptor = Acceptor(self._socket, self._make_protocol, self._uvicorn.config.ssl)
            servers: list[Any] = self._uvicorn.servers  # uvicorn closes it when it ends
            servers.append(acceptor)
            acceptor.start()
        self._started.set()
        link = self.service.link
        alive = None if link is None else asyncio.ensure_future(link.run(self.service.carry_out))
        await asyncio.gather(*tasks)
        if alive is not None:
            alive.cancel()

    def _make_protocol(self) -> asyncio.Protocol:
        """Return the protocol of a connection, as uvicorn makes it."""
        from hetero.apps.serve.http_protocol import BoundedHttpProtocol

        server, config = self._uvicorn, self._uvicorn.config
        protocol: asyncio.Protocol = BoundedHttpProtocol(
            config=config, server_state=server.server_state, app_state=server.lifespan.state
        )
        return protocol

    async def _stop_when_closed(self, grpc_server: GrpcServer) -> None:
        while not self._closing.is_set():
            await asyncio.sleep(0.1)  # as often as uvicorn
        await grpc_server.stop(self.options.drain_s)

    def _watch(self) -> None:
        has_failed = False
        while not self._closing.wait(self.options.watch_s):
            try:
                self.service.repository.refresh()
                has_failed = False
            except Exception:  # the folder may be back next time
                if not has_failed:
                    _log.exception("cannot search the model folder; it is tried again")
                has_failed = True


def prepare_process() -> None:
    """Prepare a process that only serves: how it keeps freed memory, and switches threads.

    Has to precede the start of other threads.
    """
    reuse_free_memory()
    sys.setswitchinterval(_SWITCH_S)


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
        One model, under its own name, or several by the names that clients request.
    port, grpc_port : int
        The ports; 0 takes a free one. Without `grpc_port` there is no gRPC.
    host : str
        The address to listen on; ``0.0.0.0`` for all addresses of this machine.
    **options : object
        More of `hetero.apps.serve.options.ServerOptions`: tokens, tls_key, tls_certificate,
        body_nbytes, shared_memory, access_log, drain_s and so on.

    Returns
    -------
    Server
        The server, to be closed; closing it leaves the models open.

    Raises
    ------
    ArgumentError
        It cannot listen at the address, or an option is unknown.
    ProtocolError
        A model has inputs or outputs of types that the protocol does not have.
    UnsupportedOperationError
        The extra ``serve`` is not installed.
    """
    require_extra()
    from hetero.apps.serve.repository import fixed_repository

    by_name = {models.name: models} if isinstance(models, CompiledModel) else models
    try:
        server_options = ServerOptions(host=host, port=port, grpc_port=grpc_port, **options)
    except TypeError as error:
        raise ArgumentError(f"serve: {error}. ServerOptions has all options.") from error
    return Server(fixed_repository(by_name), server_options)


def require_extra() -> None:
    """Raise UnsupportedOperationError if the packages for serving are not installed."""
    try:
        import grpc, httptools, orjson, uvicorn  # noqa: E401, F401, I001 - only to see that they import
    except ImportError as error:
        raise UnsupportedOperationError(
            f"serving needs {error.name}: {install_command('serve')}."
        ) from error
