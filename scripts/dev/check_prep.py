#!/usr/bin/env python3
"""Checks `segue prep` against NumPy, pyarrow and polars. For developers; nothing else needs Python.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install numpy pyarrow polars
    /tmp/venv/bin/python scripts/dev/check_prep.py build/segue

Makes up a log in the shape of Yambda, builds the flat event cache from it with NumPy alone, then has
prep make it from Parquet files that pyarrow and polars wrote in different types, orders and row
groups. Every file must have the bytes that numpy.save writes.
"""
import io
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

KINDS = ["listen", "like", "dislike", "unlike", "undislike"]
DAY, GAP, HISTORY, FLOORS = 86400, 1800, 50, [50, 0]


def make_log(rows, rng):
    kind = np.where(rng.random(rows) < 0.9, 0, rng.integers(0, 5, rows))
    return pl.DataFrame({
        "uid": rng.integers(0, 300, rows) * 7,
        "timestamp": rng.integers(0, 320 * DAY // 600, rows) * 600,  # ties abound
        "item_id": rng.integers(0, 900, rows),
        "is_organic": rng.integers(0, 2, rows),
        "played_ratio_pct": pl.Series(rng.integers(0, 130, rows)).set(pl.Series((kind != 0) | (rng.random(rows) < 0.05)), None),
        "track_length_seconds": pl.Series(rng.integers(1, 600, rows)).set(pl.Series(rng.random(rows) < 0.1), None),
        "event_type": pl.Series(KINDS).gather(kind.tolist()),
    })


def npy(array):
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def expected_files(log):
    """The cache by the published rules; ties in the order of all fields."""
    log = log.with_columns(pl.col("event_type").replace_strict(KINDS, range(5), return_dtype=pl.Int64).alias("kind"))
    t_max = log["timestamp"].max()
    test_start = t_max - DAY
    train_end = test_start - GAP
    train_start = train_end - 300 * DAY
    filled = log.with_columns(pl.col("played_ratio_pct", "track_length_seconds").fill_null(-1))
    order = ["uid", "timestamp", "kind", "item_id", "is_organic", "played_ratio_pct", "track_length_seconds"]
    t = filled.filter(pl.col("timestamp").is_between(train_start, train_end, closed="left")).sort(order)
    test = filled.filter(pl.col("timestamp").is_between(test_start, t_max, closed="left") & pl.col("uid").is_in(t["uid"].unique().implode()))
    uid, time, item, kind = (t[c].to_numpy().astype(np.int64) for c in ("uid", "timestamp", "item_id", "kind"))
    ratio = np.maximum(t["played_ratio_pct"].to_numpy(), 0).astype(np.float32)
    listen = kind == 0
    users, first, counts = np.unique(uid, return_index=True, return_counts=True)
    start, end = np.full(uid.max() + 1, -1), np.full(uid.max() + 1, -1)
    start[users], end[users] = first, first + counts
    files = {
        "flat_uid": uid, "flat_item_ids": item, "flat_timestamps": time, "flat_event_types": kind,
        "flat_played_ratio": ratio, "flat_is_organic": t["is_organic"].to_numpy().astype(np.int8),
        "flat_is_listen_plus": listen & (ratio >= 50), "flat_is_like": kind == 1, "flat_is_skip": listen & (ratio < 50),
        "user_start": start.astype(np.int64), "user_end": end.astype(np.int64), "unique_uids": users,
    }
    offset = np.arange(len(uid)) - start[uid]
    for floor in FLOORS:
        positions = np.flatnonzero(listen & (offset >= floor)).astype(np.int64)
        suffix = f"L{HISTORY}" + ("" if floor == HISTORY else f"_m{floor}")
        files[f"positions_{suffix}"], files[f"anchor_ts_{suffix}"] = positions, time[positions]
    new_session = np.r_[True, (uid[1:] != uid[:-1]) | (time[1:] - time[:-1] > GAP)]
    cache = {f"hstu_cache_L{HISTORY}/{name}.npy": npy(a) for name, a in files.items()}
    cache[f"hstu_cache_L{HISTORY}/store_meta.json"] = json.dumps(
        {"num_users": len(users), "total_events": len(uid)}).encode()
    cache[f"hstu_cache_L{HISTORY}/_READY"] = b""
    cache["item_popularity.npy"] = npy(np.bincount(item, minlength=1000))  # the mappings know item 999
    meta = {"size": "50m", "t_min": log["timestamp"].min(), "t_max": t_max, "train_start": train_start,
            "train_end": train_end, "test_start": test_start, "test_end": t_max, "train_days": 300, "gap_minutes": 30,
            "test_days": 1, "session_gap_seconds": GAP, "num_train_events": len(uid), "num_test_events": len(test),
            "num_sessions": int(new_session.sum()), "num_users": len(users)}
    cache["split_meta.json"] = json.dumps(meta, indent=2).encode()
    return cache


def write_mappings(raw, rng):
    """Some items have several rows (the last counts), some none."""
    arrays = {}
    for name in ("artist", "album"):
        items = np.r_[rng.integers(0, 900, 1500), 999]
        values = rng.integers(1, 5000, len(items))
        pl.DataFrame({f"{name}_id": values, "item_id": items}).write_parquet(raw / f"{name}_item_mapping.parquet")
        dense = np.zeros(1000, np.int64)
        for i, v in zip(items, values):
            dense[i] = v
        arrays[f"item_to_{name}.npy"] = npy(dense)
    return arrays


def variants(log, rng):
    """(name, function that writes the file) for the ways to write the same rows."""
    published = log.select(pl.col("uid", "timestamp", "item_id", "track_length_seconds").cast(pl.UInt32),
                           pl.col("is_organic").cast(pl.UInt8), pl.col("played_ratio_pct").cast(pl.UInt16), "event_type")
    shuffled = published[rng.permutation(len(log))]
    as_enum = published.with_columns(pl.col("event_type").cast(pl.Enum(KINDS))).sort("uid", "timestamp")
    as_category = log.with_columns(pl.col("event_type").cast(pl.Categorical), pl.col("played_ratio_pct").cast(pl.Float32))
    narrow = shuffled.with_columns(pl.col("uid", "item_id").cast(pl.Int16), pl.col("timestamp").cast(pl.Int64))
    dictionary = pa.table({c: log[c].to_arrow() for c in log.columns}).set_column(
        6, "event_type", pa.array(log["event_type"].to_list()).dictionary_encode())
    yield "polars, published types, shuffled", lambda path: shuffled.write_parquet(path, row_group_size=777)
    yield "polars, enum, in order", lambda path: as_enum.write_parquet(path, compression="snappy")
    yield "polars, categorical, 64 bits", lambda path: as_category.write_parquet(path, compression="lz4")
    yield "polars, narrow", lambda path: narrow.write_parquet(path, compression="gzip")
    yield "pyarrow, dictionary", lambda path: pq.write_table(dictionary, path, row_group_size=1000, compression="brotli")
    yield "pyarrow, plain pages v2", lambda path: pq.write_table(
        shuffled.to_arrow(), path, use_dictionary=False, data_page_version="2.0", compression="none")


def main():
    segue = pathlib.Path(sys.argv[1]).resolve()
    rng = np.random.default_rng(7)
    log = make_log(60000, rng)
    with tempfile.TemporaryDirectory() as folder:
        raw, store = pathlib.Path(folder) / "raw", pathlib.Path(folder) / "store"
        (raw / "flat/50m").mkdir(parents=True)
        wanted = expected_files(log) | write_mappings(raw, rng)
        for name, write in variants(log, rng):
            write(raw / "flat/50m/multi_event.parquet")
            floors = [arg for floor in FLOORS for arg in ("--min-history", str(floor))]
            subprocess.run([segue, "prep", "--raw", raw, "--out", store, "--history", str(HISTORY), *floors,
                            "--sessions", "--verify", "--overwrite"], check=True, capture_output=True)
            wrong = [file for file, data in wanted.items() if (store / file).read_bytes() != data]
            assert not wrong, f"{name}: {wrong}"
            flat = pl.read_parquet(store / "train_sessions.parquet").explode(pl.exclude("uid", "session_id"))
            assert flat["uid"].to_list() == np.load(store / f"hstu_cache_L{HISTORY}/flat_uid.npy").tolist(), name
            print(f"{name}: {len(wanted)} files equal")


if __name__ == "__main__":
    main()
