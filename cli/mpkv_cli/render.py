"""A command as text for a person and for a shell."""

import json
import shlex

from mpkv_cli.serve import ServeCommand


def render_command(command: ServeCommand) -> str:
    """One argument a line; the shell reads the indented JSON as one argument."""
    words = ["env", *(f"{name}={value}" for name, value in sorted(command.env.items()))]
    lines = [shlex.join(words), shlex.join(command.argv[:5])]
    for word in command.argv[5:]:
        previous = lines[-1]
        # Only what mpkv wrote itself is JSON for certain.
        if previous.strip() == "--kv-transfer-config":
            lines[-1] = f"{previous} {shlex.quote(json.dumps(json.loads(word), indent=2))}"
        elif word.startswith("-"):
            lines.append(shlex.quote(word))
        else:
            lines[-1] = f"{previous} {shlex.quote(word)}"
    return " \\\n  ".join(lines)
