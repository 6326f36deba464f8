"""Stands in for verl: writes its arguments, and an accuracy as a validation logs it, to verl's file log."""

import json
import os
import sys

with open(os.environ["VERL_FILE_LOGGER_PATH"], "w") as log:
    data = {"arguments": sys.argv[1:], "val-core/countdown/acc/mean@4": 0.5}
    log.write(json.dumps({"step": 0, "data": data}) + "\n")
