#!/usr/bin/env python3
"""Runs the team's workflow twice against a running server, with sharing and without, and prints one table.

  .venv-agents/bin/python examples/agents/compare.py --client openai-agents --url http://127.0.0.1:8080
"""

import argparse
import importlib
import json
import urllib.request
import uuid

import steps
import team

CLIENTS = {"openai-agents": "with_openai_agents", "langgraph": "with_langgraph"}


def family(url):
    """What the server says of the family it serves; ends the program where there is none."""
    try:
        with urllib.request.urlopen(url + "/v1/droidspeak/state") as answer:
            return json.load(answer)["families"][0]
    except OSError as error:
        raise SystemExit(f"no server at {url} ({error}); start one with `build/droidspeak serve`, or say --url") from error


def check_variants(served):
    """Ends the program where a role's variant is not served."""
    names = [variant["name"] for variant in served["variants"]]
    missing = sorted({role.variant for role in team.ROLES} - set(names))
    if missing:
        raise SystemExit(f"the server has no variant {', '.join(missing)}, only {', '.join(names)}: these roles need the default family (make models)")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--client", choices=CLIENTS, required=True)
    parser.add_argument("--url", default="http://127.0.0.1:8080", help="of the server")
    parser.add_argument("--document-bytes", type=int, default=6000, help="how much of the document the team reads")
    options = parser.parse_args()
    served = family(options.url)
    check_variants(served)
    workflow = importlib.import_module(CLIENTS[options.client])
    text = team.document(options.document_bytes)
    recorded = {}
    for sharing in ("auto", "off"):
        recorded[sharing] = steps.Recorder()
        # A salt of its own: no run finds what another one has read, nor what an earlier one of this program has.
        extra_body = {"sharing": sharing, "cache_salt": uuid.uuid4().hex}
        verdict = workflow.run(options.url, text, recorded[sharing], extra_body)
        print(f"sharing {'on' if sharing == 'auto' else 'off'}: the reviewer says {verdict.verdict}, grade {verdict.grade}")
    print(steps.table(workflow.STEPS, recorded["auto"].steps, recorded["off"].steps, served["num_layers"]))


if __name__ == "__main__":
    main()
