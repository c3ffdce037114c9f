#!/usr/bin/env python3
"""Peer reads beside ucx_perftest on the same transports, in turns, so that other work on the machine
hits both. Needs `ninja -C build peer_rate_bench` and the package ucx-utils.

  bench/peer_rate.py [--build build] [--tls tcp] [--rounds 5] [--megabytes 2048]
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time

MESSAGE_BYTES = 1 << 20
PORT = 14900


def environment(tls):
    return {**os.environ, "UCX_TLS": tls, "UCX_LOG_LEVEL": "fatal", "UCX_MM_ERROR_HANDLING": "y",
            "UCX_WARN_UNUSED_ENV_VARS": "n"}


def perftest_rate(tls, megabytes):
    """Bytes per second of ucp_am_bw: active messages of 1 MiB, as the peers' replies are."""
    common = ["ucx_perftest", "-p", str(PORT), "-t", "ucp_am_bw", "-f"]
    server = subprocess.Popen(common, env=environment(tls), stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)
    try:
        time.sleep(1)
        sizes = ["-s", str(MESSAGE_BYTES), "-n", str(megabytes), "-w", "100"]
        done = subprocess.run([*common[:1], "127.0.0.1", *common[1:], *sizes], env=environment(tls),
                              capture_output=True, text=True, timeout=300, check=True)
        # The last line's columns: iterations, three latencies, bandwidth (MB/s, of 2^20) average and overall.
        last = [line for line in done.stdout.splitlines() if re.search(r"\d+\.\d+", line)][-1]
        numbers = re.findall(r"\d+(?:\.\d+)?", last)
        return float(numbers[-3]) * (1 << 20)
    finally:
        server.kill()
        server.wait()


def peer_rate(program, tls, megabytes):
    server = subprocess.Popen([program, "serve"], env=environment(tls), stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, text=True)
    try:
        address = server.stdout.readline().strip()
        done = subprocess.run([program, "read", address, str(megabytes)], env=environment(tls),
                              capture_output=True, text=True, timeout=300, check=True)
        return float(done.stdout)
    finally:
        server.stdin.close()
        server.wait(timeout=30)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--build", default="build", type=pathlib.Path)
    parser.add_argument("--tls", default="tcp", help="UCX_TLS; several by +, e.g. tcp+sysv,tcp")
    parser.add_argument("--rounds", default=5, type=int)
    parser.add_argument("--megabytes", default=2048, type=int)
    options = parser.parse_args()
    program = str(options.build / "bin" / "peer_rate_bench")
    rows = []
    for tls in options.tls.split("+"):
        perftest, peer = [], []
        for _ in range(options.rounds):
            perftest.append(perftest_rate(tls, options.megabytes))
            peer.append(peer_rate(program, tls, options.megabytes))
        shares = [p / u for p, u in zip(peer, perftest)]
        rows.append({"tls": tls, "perftest_bytes_per_second": statistics.median(perftest),
                     "peer_bytes_per_second": statistics.median(peer),
                     "share_median": round(statistics.median(shares), 3),
                     "shares": [round(share, 3) for share in shares]})
        print(json.dumps(rows[-1]), file=sys.stderr)
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
