"""The request queue, its scheduling cycle, reservations' placement, reordering, resize and estimates.  Imported by `leases`."""
