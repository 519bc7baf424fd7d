from __future__ import annotations

from tests.direct.conftest import own_direct_pool as own_direct_pool
