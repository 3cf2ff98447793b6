"""Which input's memory a result may take."""

from __future__ import annotations

import numpy as np
import pytest

from devices.cpu.donation import DONORS, donated
from devices.kernels import KERNELS


@pytest.mark.parametrize("operator", DONORS, ids="::".join)
def test_donors_are_kernels_that_write_into_a_given_array(operator: tuple[str, str]) -> None:
    kernel = KERNELS.find(*operator, KERNELS.versions(*operator)[-1])
    assert kernel is not None
    assert "out" in kernel.wants


def test_scale_and_shift_over_the_input() -> None:
    kernel = KERNELS.find("hetero", "ScaleShift", 1)
    assert kernel is not None
    x = np.random.default_rng(0).uniform(1, 2, (6, 5, 4)).astype(np.float32)
    factors = [np.arange(5, dtype=np.float32), np.ones(5, np.float32)]
    wanted = kernel.function(np, x.copy(), *factors)
    np.testing.assert_array_equal(kernel.function(np, x, *factors, out=x), wanted)


def test_only_what_nobody_else_holds_is_given() -> None:
    slots = [np.ones((64, 64), np.float32)]
    assert donated([slots[0]], (0,)) is slots[0]
    held = slots[0]
    assert donated([slots[0]], (0,)) is None
    del held
    view = slots[0].reshape(-1)
    assert donated([slots[0]], (0,)) is None
    slots[0] = view
    assert donated([slots[0]], (0,)) is None  # `view` is a second holder
    del view
    assert donated([slots[0]], (0,)) is slots[0]
    other = slots[0][:10]
    assert donated([slots[0]], (0,)) is None
    del other
    assert donated([slots[0], np.ones((2, 4096), np.float32)], (0,)) is None  # result is larger
    assert donated([slots[0], np.ones(4096)], (0,)) is None  # another type
    slots[0].setflags(write=False)
    assert donated([slots[0]], (0,)) is None
