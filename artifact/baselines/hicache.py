"""HiCache alone: the engine's own cache hierarchy and order, nobody is held back (paper A §7.1)."""

from artifact.control.policy import Policy


class HiCache(Policy):
    """SGLang with its hierarchical cache; the tiers are the engine's, so nothing is left to decide here."""
