"""What of a waiting request's prompt is on the device: found quickly, and as it is."""

from __future__ import annotations

import random

from engine.scheduling.fairness.fair_share import FairShare
from engine.scheduling.token_sequence import TokenSequence
from prompt_cache.kv.block_keys import BLOCK_TOKENS
from tests.engine.scheduling.replica_without_model import Replica, request


def test_what_is_matched_is_what_is_found_while_blocks_come_and_go():
    """Prompts that share beginnings of many lengths, in memory for a few of them: blocks are evicted all the time."""
    chance = random.Random(7)
    replica = Replica(FairShare(), blocks=40, running=3)
    blocks, looked, partly = replica.scheduler.blocks, 0, 0
    families = [[chance.randrange(1000) for _ in range(1200)] for _ in range(4)]
    for number in range(60):
        shared = chance.randrange(1100)
        tokens = chance.choice(families)[:shared] + [number] * 40
        replica.add(request(number, len(tokens), 4, tokens=TokenSequence(tokens)))
    while len(replica.finished) < 60:
        replica.step()
        for waiting in replica.scheduler.queue.waiting():
            found = len(blocks.matched(waiting)) * BLOCK_TOKENS
            assert blocks.matched_tokens(waiting) == found
            looked += 1
            partly += 0 < found < len(waiting.tokens) - BLOCK_TOKENS
    assert looked > 500
    assert partly > 50
