"""A small engine state with known numbers: a family of six layers, two plan books, two tiers."""

LAYERS = 6


def _cells(is_translated):
    for b in range(LAYERS):
        for c in range(b + 1, LAYERS + 1):
            kl = (LAYERS - (c - b)) * (0.02 if is_translated else 0.05)
            yield {"b": b, "c": c, "translated": is_translated, "kl": kl, "agreement": 1 - kl}


def _plan(b, c, is_translated, kl, quality):
    return {"plan": f"0,{b},{c}" if c else "reuse", "a": 0, "b": b, "c": c, "recomputed_layers": c - b,
            "translated": is_translated, "kl": kl, "kl_low": kl, "kl_high": kl, "agreement": 1 - kl, "score": 0.4 * quality,
            "score_low": None, "score_high": None, "relative_cost": 0.1 + (c - b) / LAYERS, "quality": quality}


def _book(sender, receiver, chosen):
    frontier = [_plan(0, 0, False, 0.3, 0.8), _plan(3, 5, True, 0.08, 0.99), _plan(2, 5, True, 0.06, 0.995)]
    return {"sender": sender, "receiver": receiver, "num_layers": LAYERS, "data": "known.jsonl", "num_contexts": 12,
            "context_tokens_median": 640, "metric": "f1", "full_score": 0.4, "chosen": chosen, "frontier": frontier,
            "heat_map": [*_cells(False), *_cells(True)],
            "sensitivity": [{"layer": n, "kl": 0.01 * (n + 1), "spread": 0.002} for n in range(LAYERS)]}


def _tier(name, entries, capacity):
    return {"name": name, "misses": 0, "damaged": 0, "write_errors": 0, "dropped_writes": 0, "links": [], "entries": entries, "bytes": entries << 20, "capacity_bytes": capacity, "hits": 7, "bytes_read": 1 << 30,
            "bytes_written": 3 << 20, "evictions": 1}


def known_state():
    variants = [{"name": name, "parent": parent, "digest": "ab" * 32, "bytes": 1 << 20}
                for name, parent in (("root", None), ("law", "root"), ("code", "root"))]
    family = {"name": "known", "device": "cpu", "num_layers": LAYERS, "max_model_len": 1024, "variants": variants}
    return {"families": [family], "plan_books": [_book("root", "law", "0,3,5"), _book("code", "law", None)],
            "caches": {"tiers": [_tier("host", 48, 64 << 20)], "misses": 5, "damaged": 0, "write_errors": 0},
            "queue": {"running": 3, "waiting": 2}, "kv": {"blocks_used": 25, "blocks_total": 100},
            "healthy": True, "draining": False}
