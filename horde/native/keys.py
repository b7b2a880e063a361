"""Redis keys and channels of the Horde's own; those that the front reads are named in ``horde.chat_contract``."""

from typing import Final

__all__ = ["SNAPSHOT_TURN_KEY", "WAKE_CHANNEL"]

WAKE_CHANNEL: Final = "horde:chat:wake"
"""Channel that tells other processes of a waiting request that no held pop of this one fits."""

SNAPSHOT_TURN_KEY: Final = "horde:chat:queue:turn"
"""Held by the process whose turn it is to count the queue; expires by itself."""
