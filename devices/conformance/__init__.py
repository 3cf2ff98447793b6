"""The checks that every device passes; `devices.testing` runs them."""
