"""`speculation`: the field of ours, in every dialect, by which a client keeps replicas from verifying drafts for it."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

Speculation: TypeAlias = Annotated[
    Literal["auto", "off"], Meta(description="off: no drafts are verified for this request; its output is the same.")
]


def may_speculate(speculation: Speculation | None) -> bool:
    """Whether replicas may verify drafts."""
    return speculation != "off"
