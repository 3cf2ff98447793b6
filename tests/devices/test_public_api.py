"""What plugin authors import, and what importing it does not drag in."""

import inspect
import subprocess
import sys

from hetero import devices


def test_every_public_name_is_there_and_explained():
    names = devices.__all__
    assert len(set(names)) == len(names)
    for name in names:
        thing = getattr(devices, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert inspect.getdoc(thing), name


def test_vendors_are_imported_by_their_own_plugins_only():
    code = (
        "import sys, devices, hetero.devices.testing, hetero.devices.null.plugin\n"
        "print(*(m for m in ('onnxruntime', 'ray', 'cupy', 'openvino', 'pytest')"
        " if m in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert done.stdout.strip() == ""
