"""Records on disk: what is written comes back, whole or not at all."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from artifact.records.schema import CALLS, SAMPLES, SESSIONS, TABLES, Records
from artifact.records.store import RunStore

CALL = ("s", 0, 1.5, 0.0, 2.0, 2.5, 4.0, 900, 100, 50, 0, 7, 1, 0, 2)
WAITING = ("s", 1, 9.0, None, None, None, None, 1200, None, None, None, 7, None, 0, 2)
SESSION = ("s", "base", "t", 1.0, 1.25, 2.5, None, "unfinished", 2, 1, 1207, 30.0, 6, 1)
SAMPLE = (0.0, 1, 0, 0, 0, 900, 900, 100, 800, 0, 1, 0, 0, 0.4, 7, 0, 0.5, None, float("inf"), False, None, True)
META = {"source": "sim", "seed": 3, "capacity": {"prefill_cache_tokens": 10}, "duration_s": 10.0}


def records() -> Records:
    return Records.from_rows([CALL, WAITING], [SESSION], [SAMPLE], META)


def test_rows_become_columns_in_schema_order_and_missing_stays_missing() -> None:
    r = records()
    assert [tuple(row.values()) for row in r.calls.to_pylist()] == [CALL, WAITING]
    assert r.sessions.to_pylist()[0]["ended_s"] is None
    sample = r.samples.to_pylist()[0]
    assert (sample["reference_budget_tokens"], sample["budget_tokens"]) == (None, float("inf"))
    assert sample["decode_kv_running_tokens"] == 0  # whole tokens
    assert r.simulated and not Records.from_rows([], [], [], {"source": "hw"}).simulated


def test_a_run_without_calls_has_empty_tables_of_the_schema() -> None:
    empty = Records.from_rows([], [], [], {})
    for name, schema in TABLES.items():
        table = getattr(empty, name)
        assert (table.num_rows, table.schema) == (0, schema)


def test_saving_and_loading_changes_nothing(tmp_path: Path) -> None:
    r = records()
    r.save(tmp_path / "a" / "b")
    loaded = Records.load(tmp_path / "a" / "b")
    assert loaded.meta == META
    for name in TABLES:
        assert getattr(loaded, name).equals(getattr(r, name))
    again = tmp_path / "again"
    loaded.save(again)
    for name in TABLES:
        assert (again / f"{name}.parquet").read_bytes() == (tmp_path / "a" / "b" / f"{name}.parquet").read_bytes()


def test_every_file_carries_the_provenance(tmp_path: Path) -> None:
    records().save(tmp_path)
    for name in TABLES:
        assert b'"seed": 3' in pq.read_schema(tmp_path / f"{name}.parquet").metadata[b"basin"]


@pytest.mark.parametrize("table", ["calls", "sessions", "samples"])
def test_a_table_with_other_columns_is_refused_by_name(table: str) -> None:
    r = records()
    tables = {name: getattr(r, name) for name in TABLES}
    tables[table] = tables[table].rename_columns([*tables[table].column_names[:-1], "surprise"])
    with pytest.raises(ValueError, match=f"'{table}'.*surprise"):
        Records(**tables, meta={})


def test_a_column_of_another_type_is_refused() -> None:
    r = records()
    wrong = r.calls.set_column(0, "session_id", pa.array([1, 2]))
    with pytest.raises(ValueError, match="'calls'"):
        Records(wrong, r.sessions, r.samples)


def test_rows_of_unequal_length_are_refused() -> None:
    with pytest.raises(ValueError):
        Records.from_rows([CALL, CALL[:-1]], [], [], {})


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    records().save(tmp_path)
    (tmp_path / "sessions.parquet").unlink()
    with pytest.raises(FileNotFoundError, match=r"sessions\.parquet"):
        Records.load(tmp_path)


def test_units_stand_in_the_names() -> None:
    for schema in (CALLS, SESSIONS, SAMPLES):
        for field in schema:
            if pa.types.is_floating(field.type):
                assert field.name.endswith(("_s", "_s_total", "_tokens")), field.name


def test_a_key_follows_the_content_and_not_the_order() -> None:
    assert RunStore.key({"a": 1, "b": {"c": 2, "d": 3}}) == RunStore.key({"b": {"d": 3, "c": 2}, "a": 1})
    assert RunStore.key({"a": 1}) != RunStore.key({"a": 1.5}) != RunStore.key({"a": "1"})


def test_a_store_gives_back_what_was_put(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    assert store.get("abcd") is None
    store.put("abcd", records())
    found = store.get("abcd")
    assert found is not None and found.calls.equals(records().calls)
    assert [p.name for p in tmp_path.glob("*/*")] == ["abcd"]  # no draft is left


def test_many_writers_of_one_run_leave_one_whole_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = iter(range(100))
    monkeypatch.setattr("os.getpid", lambda: next(numbers))  # threads stand for processes
    store = RunStore(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: store.put("abcd", records()), range(16)))
    assert [p.name for p in tmp_path.glob("*/*")] == ["abcd"]
    found = store.get("abcd")
    assert found is not None and found.samples.equals(records().samples)


def test_a_run_that_cannot_be_written_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(table: pa.Table, path: Path) -> None:
        if path.name.startswith("samples"):
            raise OSError("no space left")
        path.touch()

    store = RunStore(tmp_path)
    monkeypatch.setattr("artifact.records.schema.pq.write_table", full)
    with pytest.raises(OSError, match="no space left"):
        store.put("abcd", records())
    assert store.get("abcd") is None
