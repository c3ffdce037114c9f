#!/usr/bin/env python3
"""Renders tests/data/chat_templates with Python's jinja2, set up as transformers does.

The stored results are what the C++ interpreter must equal byte for byte.

Usage: tools/make_template_goldens.py [--folder tests/data/chat_templates]
Needs: pip install jinja2 (3.1.6 or newer)

Reads   *.jinja, conversations.json, snippets.json
Writes  goldens/<template>.json   [{"case", "output"} or {"case", "error"}]
        snippet_goldens.json      [{"source", "output"} or {"source", "error"}]
"""

import argparse
import datetime
import json
import pathlib

import jinja2
import jinja2.ext
import jinja2.sandbox

NOW = datetime.datetime(2024, 11, 5, 14, 7, 9)
BOS, EOS = "<s>", "</s>"


class Generation(jinja2.ext.Extension):
    """{% generation %}: transformers marks the span; the text is the body's."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


class GuardedNamespace(jinja2.utils.Namespace):
    """Refuses names with a leading underscore, as transformers does."""

    def __init__(*args, **kwargs):
        self, args = args[0], args[1:]
        attributes = dict(*args, **kwargs)
        for name in attributes:
            GuardedNamespace.check_name(name)
        jinja2.utils.Namespace.__init__(self, attributes)

    def __setitem__(self, name, value):
        GuardedNamespace.check_name(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)

    @staticmethod
    def check_name(name):
        if name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"namespace cannot hold {name}")


def make_environment():
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(
            x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )

    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = NOW.strftime
    environment.globals["namespace"] = GuardedNamespace
    return environment


def render(environment, source, variables):
    try:
        return {"output": environment.from_string(source).render(**variables)}
    except Exception as error:  # whatever Python raises, the C++ side must refuse
        return {"error": f"{type(error).__name__}: {error}"}


def conversation_variables(conversation):
    return {
        "messages": conversation["messages"],
        "tools": None,
        "documents": None,
        "bos_token": BOS,
        "eos_token": EOS,
        "add_generation_prompt": conversation["add_generation_prompt"],
        **conversation.get("variables", {}),
    }


def write_json(path, value):
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = pathlib.Path(__file__).resolve().parent.parent / "tests/data/chat_templates"
    parser.add_argument("--folder", type=pathlib.Path, default=default)
    folder = parser.parse_args().folder
    environment = make_environment()
    conversations = json.loads((folder / "conversations.json").read_text(encoding="utf-8"))
    (folder / "goldens").mkdir(exist_ok=True)
    for path in sorted(folder.glob("*.jinja")):
        source = path.read_bytes().decode()
        rows = [
            {"case": case["name"], **render(environment, source, conversation_variables(case))}
            for case in conversations
        ]
        write_json(folder / "goldens" / f"{path.stem}.json", rows)
        print(f"{path.stem}: {sum('output' in row for row in rows)} of {len(rows)} rendered")
    snippets_path = folder / "snippets.json"
    if snippets_path.exists():
        snippets = json.loads(snippets_path.read_text(encoding="utf-8"))
        rows = [
            {"source": source, **render(environment, source, snippets["variables"])}
            for source in snippets["sources"]
        ]
        write_json(folder / "snippet_goldens.json", rows)
        print(f"snippets: {sum('output' in row for row in rows)} of {len(rows)} rendered")


if __name__ == "__main__":
    main()
