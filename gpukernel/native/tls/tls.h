// The C interface of libgpukernel-tls.so: one end of a TLS 1.3 connection, without any input or output of its
// own.
//
// The library holds OpenSSL with all its symbols hidden, so that nothing of it meets the libssl or libcrypto
// of the program that it is loaded into.  It is loaded when a lease names a `tls:` endpoint, and not before;
// C++ uses it by wire/tls.h, Python by gpukernel/remoting/tls.py.
//
// Keys come from a key that both ends have already (an external PSK, RFC 8446 section 2.2) with an ephemeral
// key exchange (psk_dhe_ke); there are no certificates, no tickets and no early data.  The handshake is
// OpenSSL's. Records are sealed and opened by its AEAD ciphers with the keys of the handshake: one thread may
// seal while another opens, which an SSL object does not allow.
#pragma once

#include <cstddef>
#include <cstdint>

#define GPUKERNEL_TLS_API extern "C" __attribute__((visibility("default")))

extern "C" struct gpukernel_tls;

constexpr uint32_t GPUKERNEL_TLS_INTERFACE = 1;
constexpr size_t GPUKERNEL_TLS_KEY = 32;        // bytes of the key that both ends have
constexpr size_t GPUKERNEL_TLS_BINDING = 32;    // bytes of the channel binding
constexpr size_t GPUKERNEL_TLS_RECORD = 16384;  // the most plain text in one record
constexpr size_t GPUKERNEL_TLS_MORE = 64;       // at most so much longer is what a record becomes
constexpr size_t GPUKERNEL_TLS_FLIGHT = 4096;   // bytes that one step of a handshake may send
constexpr size_t GPUKERNEL_TLS_HELLO = 16384;   // bytes of a whole handshake that are taken in

GPUKERNEL_TLS_API uint32_t gpukernel_tls_interface(void);
// Returns the name and version of the OpenSSL that is inside.
GPUKERNEL_TLS_API const char* gpukernel_tls_provider(void);
// `worker`: the end that waits for the other's hello.  `identity` names the key.  nullptr: out of memory.
GPUKERNEL_TLS_API gpukernel_tls* gpukernel_tls_new(int worker, const uint8_t* key, const char* identity);
GPUKERNEL_TLS_API void gpukernel_tls_free(gpukernel_tls* one);

// Takes `size` bytes from the other end and writes what goes there to `out`, which has FLIGHT bytes.  Returns
// 0: more is needed, 1: the handshake is done, -1: it failed, and `gpukernel_tls_error` says why.  What is in
// `out` goes to the other end in each case.
GPUKERNEL_TLS_API int gpukernel_tls_handshake(gpukernel_tls* one, const uint8_t* in, size_t size,
                                              uint8_t* out, size_t* out_size);
// Once it is done: moves bytes behind the handshake, which are records, to `out`; returns how many there
// were.
GPUKERNEL_TLS_API size_t gpukernel_tls_rest(gpukernel_tls* one, uint8_t* out, size_t room);
// Returns BINDING bytes that only the two ends of this connection know (RFC 8446 section 7.5).
GPUKERNEL_TLS_API const uint8_t* gpukernel_tls_binding(const gpukernel_tls* one);
GPUKERNEL_TLS_API const char* gpukernel_tls_error(const gpukernel_tls* one);

// Seals the two pieces, together at most RECORD bytes, as one record; `out` has MORE bytes more than they.
// Returns its size; 0 where the cipher failed.
GPUKERNEL_TLS_API size_t gpukernel_tls_seal(gpukernel_tls* one, const uint8_t* first, size_t first_size,
                                            const uint8_t* second, size_t second_size, uint8_t* out);
// Has a new key after so many records, instead of after 2^23: for tests.
GPUKERNEL_TLS_API void gpukernel_tls_rekey_after(gpukernel_tls* one, uint64_t records);
// Seals the alert that what came was altered; `out` has MORE bytes.
GPUKERNEL_TLS_API size_t gpukernel_tls_seal_alert(gpukernel_tls* one, uint8_t* out);
// Opens the record of `size` bytes, its head included.  Writes the data in it to `out`, which has `size`
// bytes less 22, and returns its size, or 0 where it has none; -1: the connection is over, and
// `gpukernel_tls_error` says why.  Then what is in `out` means nothing.
GPUKERNEL_TLS_API long gpukernel_tls_open(gpukernel_tls* one, const uint8_t* record, size_t size,
                                          uint8_t* out);
