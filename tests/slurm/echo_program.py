"""Stands in for verl: writes its arguments to verl's file log, and nothing else."""

import json
import os
import sys

with open(os.environ["VERL_FILE_LOGGER_PATH"], "w") as log:
    log.write(json.dumps({"step": 0, "data": sys.argv[1:]}) + "\n")
