"""Prints how it was started, in the place of vLLM."""

import json
import os
import sys

print(json.dumps({"argv": sys.argv[1:], "hash_seed": os.environ["PYTHONHASHSEED"]}))
