from __future__ import annotations

import subprocess
import sys

from tests.conftest import Pool

# As a terminal is made: descriptors are closed, and then something else is executed.
FORKS = """
import asyncio, os, sys, threading, time
from gpukernel.client.pool import PoolClient
assert "GRPC_ENABLE_FORK_SUPPORT" not in os.environ
loop = asyncio.new_event_loop(); threading.Thread(target=loop.run_forever, daemon=True).start()
async def use():
    client = PoolClient(sys.argv[1]); await client.__aenter__(); await client.devices(); return client
client = asyncio.run_coroutine_threadsafe(use(), loop).result()
failed = 0
for _ in range(40):
    said, says = os.pipe(); pid = os.fork()
    if pid == 0:
        os.dup2(says, 2); os.closerange(3, 256); time.sleep(0.01); os.execv("/bin/true", ["true"])
    os.close(says); failed += bool(os.read(said, 100)); os.close(said); failed += bool(os.waitpid(pid, 0)[1])
print(failed, flush=True); os._exit(0)
"""


def test_a_process_that_speaks_with_the_pool_may_fork_terminals(shared_pool: Pool) -> None:
    environment = {k: v for k, v in shared_pool.environment.items() if k != "GRPC_ENABLE_FORK_SUPPORT"}
    done = subprocess.run(
        [sys.executable, "-c", FORKS, shared_pool.address],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "0\n", done.stderr
