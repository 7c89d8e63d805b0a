"""Page-locked memory that a queued kernel reads or writes is nobody else's before the kernel has run."""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from engine.kernels.host_words import HeldMemory, to_host
from engine.kernels.uploads import Uploads

ELEMENTS = 4_096
BUSY_CYCLES = 400_000_000
"""Some tenths of a second: the device is behind the host for so long."""


@dataclass
class Event:
    come: bool = False

    def query(self) -> bool:
        return self.come


def test_memory_is_held_until_its_event_has_come():
    held, events = HeldMemory(), [Event(), Event()]
    dropped = []
    for event in events:
        memory = torch.zeros(4)
        dropped.append(weakref.ref(memory))
        held.hold(memory, event)
        del memory
    for come in range(3):
        held.release()
        assert [reference() is None for reference in dropped] == [at < come for at in range(2)]
        if come < 2:
            events[come].come = True


def others() -> list[torch.Tensor]:
    """What somebody else asks torch's allocator for, of the size of what was given up."""
    return [torch.full((ELEMENTS,), -1, dtype=torch.int32, pin_memory=True) for _ in range(4)]


@pytest.mark.gpu
def test_what_nobody_waits_for_is_not_written_to_others_memory():
    there = torch.arange(ELEMENTS, dtype=torch.int32, device="cuda")
    to_host(there)  # compiles the kernel
    torch.cuda.synchronize()
    torch.cuda._sleep(BUSY_CYCLES)
    to_host(there)
    theirs = others()
    torch.cuda.synchronize()
    assert all(bool((memory == -1).all()) for memory in theirs)


@pytest.mark.gpu
def test_uploads_that_are_given_up_arrive_as_they_were_sent():
    sent = np.arange(ELEMENTS, dtype=np.int32)
    Uploads(torch.device("cuda"))([sent])  # compiles the kernel
    torch.cuda.synchronize()
    torch.cuda._sleep(BUSY_CYCLES)
    (there,) = Uploads(torch.device("cuda"))([sent])
    theirs = others()
    torch.cuda.synchronize()
    assert np.array_equal(there.cpu().numpy(), sent)
    assert theirs
