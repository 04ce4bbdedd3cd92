"""The flag kernels under the Triton interpreter on CPU, or natively where there is a GPU, against the reference."""

import os
import threading
import time

import pytest

torch = pytest.importorskip("torch", reason="the kernels need torch (installed with the engine, not with the core)")
pytest.importorskip("triton", reason="the kernels need triton (installed with the engine, not with the core)")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")

from artifact.kernels import flags as f  # noqa: E402


def make(*rows):
    return torch.tensor(rows, dtype=torch.int32, device=DEVICE)


def waited(flags, slots, group, epochs, status=None, max_spins=1000):
    status = make(*[0] * len(slots)) if status is None else status
    f.wait(flags, make(*slots), group, make(*epochs), status, max_spins)
    return status.tolist()


def test_publish_writes_one_word():
    kernel, reference = make([0, 0, 0], [0, 0, 0]), make([0, 0, 0], [0, 0, 0])
    f.publish(kernel, 1, 2, 7)
    f.publish_reference(reference, 1, 2, 7)
    assert kernel.tolist() == reference.tolist() == [[0, 0, 0], [0, 0, 7]]


@pytest.mark.parametrize(
    ("word", "expected"), [(7, f.READY), (f.FAILED, f.GIVEN_UP), (6, f.TIMED_OUT), (0, f.TIMED_OUT)]
)
def test_status_equals_the_reference(word, expected):
    flags = make([0, word])
    assert waited(flags, [0], 1, [7]) == [expected]
    assert f.wait_reference(flags.cpu(), [0], 1, [7], timeout_s=0.01) == [expected]
    assert flags.tolist() == [[0, word]], "waiting must not change the flag"


def test_each_fetch_gets_its_own_status():
    assert waited(make([3], [f.FAILED], [5]), [2, 0, 1], 0, [5, 9, 4]) == [f.READY, f.TIMED_OUT, f.GIVEN_UP]


def test_a_bad_status_survives_later_layers():
    flags, status = make([f.FAILED, 4]), make(0)
    assert waited(flags, [0], 0, [4], status) == [f.GIVEN_UP]
    assert waited(flags, [0], 1, [4], status) == [f.GIVEN_UP]


def test_a_good_status_gives_way_to_a_bad_one():
    flags, status = make([4, 0]), make(0)
    assert waited(flags, [0], 0, [4], status) == [f.READY]
    assert waited(flags, [0], 1, [4], status) == [f.TIMED_OUT]


@pytest.mark.skipif(DEVICE != "cpu", reason="a host thread can write the flag only where it is host memory")
@pytest.mark.parametrize("reference", [True, False])
def test_a_wait_ends_when_another_thread_publishes(reference):
    flags, payload = make([0]), torch.zeros(1024)

    def deliver():
        time.sleep(0.05)
        payload.fill_(1.0)
        f.publish_reference(flags, 0, 0, 3)

    writer = threading.Thread(target=deliver)
    writer.start()
    began = time.monotonic()
    status = f.wait_reference(flags, [0], 0, [3], 10.0) if reference else waited(flags, [0], 0, [3], max_spins=1 << 22)
    assert status == [f.READY] and time.monotonic() - began >= 0.04
    assert payload.sum().item() == 1024, "the flag came before the bytes it announces"
    writer.join()


def test_spinning_is_bounded():
    began = time.monotonic()
    assert waited(make([0]), [0], 0, [1], max_spins=50) == [f.TIMED_OUT]
    assert time.monotonic() - began < 5.0


def test_the_benchmark_measures_nothing_without_a_gpu():
    if DEVICE == "cuda":
        pytest.skip("this machine has a GPU: run `python -m artifact.kernels.bench`")
    from artifact.kernels import bench

    with pytest.raises(SystemExit, match="no GPU"):
        bench.main()
