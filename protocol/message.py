"""The base classes of all messages: arrays, tagged with the message's name.

Fields are only added at the end, with a default: so version N reads the frames of version N-1, and N-1 ignores fields
that it does not know. Where such a field changes what a request means, the request goes only to replicas that know it
(`Generate.version`). Times are seconds since the Unix epoch; counts are tokens; ids are opaque strings.
"""

from __future__ import annotations

import msgspec


class Message(msgspec.Struct, frozen=True, array_like=True, tag_field="type", gc=False):
    """Base of all messages. Each class names its tag, so that the class can be renamed."""


class Value(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of the values inside messages."""
