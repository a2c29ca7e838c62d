"""Running the program `stratann`."""

import json
import subprocess


def run(*words):
    """Run a command; return the JSON document that it prints."""
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, words))}: {done.stderr.strip()[-500:]}")
    return json.loads(done.stdout)
