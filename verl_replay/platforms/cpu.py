"""All of verl on a machine without an accelerator: FSDP2 over gloo, vLLM's CPU build, weight sync, validation, resume.

verl imports this module itself, in every process, before any of its own modules that the repairs change
(verl/__init__.py, VERL_USE_EXTERNAL_MODULES). It registers the platform `cpu` and arranges the repairs, and does so
only where VERL_PLATFORM=cpu: otherwise importing it changes nothing.

A launcher sets the variables of `verl_replay.platforms.cpu_environment` first. Do not import this module for that:
with VERL_PLATFORM=cpu it imports verl, and with it torch and ray, which read the variables when they are imported.
"""

from __future__ import annotations

import os

if os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu":  # read as verl's platform_manager.py reads it
    from verl.plugin.platform import PlatformRegistry

    from verl_replay.platforms.cpu_platform import CpuPlatform
    from verl_replay.platforms.cpu_repairs import install

    PlatformRegistry.register(platform="cpu")(CpuPlatform)
    install()
