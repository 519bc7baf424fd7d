// Serialisation of a frame's body.
//
// Guarantee: a Reader never reads outside its bytes.  Past the end it yields zeros and remembers that it
// failed.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "wire/protocol.h"

namespace gpukernel::wire {

// Appends to a body.
class Writer {
  public:
    explicit Writer(std::vector<char>& out) : out_(out) {}
    template <class T>
    void put(const T& value) {
        static_assert(std::is_trivially_copyable_v<T>);
        bytes(&value, sizeof value);
    }
    void bytes(const void* data, size_t size) {
        const char* from = static_cast<const char*>(data);
        out_.insert(out_.end(), from, from + size);
    }
    char* extend(size_t size) {  // `size` bytes at the end, which the caller fills
        out_.resize(out_.size() + size);
        return out_.data() + out_.size() - size;
    }
    void text(std::string_view text) {
        put<uint32_t>(static_cast<uint32_t>(text.size()));
        bytes(text.data(), text.size());
    }

  private:
    std::vector<char>& out_;
};

// Reads a body from its beginning to its end; texts refer to the body's own bytes.
class Reader {
  public:
    Reader(const char* data, size_t size) : at_(data), end_(data + size) {}
    template <class T>
    T get() {
        static_assert(std::is_trivially_copyable_v<T>);
        T value{};
        if (const char* from = take(sizeof value)) std::memcpy(&value, from, sizeof value);
        return value;
    }
    std::string_view text() {
        const uint32_t size = get<uint32_t>();
        const char* from = take(size);
        return from ? std::string_view(from, size) : std::string_view();
    }
    std::string_view rest() { return {at_, static_cast<size_t>(end_ - at_)}; }
    bool failed() const { return failed_; }

  private:
    const char* take(size_t size) {
        if (failed_ || size > static_cast<size_t>(end_ - at_)) {
            failed_ = true;
            return nullptr;
        }
        const char* from = at_;
        at_ += size;
        return from;
    }
    const char* at_;
    const char* end_;
    bool failed_ = false;
};

// The whole frame of a custom call that is not answered or has no number, for a socket that is written to
// directly.
template <class Message>
std::vector<char> frame_of(const Message& message) {
    std::vector<char> frame;
    frame.reserve(64);
    frame.resize(sizeof(FrameHeader));
    Writer out(frame);
    message.write(out);
    const FrameHeader header{static_cast<uint32_t>(frame.size() - sizeof(FrameHeader)),
                             static_cast<uint16_t>(Message::call), 0};
    std::memcpy(frame.data(), &header, sizeof header);
    return frame;
}

}  // namespace gpukernel::wire
