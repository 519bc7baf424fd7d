// Reads a fuzzer's input from the front; past its end everything is zero.  Seeds are written by seeds.py.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

class Bytes {
  public:
    Bytes(const uint8_t* data, size_t size) : at_(data), end_(data + size) {}
    bool empty() const { return at_ == end_; }
    template <class T>
    T get() {
        T value{};
        const std::string_view from = take(sizeof value);
        if (!from.empty()) std::memcpy(&value, from.data(), from.size());
        return value;
    }
    uint8_t u8() { return get<uint8_t>(); }
    uint16_t u16() { return get<uint16_t>(); }
    std::string_view take(size_t most) {
        const size_t size = std::min<size_t>(most, end_ - at_);
        const std::string_view from(reinterpret_cast<const char*>(at_), size);
        at_ += size;
        return from;
    }

  private:
    const uint8_t* at_;
    const uint8_t* end_;
};
