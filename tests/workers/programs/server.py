"""A server of a cluster, as the launcher starts it."""

import os

from unisono.distribute import server

os._exit(server.main())
