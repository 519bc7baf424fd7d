"""Leases while they live: grant, renewal, resize, end and expiry, agents' sessions and keepalive.  Imported by `policy` and `rpc`."""
