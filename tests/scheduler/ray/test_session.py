"""Start of a local Ray: it is repeated once if Ray's own processes take too long."""

import os

import pytest

from hetero.devices.errors import ClusterError
from hetero.scheduler.ray import session

SLOW = "The current node timed out during startup. This could happen because ..."


@pytest.mark.parametrize(
    ("errors", "num_starts"),
    [([SLOW, "no memory"], 2), ([SLOW, SLOW], 2), (["no memory", "unused"], 1)],
)
def test_start_is_repeated_once_after_a_timeout(errors, num_starts, monkeypatch):
    token_paths = []

    def init(**options):
        token_paths.append(os.environ["RAY_AUTH_TOKEN_PATH"])
        raise RuntimeError(errors[len(token_paths) - 1])

    monkeypatch.setattr(session, "_current", None)
    monkeypatch.setattr(session.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(session.ray, "init", init)
    monkeypatch.setattr(session.ray, "shutdown", lambda: None)
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ClusterError, match=errors[num_starts - 1]):
        session.connect("local")
    assert len(set(token_paths)) == len(token_paths) == num_starts
    assert "RAY_AUTH_TOKEN_PATH" not in os.environ
