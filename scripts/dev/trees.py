#!/usr/bin/env python3
"""A baseline: gradient-boosted trees on the numbers of a store (docs/features.md).

    pip install lightgbm numpy
    scripts/dev/trees.py STORE [--by-hand] [--min-history 32] [--trees 400] [--leaves 63] [--seed 1]

Trains on every window but the last, one day each, and prints the AUC of the last one, which is what a
run with its default windows holds out. The store needs its numbers: any run whose model reads one of
them has made them (STORE/segue/numbers.idx). --by-hand leaves out what nobody counts by hand: tastes, and
the lift of a session.
"""
import argparse
import glob
import os
import sys
import time
import tomllib

import lightgbm
import numpy as np

HEADER_BYTES = 4096  # of an index file; the first section follows
DAY = 86400


def number_names(store):
    """As count_names() of src/data/numbers has them."""
    names = ("user_rate user_count user_item_rate user_item_count item_rate item_count recent_plays session_rate "
             "session_count user_hour_rate hour_sin hour_cos organic gap last_1 last_2 last_3 last_4 last_5 "
             "session_lift user_item_taste user_item_taste_count").split()
    with open(os.path.join(store, "segue", "schema.toml"), "rb") as file:
        schema = tomllib.load(file)
    columns = []
    for attribute in schema.get("attributes", []):
        several = range(1, attribute.get("max_values", 1) + 1) if attribute.get("separator") else []
        columns += [f"{attribute['name']}_{k}" for k in several] or [attribute["name"]]
    for column_name in columns:
        stem = column_name.removesuffix("_id")
        names += [f"user_{stem}_rate", f"user_{stem}_count", f"{stem}_rate", f"{stem}_count", f"same_{stem}",
                  f"user_{stem}_taste", f"user_{stem}_taste_count"]
    return names


def column(cache, name):
    return np.load(os.path.join(cache, name + ".npy"), mmap_mode="r")


def auc(scores, labels):
    """Ties count half."""
    order = np.argsort(scores, kind="stable")
    _, first, counts = np.unique(scores[order], return_index=True, return_counts=True)
    ranks = np.empty(len(scores))
    ranks[order] = np.repeat(first + (counts + 1) / 2, counts)
    positive = labels > 0
    n, m = positive.sum(), (~positive).sum()
    return (ranks[positive].sum() - n * (n + 1) / 2) / (n * m)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--min-history", type=int, default=32)
    parser.add_argument("--by-hand", action="store_true", help="without tastes and lift")
    parser.add_argument("--label", default="listen_plus", help="pool that is predicted")
    parser.add_argument("--trees", type=int, default=400)
    parser.add_argument("--leaves", type=int, default=63)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()

    numbers_file = os.path.join(arguments.store, "segue", "numbers.idx")
    if not os.path.exists(numbers_file):
        sys.exit(f"{numbers_file}: is missing; train a model with [model.numeric] on the store first")
    [cache] = glob.glob(os.path.join(arguments.store, "hstu_cache_L*"))
    users, times = column(cache, "flat_uid"), column(cache, "flat_timestamps")
    starts = column(cache, "user_start")
    # The section ends where checksums of 8 bytes begin: fewer than one number of every event.
    width = (os.path.getsize(numbers_file) - HEADER_BYTES) // 4 // len(users)
    numbers = np.memmap(numbers_file, np.float32, "r", HEADER_BYTES, (len(users), width))

    history = np.arange(len(users)) - starts[users]
    anchors = np.flatnonzero((column(cache, "flat_event_types")[:] == 0) & (history >= arguments.min_history))
    labels = column(cache, "flat_is_" + arguments.label)[anchors].astype(np.float32)
    windows = (times[anchors] - times[anchors].min()) // DAY
    held_out = windows == windows.max()
    names = number_names(arguments.store)
    if len(names) != width:
        sys.exit(f"{numbers_file}: has {width} numbers of an event, not {len(names)}: it is of another version")
    used = [n for n, name in enumerate(names)
            if not (arguments.by_hand and ("_taste" in name or name == "session_lift"))]
    x = numbers[anchors][:, used]
    began = time.time()
    data = lightgbm.Dataset(x[~held_out], labels[~held_out])
    trees = lightgbm.train(
        {"objective": "binary", "num_leaves": arguments.leaves, "learning_rate": 0.05, "seed": arguments.seed,
         "deterministic": True, "force_row_wise": True, "verbose": -1},
        data, arguments.trees)
    print(f"trees: AUC {auc(trees.predict(x[held_out]), labels[held_out]):.4f} on {held_out.sum()} samples of the last "
          f"window, trained on {(~held_out).sum()} in {time.time() - began:.0f} s, {len(used)} numbers")


if __name__ == "__main__":
    main()
