"""Data and code that client and server share; nothing here imports another package of gpukernel.

* the pool's terms as data: `model`, `errors`, `course`, `policy`, `bounds`, `reservations`, `slice_request`
* the course file: `course_file` reads and writes it, `course_entries` and `reservation_entry` are its entries, `file_words` what it
  is told that is wrong
* the protocol: `proto` (generated messages and stubs), `messages` (conversion), `i18n` (sentences that can be translated)
* the way to a pool: `address`, `connection`, `fork_safe_grpc`, `machine`
* `logs`: the log of servers

Everybody may import from here.
"""
