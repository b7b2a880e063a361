"""The worker: serves a Horde's chat jobs with a real model server."""

import os

# Pydantic loads Logfire's plug-in wherever Logfire is installed: 200 modules and 7 MB, for nothing used here. It does
# so with the first model that is defined, so this comes before every module of this package.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "logfire-plugin")
