// One connection to one worker: the queue of requests that need no answer, and what happens when the worker
// is gone.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "entry_points.h"
#include "wire/channel.h"
#include "wire/protocol.h"

namespace gpukernel::shim {

// The code of every call once the worker is gone: the device is there no longer for this process.
constexpr CUresult GONE = CUDA_ERROR_DEVICE_UNAVAILABLE;

void complain(const std::string& sentence);  // one line on stderr

class Connection {
  public:
    // Connects to the first endpoint that answers and proves itself; false, and `error` says why.
    bool open(const std::vector<std::string>& endpoints, const std::string& secret, std::string& error);
    bool alive() const { return alive_.load(std::memory_order_acquire); }

    // Whether the worker's server may have an image already, and how it is named.
    void name_images(std::string_view salt) { image_salt_ = salt; }
    bool keeps_images() const { return !image_salt_.empty(); }
    std::string_view image_salt() const { return image_salt_; }

    std::mutex mutex;  // held from the first byte of a request to the last byte of its answer

    // Under `mutex`:
    std::vector<char>& buffer() { return buffer_; }
    bool flush();
    bool flush_with(const void* data, size_t size);  // the queue, then user memory, in one system call
    bool read(void* data, size_t size);
    void lost(const char* while_doing);  // says once why, and ends everything
    void abandon();  // in a forked child: the connection is the parent's, and ends with it
    void retire();   // its slice was given back: no more of it, and no word about it
    void goodbye(const std::string& reason);
    void queued();  // a request is complete and needs no answer
    uint64_t next_name() { return wire::NAMED_BY_SHIM | ++names_; }

  private:
    friend class Impostor;  // tests/native/fuzz: a worker that lies
    bool share_memory();
    void flush_in_time();
    wire::Channel channel_;
    std::string image_salt_;
    std::vector<char> buffer_;
    std::atomic<bool> alive_{false}, parked_{true};
    std::condition_variable wake_;
    uint64_t names_ = 0;
    uint64_t flushes_ = 0;
};

}  // namespace gpukernel::shim
