"""The conformance checks that every device passes; `hetero.devices.testing` runs them."""
