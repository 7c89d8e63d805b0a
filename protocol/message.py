"""What all messages are: arrays, tagged with their name.

Fields are only ever added at the end, with a default, so that version N reads the frames of N-1 and N-1 ignores what
it does not know. A request that means something else without a field that N-1 ignores goes to replicas of version N
alone (`Generate.version`). Times are seconds since the Unix epoch; token counts are tokens; ids are opaque strings.
"""

from __future__ import annotations

import msgspec


class Message(msgspec.Struct, frozen=True, array_like=True, tag_field="type", gc=False):
    """Base of all messages: encoded as an array, tagged with the class name."""


class Part(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of the values inside messages."""
