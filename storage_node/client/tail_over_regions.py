"""Which bookie is polled at the tail of a ledger whose copies lie in several regions. Decides; no I/O, no clock.

A long poll is put to one bookie: the nearest, which usually hears first. But a near bookie may hear nothing: it was
replaced, or is cut off from the writer while it answers its readers, or lags. Its long poll then ends with "nothing
yet" like that of an idle log, and only another bookie can say which of the two it is. So:

* While a poll waits, another bookie is asked now and then whether it knows more. The question is a long poll without a
  wait: some sixty bytes there and back, and where there is news the entry itself. It comes after the longer of LEAST_S
  and twice the time that a question to that bookie takes, counted from the last news: news that travel to the near
  bookie as well have arrived by then. The bookies take turns, other regions first.
* After a question without news the pause is twice as long, up to `longest_s`: an idle log costs one question in that
  time. News begin with the shortest pause again.
* Where questions have brought news DEAF_AFTER times in a row that the polled bookie has not had, that one is *deaf*:
  once may be by chance, where the question met the news on their way. The next polls go to the next bookie in order
  that is not; a deaf one of the own region is polled beside, which costs nothing between regions, and is polled alone
  again once it was first HEARS_AGAIN times in a row. A deaf one elsewhere is forgotten after FORGET_S.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

LEAST_S: Final = 0.02
UNKNOWN_S: Final = 0.1
"""The first pause, where it is not known how far the other bookies are."""
DEAF_AFTER: Final = 2
HEARS_AGAIN: Final = 3
FORGET_S: Final = 30.0


class TailListening:
    """The state of one ledger's tail, from poll to poll.

    Args:
        is_local: whether a bookie is in the own region.
        round_trip_s: how long a question to a bookie takes; None where that is not known.
        longest_s: the longest pause between two questions.
    """

    def __init__(
        self, is_local: Callable[[str], bool], round_trip_s: Callable[[str], float | None], longest_s: float
    ) -> None:
        self._is_local = is_local
        self._round_trip_s = round_trip_s
        self._longest_s = longest_s
        self._deaf: dict[str, float] = {}  # and when it was found to be
        self._missed: dict[str, int] = {}  # how often one that is not deaf missed news lately, in a row
        self._first: dict[str, int] = {}  # how often a deaf one was first lately, in a row
        self._turn = 0
        self._questions = 0  # since the last news
        self._since: float | None = None  # the last news, or the last question
        self.bookies: tuple[str, ...] = ()

    # ------------------------------------------------------------------------------------ a poll begins

    def begin(self, bookies: tuple[str, ...], now: float) -> None:
        """Note that the bookies of the last ensemble are polled. Other ones than before begin anew."""
        if bookies != self.bookies:
            self.bookies = bookies
            self._deaf = {bookie: when for bookie, when in self._deaf.items() if bookie in bookies}
            self._missed.clear()
            self._turn = self._questions = 0
            self._since = now
        for bookie, when in list(self._deaf.items()):
            if not self._is_local(bookie) and now - when > FORGET_S:
                del self._deaf[bookie]
        if self._since is None:
            self._since = now

    def arrange(self, order: Sequence[int]) -> Sequence[int]:
        """Return the bookies' indices in the order in which they are polled: `order`, deaf ones last."""
        return sorted(order, key=lambda index: self.bookies[index] in self._deaf)

    def beside(self, polled: int) -> list[int]:
        """Return those that are polled as well: deaf ones of the own region."""
        return [
            index
            for index, bookie in enumerate(self.bookies)
            if index != polled and bookie in self._deaf and self._is_local(bookie)
        ]

    # ------------------------------------------------------------------------------------ questions

    def _others(self, polled: int, order: Sequence[int]) -> list[int]:
        """Return whom to ask in turn: other regions first, one of the own region between each two."""
        local = [index for index in order if index != polled and self._is_local(self.bookies[index])]
        remote = [index for index in order if index != polled and not self._is_local(self.bookies[index])]
        mixed: list[int] = []
        while local or remote:
            mixed += remote[:1] + local[:1]
            del remote[:1], local[:1]
        return mixed

    def due(self, polled: int, order: Sequence[int]) -> float | None:
        """Return when the next question is to be put; None where no other bookie is."""
        others = self._others(polled, order)
        if not others or self._since is None:
            return None
        trip_s = self._round_trip_s(self.bookies[others[self._turn % len(others)]])
        pause_s = UNKNOWN_S if trip_s is None else max(LEAST_S, 2 * trip_s)
        pause_s = max(pause_s, min(pause_s * float(1 << min(self._questions, 30)), self._longest_s))
        return self._since + pause_s

    def question(self, polled: int, order: Sequence[int], now: float) -> int:
        """Return the index of the bookie to ask now, and count the question. Called where `due` has come."""
        others = self._others(polled, order)
        index = others[self._turn % len(others)]
        self._turn += 1
        self._questions += 1
        self._since = now
        return index

    # ------------------------------------------------------------------------------------ news

    def heard(self, index: int, now: float) -> None:
        """Note that a polled bookie had news first."""
        bookie = self.bookies[index]
        self._news(now)
        self._missed.pop(bookie, None)
        if bookie in self._deaf:
            self._first[bookie] = self._first.get(bookie, 0) + 1
            if self._first[bookie] >= HEARS_AGAIN:
                del self._deaf[bookie]
                self._first.clear()
        else:
            self._first.clear()  # in a row only

    def missed(self, polled: int, now: float) -> None:
        """Note that a question brought news that the polled bookie has not had."""
        self._news(now)
        self._first.clear()
        bookie = self.bookies[polled]
        misses = self._missed.get(bookie, 0) + 1
        if misses < DEAF_AFTER:
            self._missed[bookie] = misses
            return
        self._missed.pop(bookie, None)
        self._deaf[bookie] = now
        if len(self._deaf) == len(self.bookies):
            # Each was late once: that says nothing of any of them now.
            self._deaf = {bookie: now} if len(self.bookies) > 1 else {}

    @property
    def deaf(self) -> frozenset[str]:
        """The bookies that do not hear at present."""
        return frozenset(self._deaf)

    def _news(self, now: float) -> None:
        self._since = now
        self._questions = 0
        self._turn = 0
