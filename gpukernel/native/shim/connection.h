// One connection to one worker: the queue of requests that need no answer, the answers that threads wait for,
// and what happens when the worker is gone.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "entry_points.h"
#include "wire/channel.h"
#include "wire/protocol.h"

namespace gpukernel::shim {

// The code of every call once the worker is gone: the device is there no longer for this process.
constexpr CUresult GONE = CUDA_ERROR_DEVICE_UNAVAILABLE;

void complain(const std::string& sentence);  // one line on stderr

// The answer to one request, wherever its outputs shall go.
struct Awaited {
    uint16_t call;
    void* data = nullptr;  // exactly `size` bytes, or
    size_t size = 0;
    std::vector<char>* outputs = nullptr;
    uint16_t number = 0;
    CUresult result = GONE;
    bool done = false;
};

class Connection {
  public:
    // Connects to the first endpoint that answers and proves itself; false, and `error` says why.
    bool open(const std::vector<std::string>& endpoints, const std::string& secret, std::string& error);
    bool alive() const { return alive_.load(std::memory_order_acquire); }
    // Another connection to the same door, for what must not wait behind this one's requests.
    wire::Socket beside(std::string& error) const;
    uint64_t key() const { return key_; }  // by which another connection can speak of this one

    // Whether the worker's server may have an image already, and how it is named.
    void name_images(std::string_view salt) { image_salt_ = salt; }
    bool keeps_images() const { return !image_salt_.empty(); }
    std::string_view image_salt() const { return image_salt_; }

    std::mutex mutex;  // held from the first byte of a request to the last

    // Under `mutex`:
    void come_in() {  // whoever makes a request
        static thread_local char me;
        if (only_thread_ != &me && !attentive_) come_in(&me);
    }
    std::vector<char>& buffer() { return buffer_; }
    bool flush();
    bool flush_with(const void* data, size_t size);  // the queue, then user memory, in one system call
    void queued();                                   // a request is complete and needs no answer
    // An error that came when nobody asked, in a fault of the program: the next call's answer.
    CUresult owed = CUDA_SUCCESS;
    bool expect(Awaited& answer);  // gives it the number of its request; false: too many wait
    uint64_t next_name() { return wire::NAMED_BY_SHIM | ++names_; }
    bool has_several_threads() const { return attentive_; }

    // Not under `mutex`: several threads may wait, and one of them reads for all.
    CUresult await(Awaited& answer);

    void abandon();  // in a forked child: the connection is the parent's, and ends with it
    void retire();   // its slice was given back: no more of it, and no word about it

  private:
    friend class Impostor;  // tests/native/fuzz: a worker that lies
    bool share_memory();
    void flush_in_time();
    void come_in(const void* thread);
    void read_answer();
    bool read(void* data, size_t size);
    void forget(Awaited& answer);
    void lost(const char* while_doing);  // says once why, and ends everything; only whoever reads
    void lost_while_sending();
    void goodbye(const std::string& reason);

    wire::Channel channel_;
    std::string image_salt_;
    std::string endpoint_, secret_;
    uint64_t key_ = 0;
    std::vector<char> buffer_;
    std::atomic<bool> alive_{false}, parked_{true};
    std::condition_variable wake_;
    uint64_t names_ = 0;
    uint64_t flushes_ = 0;
    const void* only_thread_ = nullptr;   // the first that came in
    std::atomic<bool> attentive_{false};  // the worker has been told of several

    std::mutex answers_mutex_;       // what follows
    std::vector<Awaited*> awaited_;  // by number
    bool reading_ = false;
    int sleepers_ = 0;
    std::condition_variable answered_;
};

}  // namespace gpukernel::shim
