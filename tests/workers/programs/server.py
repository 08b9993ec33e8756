"""A server of a cluster, as started by the launcher."""

import os

from unisono.distribute import server

os._exit(server.main())
