"""Looks at the device's memory, takes more than there is, and goes on."""

import json

from cuda.bindings import driver


def check(result):
    code, *values = result
    if int(code):
        raise SystemExit(f"CUDA error {code}")
    return values[0] if len(values) == 1 else values


check(driver.cuInit(0))
device = check(driver.cuDeviceGet(0))
check(driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(device))))
free, total = check(driver.cuMemGetInfo())
too_much, _ = driver.cuMemAlloc(total + 1)
pointer = check(driver.cuMemAlloc(1 << 20))
print(
    json.dumps(
        {
            "devices": check(driver.cuDeviceGetCount()),
            "free": free,
            "total": total,
            "total_of_device": check(driver.cuDeviceTotalMem(device)),
            "too_much": too_much.name,
            "free_after_one_mib": check(driver.cuMemGetInfo())[0],
        }
    )
)
check(driver.cuMemFree(pointer))
