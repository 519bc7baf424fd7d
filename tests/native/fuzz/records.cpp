// TLS 1.3 of the data path (tls/tls.h): whatever bytes arrive at either end of a handshake, flights and
// records of an honest other end that are changed on the way, cut, repeated and left out.  A record that was
// changed is never opened, and two ends that both believe the handshake to be done have the same binding.
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "bytes.h"
#include "tls/tls.h"

namespace {
using Buffer = std::vector<uint8_t>;
constexpr uint8_t KEY[GPUKERNEL_TLS_KEY] = {1, 2, 3};
constexpr char IDENTITY[] = "0123456789abcdef0123456789abcdef";
constexpr size_t MOST_STEPS = 40;

struct Free {
    void operator()(gpukernel_tls* one) const { gpukernel_tls_free(one); }
};

struct End {
    explicit End(bool worker) : tls(gpukernel_tls_new(worker, KEY, IDENTITY)) {
        if (!tls) std::abort();
    }
    // Returns what goes to the other end; `state` is what the handshake says.
    Buffer take(const Buffer& in) {
        Buffer out(GPUKERNEL_TLS_FLIGHT);
        size_t size = 0;
        state = gpukernel_tls_handshake(tls.get(), in.data(), in.size(), out.data(), &size);
        if (size > out.size() || (state < 0 && !*gpukernel_tls_error(tls.get()))) std::abort();
        out.resize(size);
        return out;
    }
    // Opens a record into as much room as it is promised.
    long open(const Buffer& record, Buffer& out) {
        out.assign(record.size() > 22 ? record.size() - 22 : 0, 0);
        const Buffer exact(record);
        const long size = gpukernel_tls_open(tls.get(), exact.data(), exact.size(), out.data());
        if (size > static_cast<long>(out.size())) std::abort();
        if (size >= 0) out.resize(size);
        return size;
    }
    std::unique_ptr<gpukernel_tls, Free> tls;
    int state = 0;
};

// Changes bytes as the input says.  True where they are others now.
bool change(Bytes& in, Buffer& bytes) {
    const Buffer before = bytes;
    switch (in.u8() % 6) {
        case 0:
            if (!bytes.empty()) bytes[in.u16() % bytes.size()] ^= in.u8();
            break;
        case 1:
            bytes.resize(in.u16() % (bytes.size() + 1));
            break;
        case 2: {
            const std::string_view more = in.take(in.u8());
            bytes.insert(bytes.end(), more.begin(), more.end());
            break;
        }
        case 3:
            if (bytes.size() >= 5) bytes[3] = in.u8(), bytes[4] = in.u8();  // the length of its record
            break;
        default:
            break;
    }
    return bytes != before;
}

// A handshake of two honest ends, with what the input makes of their flights.
void handshake(Bytes& in, End& worker, End& program) {
    Buffer to_worker = program.take({}), to_program;
    for (size_t n = 0; n < MOST_STEPS && (!to_worker.empty() || !to_program.empty()); ++n) {
        if (!to_worker.empty()) {
            change(in, to_worker);
            const size_t first = in.u8() & 1 ? in.u16() % (to_worker.size() + 1) : to_worker.size();
            const Buffer rest(to_worker.begin() + static_cast<ptrdiff_t>(first), to_worker.end());
            to_worker.resize(first);
            to_program = worker.state ? Buffer{} : worker.take(to_worker);
            if (!worker.state && !rest.empty()) {
                const Buffer more = worker.take(rest);
                to_program.insert(to_program.end(), more.begin(), more.end());
            }
            to_worker.clear();
        }
        if (!to_program.empty()) {
            change(in, to_program);
            if (!program.state) to_worker = program.take(to_program);
            to_program.clear();
        }
    }
    if (worker.state == 1 && program.state == 1 &&
        std::memcmp(gpukernel_tls_binding(worker.tls.get()), gpukernel_tls_binding(program.tls.get()),
                    GPUKERNEL_TLS_BINDING) != 0)
        std::abort();
}

// Records from one end to the other, until one was changed.
void records(Bytes& in, End& from, End& to) {
    if (in.u8() & 1) gpukernel_tls_rekey_after(from.tls.get(), in.u8() % 4 + 1);
    for (size_t n = 0; n < MOST_STEPS && !in.empty(); ++n) {
        const bool alert = in.u8() % 8 == 0;
        const std::string_view first = in.take(in.u8()), second = in.take(in.u16() % 2048);
        Buffer out(first.size() + second.size() + 2 * GPUKERNEL_TLS_MORE), plain;
        const auto* a = reinterpret_cast<const uint8_t*>(first.data());
        const auto* b = reinterpret_cast<const uint8_t*>(second.data());
        out.resize(alert ? gpukernel_tls_seal_alert(from.tls.get(), out.data())
                         : gpukernel_tls_seal(from.tls.get(), a, first.size(), b, second.size(), out.data()));
        std::string opened;
        while (!out.empty()) {  // a new key is a record of its own
            const size_t size = 5 + (static_cast<size_t>(out[3]) << 8 | out[4]);
            if (size > out.size()) std::abort();
            Buffer record(out.begin(), out.begin() + static_cast<ptrdiff_t>(size));
            out.erase(out.begin(), out.begin() + static_cast<ptrdiff_t>(size));
            const bool changed = change(in, record);
            const long there = to.open(record, plain);
            if (changed ? there >= 0 : (there < 0) != alert) std::abort();
            if (there < 0) return;
            opened.append(plain.begin(), plain.end());
        }
        if (opened != std::string(first) + std::string(second)) std::abort();
    }
}
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    Bytes in(data, size);
    const uint8_t what = in.u8();
    End worker(true), program(false);
    if (what % 4 < 2) {  // nothing of an honest other end
        End& one = what % 4 ? program : worker;
        if (&one == &program) one.take({});
        while (!in.empty() && !one.state) {
            const std::string_view piece = in.take(in.u8() & 1 ? in.u8() : 4096);
            one.take(Buffer(piece.begin(), piece.end()));
        }
        if (one.state == 1) std::abort();  // without the key
        return 0;
    }
    if (what % 4 == 2) {
        handshake(in, worker, program);
        return 0;
    }
    const uint8_t honest[1] = {};
    Bytes nothing(honest, 0);
    // Past its end an input is zero, which changes a byte by nothing.
    handshake(nothing, worker, program);
    if (worker.state != 1 || program.state != 1) std::abort();
    what & 4 ? records(in, worker, program) : records(in, program, worker);
    return 0;
}
