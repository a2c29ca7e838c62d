"""Running the program `stratann`."""

import json
import subprocess


def call(*words):
    """Run a command; return what it prints."""
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, words))}: {done.stderr.strip()[-500:]}")
    return done.stdout


def run(*words):
    """Run a command; return the JSON document that it prints."""
    return json.loads(call(*words))
