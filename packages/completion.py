"""Completion for bash from the program's own --help: commands, options, and the values of options that have a few."""

import help_pages

SCRIPT = r'''# bash completion for droidspeak, made from its --help
_droidspeak() {
    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} path=droidspeak word i
    COMPREPLY=()
    for ((i = 1; i < COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        case "$path $word" in
            @PATHS@) path="$path $word" ;;
        esac
    done
    case "$path $previous" in
@VALUES@
    esac
    case "$previous" in
        @FILES@) compopt -o default 2> /dev/null; COMPREPLY=(); return ;;
    esac
    case "$path" in
@WORDS@
    esac
}
complete -F _droidspeak droidspeak
'''
FILE_WORDS = ("file", "folder", "path", "dir", "data", "out", "cert", "tls-key", "socket", "family", "root")


def takes_file(option):
    return option.value and any(word in name for name in option.names for word in FILE_WORDS) and not option.choices


def write(program):
    root = help_pages.read_program(program)
    commands = list(root.all())
    paths = "|".join(f'"{" ".join(command.path)}"' for command in commands if len(command.path) > 1)
    values, words, files = [], [], set()
    for command in commands:
        path = " ".join(command.path)
        for option in command.options:
            if option.choices:
                patterns = "|".join(f'"{path} {name}"' for name in option.names)
                values.append(f'        {patterns}) COMPREPLY=($(compgen -W "{" ".join(option.choices)}" -- "$current")); return ;;')
            if takes_file(option):
                files.update(option.names)
        names = [*(child.path[-1] for child in command.commands), *(name for option in command.options for name in option.names)]
        words.append(f'        "{path}") COMPREPLY=($(compgen -W "{" ".join(names)}" -- "$current")) ;;')
    return (SCRIPT.replace("@PATHS@", paths).replace("@VALUES@", "\n".join(values))
            .replace("@FILES@", "|".join(sorted(files))).replace("@WORDS@", "\n".join(words)))
