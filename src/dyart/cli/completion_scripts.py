"""The completion scripts themselves, one function per shell; written by hand, so that no package is needed."""

import shlex
from collections.abc import Iterable

from dyart.cli.completion import Command


def bash(commands: list[Command]) -> str:
    """Return the script for bash. Where it knows no word, bash completes files."""
    paths = " ".join(shlex.quote(command.path) for command in commands if command.path)
    values = [
        f"        {shlex.quote(f'{command.path} {option}'.strip())}) words={shlex.quote(' '.join(known))};;"
        for command in commands
        for option, known in command.values.items()
    ]
    options = [f"            {shlex.quote(c.path)}) words={shlex.quote(' '.join(c.options))};;" for c in commands]
    names = [f"            {shlex.quote(c.path)}) words={shlex.quote(' '.join(c.words))};;" for c in commands]
    return f"""\
# Completion of dyart for bash, written by `dyart completion bash`.
_dyart() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}" path="" word words="" at known
    local paths=({paths})
    # Bash takes --option=value for three words.
    if [[ $current == "=" ]]; then current=""
    elif [[ $previous == "=" ]]; then previous="${{COMP_WORDS[COMP_CWORD-2]}}"; fi
    for ((at = 1; at < COMP_CWORD; at++)); do
        word="${{path:+$path }}${{COMP_WORDS[at]}}"
        for known in "${{paths[@]}}"; do
            if [[ $word == "$known" ]]; then path="$word"; break; fi
        done
    done
    COMPREPLY=()
    case "${{path:+$path }}$previous" in
{chr(10).join(values)}
        *)
        if [[ $current == -* ]]; then
            case "$path" in
{chr(10).join(options)}
            esac
        else
            case "$path" in
{chr(10).join(names)}
            esac
        fi;;
    esac
    local IFS=$' \\t\\n'
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _dyart dyart
"""


def zsh(commands: list[Command]) -> str:
    """Return the script for zsh. Where it knows no word, it completes files."""
    paths = " ".join(shlex.quote(command.path) for command in commands if command.path)
    values = [
        f"        {shlex.quote(f'{command.path} {option}'.strip())}) words=({_quoted(known)});;"
        for command in commands
        for option, known in command.values.items()
    ]
    options = [f"            {shlex.quote(c.path)}) described=({_described(c.options)});;" for c in commands]
    names = [f"            {shlex.quote(c.path)}) described=({_described(c.words)});;" for c in commands]
    return f"""\
#compdef dyart
# Completion of dyart for zsh, written by `dyart completion zsh`.
_dyart() {{
    local path_="" word at
    local -a paths described
    paths=({paths})
    for ((at = 2; at < CURRENT; at++)); do
        word="${{path_:+$path_ }}${{words[at]}}"
        (( ${{paths[(Ie)$word]}} )) && path_="$word"
    done
    _dyart_values "${{path_:+$path_ }}${{words[CURRENT-1]}}" && return
    if [[ ${{words[CURRENT]}} == -* ]]; then
        case "$path_" in
{chr(10).join(options)}
        esac
        _describe -o option described
    else
        case "$path_" in
{chr(10).join(names)}
        esac
        if (( $#described )); then _describe word described || _files; else _files; fi
    fi
}}
_dyart_values() {{
    local -a words
    case "$1" in
{chr(10).join(values)}
        *) return 1;;
    esac
    if (( $#words )); then compadd -a words || _files; else _files; fi
    return 0
}}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then _dyart "$@"; else compdef _dyart dyart; fi
"""


def fish(commands: list[Command]) -> str:
    """Return the script for fish."""
    lines = ["# Completion of dyart for fish, written by `dyart completion fish`."]
    for command in commands:
        inner = [other.path for other in commands if _is_below(other.path, command.path)]
        when = _fish_condition(command.path, inner)
        if inner:
            lines.append(f"complete -c dyart -f {when}")
        for word, meaning in command.words.items():
            note = f" -d {_fish(meaning)}" if meaning else ""
            lines.append(f"complete -c dyart {when} -a {_fish(word)}{note}")
        for option, meaning in command.options.items():
            flag = f"-l {_fish(option[2:])}" if option.startswith("--") else f"-s {_fish(option[1:])}"
            known = command.values.get(option)
            value = "" if known is None else (f" -x -a {_fish(' '.join(known))}" if known else " -r")
            lines.append(f"complete -c dyart {when} {flag}{value} -d {_fish(meaning)}")
    return "\n".join(lines) + "\n"


def _is_below(path: str, above: str) -> bool:
    return bool(path) and path.rpartition(" ")[0] == above


def _fish_condition(path: str, inner: list[str]) -> str:
    """Return when a command's words are meant: it was named, and none of its own commands was yet."""
    parts = [f"__fish_seen_subcommand_from {part}" for part in path.split()]
    if inner:
        parts.append(f"not __fish_seen_subcommand_from {' '.join(name.rpartition(' ')[2] for name in inner)}")
    return f"-n {_fish('; and '.join(parts))}"


def _fish(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _quoted(words: Iterable[str]) -> str:
    return " ".join(map(shlex.quote, words))


def _described(words: dict[str, str]) -> str:
    """Return words with their meanings as zsh's _describe reads them."""
    pairs = (f"{word.replace(':', chr(92) + ':')}:{meaning}" if meaning else word for word, meaning in words.items())
    return _quoted(pairs)
