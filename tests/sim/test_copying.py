"""What a copy shares with its original, and what it does not."""

from simpy import Environment, Event

from sim.copying import copied


class Counter:
    def __init__(self, env: Environment, unit: list[int]) -> None:
        self.env = env
        self.unit = unit
        self.ticks = 0
        self.double = lambda n: 2 * n
        self._again()

    def _again(self) -> None:
        self.env.timeout(1.0).callbacks.append(self.tick)

    def tick(self, event: Event) -> None:
        self.ticks += 1
        self._again()


def test_events_of_a_copy_reach_the_copy() -> None:
    original = Counter(Environment(), [1])
    original.env.run(until=2.5)
    copy = copied(original)
    copy.env.run(until=10.5)
    assert (original.ticks, copy.ticks) == (2, 10)
    original.env.run(until=4.5)
    assert (original.ticks, copy.ticks) == (4, 10)


def test_what_is_shared_stays_one() -> None:
    unit = [1]
    original = Counter(Environment(), unit)
    assert copied(original).unit is not unit
    assert copied(original, shared=[unit]).unit is unit
    assert copied(original).double is original.double
