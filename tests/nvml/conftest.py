from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

# Answers each line, an expression over pynvml, by a line of JSON; an NVML error by its class's name.
TOOL = """
import ctypes, json, os, sys, threading
from pynvml import *
library = ctypes.CDLL("libnvidia-ml.so.1")
def gpu(index=0): return nvmlDeviceGetHandleByIndex(index)
def programs(index=0): return sorted((p.pid, p.usedGpuMemory) for p in nvmlDeviceGetComputeRunningProcesses(gpu(index)))
def programs_as_of(version, room=9):
    # The functions and structures of older drivers, which older tools ask for.
    fields = [("pid", ctypes.c_uint), ("usedGpuMemory", ctypes.c_ulonglong)]
    if version: fields += [("gpuInstanceId", ctypes.c_uint), ("computeInstanceId", ctypes.c_uint)]
    infos, count = (type("Info", (ctypes.Structure,), {"_fields_": fields}) * room)(), ctypes.c_uint(room)
    code = library["nvmlDeviceGetComputeRunningProcesses" + version](gpu(), ctypes.byref(count), infos)
    if code: raise NVMLError(code)
    return sorted((info.pid, info.usedGpuMemory) for info in infos[:count.value])
def in_child(question):
    ours, theirs = os.pipe()
    if os.fork() == 0:
        os.write(theirs, repr(question()).encode()); os._exit(0)
    os.close(theirs); os.wait()
    return os.read(ours, 1000).decode()
def in_threads(question, count=8, times=50):
    answers = []
    def ask(): answers.extend(question() for _ in range(times))
    threads = [threading.Thread(target=ask) for _ in range(count)]
    [t.start() for t in threads]; [t.join() for t in threads]
    return [len(answers), sorted(set(answers))]
for line in sys.stdin:
    try:
        answer = eval(line)
    except NVMLError as error:
        answer = type(error).__name__
    print(json.dumps(answer, default=repr), flush=True)
"""


class Tool:
    """A process that asks NVML and does nothing else, for as long as a test lasts."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", TOOL],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ask(self, expression: str) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(expression + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        return json.loads(line)

    def close(self) -> str:
        """End it; what it said on standard error."""
        return self.process.communicate(timeout=30)[1]


@pytest.fixture
def tools() -> Iterator[Any]:
    """Makes tools in an environment, NVML initialised; none of them says anything on standard error."""
    with contextlib.ExitStack() as stack:

        def make(environment: dict[str, str], init: bool = True) -> Tool:
            tool = Tool(environment)
            stack.callback(tool.process.kill)
            made.append(tool)
            if init:
                assert tool.ask("nvmlInit()") is None
            return tool

        made: list[Tool] = []
        yield make
        assert [tool.close() for tool in made] == [""] * len(made)
