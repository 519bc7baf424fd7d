// One connection to one worker: the queue of requests that are not answered, the answers that threads wait
// for, and the end of the connection when the worker is gone.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "libcuda/entry_points.h"
#include "libcuda/library.h"
#include "shim/transport/early_reads.h"
#include "shim/transport/finished.h"
#include "shim/transport/foresight.h"
#include "shim/transport/memo.h"
#include "shim/transport/news.h"
#include "shim/transport/spares.h"
#include "wire/channel.h"
#include "wire/protocol.h"

namespace gpukernel::shim {

// The result of every call once the worker is gone.
constexpr CUresult GONE = CUDA_ERROR_DEVICE_UNAVAILABLE;

// Prints one line on stderr.
void complain(const std::string& sentence);

// An answer that a thread waits for, and where its outputs go.
struct PendingAnswer {
    uint16_t call;
    void* data = nullptr;  // exactly `size` bytes, or
    size_t size = 0;
    std::vector<char>* outputs = nullptr;
    uint16_t number = 0;
    CUresult result = GONE;
    bool done = false;
};

// Above the bit NAMED_BY_SHIM a handle's name says which of the process's devices it is of, so that none has
// two meanings.
constexpr int DEVICE_IN_NAME = 41;

// Whether this thread reads the answers of some connection: nobody gets one of them until it goes on.
inline GPUKERNEL_STATIC_THREAD_LOCAL bool reads_answers = false;

// Requests are written under `mutex`; answers are read by one of the threads that wait for any.
class Connection {
  public:
    // Connects to the first endpoint whose worker completes the handshake; false, and `error` says why, where
    // none does.
    bool open(const std::vector<std::string>& endpoints, const std::string& secret, std::string& error);
    bool alive() const { return alive_.load(std::memory_order_acquire); }
    // Opens another connection to the same worker, for what must not wait behind this one's requests.
    wire::Channel open_another(std::string& error) const;
    uint64_t key() const { return key_; }  // by which another connection can refer to this one

    // Has the names that it gives say which device of the process they are of, and begin after the first
    // `given`.
    void name_device(int index, uint64_t given) {
        names_of_ = static_cast<uint64_t>(index) << DEVICE_IN_NAME, names_ = given;
    }

    // Whether the worker's server caches images, and the salt of their names.
    void name_images(std::string_view salt) { image_salt_ = salt; }
    // Whether the worker knows settle_copies and report.
    bool tells_of_streams = false;
    // How large a read it makes early.
    uint64_t most_early_bytes = wire::FEW_EARLY_BYTES;
    // Whether it says by their numbers which host functions it has no room for.
    bool tells_of_refusals = false;
    bool keeps_images() const { return !image_salt_.empty(); }
    std::string_view image_salt() const { return image_salt_; }

    std::mutex mutex;  // held from the first byte of a request to the last

    // --- under `mutex` ---
    // Tells the worker when a second thread makes a request.
    void note_thread() {
        static GPUKERNEL_STATIC_THREAD_LOCAL char me = 0;
        if (only_thread_ != &me && !several_threads_) note_thread(&me);
    }
    std::vector<char>& buffer() { return buffer_; }
    Foresight foresight;
    Finished finished;
    EarlyReads early_reads;
    Spares spares;
    Memo memo;
    bool flush();
    bool flush_with(const void* data, size_t size);  // the queue, then user memory, in one system call
    void queued();                                   // a request is complete and is not answered
    // The error of a request that no call of the program made, as in a page fault; its next call returns it.
    CUresult deferred_error = CUDA_SUCCESS;
    // Gives an answer the number of its request; false where too many are pending.
    bool expect(PendingAnswer& answer);
    uint64_t next_name() { return names_of_ | wire::NAMED_BY_SHIM | ++names_; }
    uint64_t names() const { return names_; }  // so many have been given
    bool has_several_threads() const { return several_threads_; }

    // --- without `mutex` ---
    News news;
    // The descriptors of other connections that stay, or -1: in a forked child they are closed, too.
    std::array<std::atomic<int>, 2> others{-1, -1};
    std::atomic<uint64_t> errors{0};  // answers that told of one
    // Waits for an answer.  Several threads may wait, and one of them reads for all.
    CUresult await(PendingAnswer& answer);

    // Whether the worker is there, for who asks it nothing: false, too, while an answer is on its way.
    bool is_there();

    void abandon();  // in a forked child, since it and `others` are the parent's
    void retire();   // its slice was given back: closes it without a message

  private:
    friend class Impostor;  // tests/native/fuzz: a worker that lies
    bool share_memory(std::string& error);
    void flush_in_time();
    void note_thread(const void* thread);
    // Reads one answer, mostly the one that `mine` waits for, and says whose it is; nullptr where the
    // connection is lost.
    PendingAnswer* read_answer(PendingAnswer& mine, CUresult& result);
    bool read(void* data, size_t size);
    void forget(PendingAnswer& answer);
    void lost(const char* while_doing);  // closes it and prints the reason, once; by the thread that reads
    void lost_while_sending();
    void goodbye(const std::string& reason);

    wire::Channel channel_;
    std::string image_salt_;
    std::string endpoint_, secret_;
    uint64_t key_ = 0;
    std::vector<char> buffer_;
    std::atomic<bool> alive_{false}, parked_{true};
    std::condition_variable wake_;
    uint64_t names_ = 0, names_of_ = 0;
    uint64_t flushes_ = 0;
    const void* only_thread_ = nullptr;         // the first that made a request
    std::atomic<bool> several_threads_{false};  // the worker knows of several

    std::mutex answers_mutex_;             // guards everything below
    std::vector<PendingAnswer*> awaited_;  // by number
    bool reading_ = false;
    int sleepers_ = 0;
    std::condition_variable answered_;
};

}  // namespace gpukernel::shim
