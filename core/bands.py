"""Sizes in bands, a doubling each: how many items or tokens there were is told apart no finer, and in bounded number."""

from __future__ import annotations


class SizeBuckets:
    """The bands of one kind of size, named by their bounds, both inclusive: 1, 2-3, 4-7, …, 512-1023, 1024+.

    Args:
        doublings: From one to the start of the last band, which has no end.
    """

    def __init__(self, doublings: int) -> None:
        between = (f"{1 << power}-{(2 << power) - 1}" for power in range(1, doublings))
        self.names = ("1", *between, f"{1 << doublings}+")

    def of(self, size: int) -> str:
        """Return the band of *size*, at least one.

        >>> BATCH_SIZES.of(1), BATCH_SIZES.of(3), BATCH_SIZES.of(32), BATCH_SIZES.of(5000)
        ('1', '2-3', '32-63', '1024+')
        """
        return self.names[min(size.bit_length(), len(self.names)) - 1]

    def position(self, name: str) -> int:
        """Return where band *name* stands, smallest first; what is no band stands last."""
        return self.names.index(name) if name in self.names else len(self.names)


# Items that a model ran at once: 1 to 1024 and more.
BATCH_SIZES = SizeBuckets(10)
# Tokens of a prompt or an answer: 1 to 131,072 and more, as long as models read today.
TOKEN_COUNTS = SizeBuckets(17)
