"""droidspeak(1) from the program's own --help."""

import re
import time

import help_pages
import staging


def escape(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + text if text[:1] in (".", "'") else text


def entry(left, text):
    return [".TP", left, escape(text) if text else "\\&"]


def option_head(option):
    names = ", ".join(f"\\fB{escape(name)}\\fR" for name in option.names)
    return names + (f" \\fI{escape(option.value)}\\fR" if option.value else "")


def describe(command):
    lines = [escape(command.summary), ".PP", f"\\fB{escape(' '.join(command.path))}\\fR {escape(command.usage[len(' '.join(command.path)):].strip())}"]
    for name, text in command.positionals:
        lines += entry(f"\\fI{escape(name)}\\fR", text)
    for option in command.options:
        lines += entry(option_head(option), option.text)
    return lines


def example(command):
    if not command.footer:
        return []
    return [".PP", "Example:", ".PP", ".RS 4", ".nf", escape(command.footer.removeprefix("Example:").strip()), ".fi", ".RE"]


def environment(root):
    """Options that the environment gives, too: (Env:NAME) in their help."""
    found = {match[1]: option.names[-1] for command in root.all() for option in command.options
             if (match := re.search(r"\(Env:(\w+)\)", option.value))}
    return [line for name, option in sorted(found.items()) for line in entry(f"\\fB{escape(name)}\\fR", f"As {option}.")]


def write(program):
    root = help_pages.read_program(program)
    date = time.strftime("%Y-%m-%d", time.gmtime(staging.timestamp()))
    lines = [f'.TH DROIDSPEAK 1 "{date}" "droidspeak {staging.version()}" "User Commands"', ".SH NAME",
             "droidspeak \\- serve fine\\-tuned variants of one base model, each from the caches of the others",
             ".SH SYNOPSIS", escape(root.usage), ".SH DESCRIPTION", escape(root.summary), ".SH OPTIONS"]
    for option in root.options:
        lines += entry(option_head(option), option.text)
    lines += [".SH COMMANDS"]
    for command in root.all():
        if command is root:
            continue
        lines += [f'.SS "{escape(" ".join(command.path[1:]))}"', *describe(command), *example(command)]
    lines += [".SH EXIT STATUS", "0 on success, 1 when the command failed, 2 when its arguments are wrong.",
              ".SH ENVIRONMENT",
              *entry("\\fBDROIDSPEAK_API_KEY\\fR, \\fBDROIDSPEAK_ADMIN_KEY\\fR", "Keys of serve, as with --api-key and --admin-key."),
              *environment(root),
              ".SH FILES", *entry("\\fI/etc/droidspeak/droidspeak.conf\\fR", "Family and options of the service."),
              *entry("\\fI/var/lib/droidspeak\\fR", "Models of the service, if nothing else is said."),
              *entry("\\fI/var/cache/droidspeak\\fR", "Caches of the service that were put on disk.")]
    return "\n".join(lines) + "\n"
