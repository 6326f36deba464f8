"""What verl loads through the `verl.plugins` entry point, in every process that imports verl.

Registers the Hydra search path of the presets, so that `+sara=<preset>` composes without a
`hydra.searchpath`, and, only when `VERL_PLATFORM=cpu`, the CPU platform. verl swallows the errors
of plug-ins at debug level (verl/__init__.py), so nothing here may be needed for correctness in a
worker: the classes named by the presets are loaded by path.
"""

import os

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin


class SaraSearchPath(SearchPathPlugin):
    """Adds `pkg://verl_sara.config`, the home of the config group `sara`."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append(provider="verl-sara", path="pkg://verl_sara.config")


Plugins.instance().register(SaraSearchPath)

if os.environ.get("VERL_PLATFORM") == "cpu":
    from verl_sara import cpu

    cpu.register()
