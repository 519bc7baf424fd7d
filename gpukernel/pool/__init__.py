"""The pool: devices, leases, the queue.  `client` is for everyone; the other modules are the service's own."""
