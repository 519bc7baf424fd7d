// A clique: the ranks of one communicator, each on a device of its own, in one process.
//
// The devices of a lease do not see each other, so what ranks give each other passes through the program:
// each reads its part from its device, and waits for the others' where it gets something.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace gpukernel::libraries::nccl {

enum class Kind {
    ALL_REDUCE,
    REDUCE,
    REDUCE_SCATTER,
    BROADCAST,
    ALL_GATHER,
    ALL_TO_ALL,
    GATHER,
    SCATTER,
    SPLIT
};

// What all ranks must ask for alike.
struct Question {
    Kind kind;
    size_t count;  // elements
    int type, operation, root;
    bool operator==(const Question&) const = default;
    // Whether the rank gives something, and gets something; and of how many ranks.
    size_t given_by(int rank, size_t ranks) const;
    size_t got_by(int rank, size_t ranks) const;
};

class Clique {
  public:
    explicit Clique(size_t ranks) : ranks_(ranks), devices_(ranks, -1), next_(ranks) {}
    size_t size() const { return ranks_; }

    // Adds a rank on a device; an empty sentence, or why it cannot be.
    std::string join(int rank, int device);
    bool complete() const;

    // A rank comes to its next collective with what it gives; returns that collective's number.
    uint64_t give(int rank, const Question& question, std::vector<char> given);
    // Waits for the others, and returns an empty sentence, and in `got` what the rank gets.
    std::string get(int rank, uint64_t number, std::vector<char>& got);
    // The same of a split, whose rank gives its color and its key; nullptr for a rank without a color.
    std::string get(int rank, uint64_t number, std::shared_ptr<Clique>& part, int& rank_there);

    // One rank to another; what is sent waits for who receives it.
    void send(int from, int to, std::vector<char> sent);
    std::string receive(int from, int to, size_t bytes, std::vector<char>& received);

    void fail(const std::string& sentence);  // everybody who waits, and who will
    bool failed() const;

  private:
    struct Meeting {
        Question question;
        std::vector<std::vector<char>> given;
        size_t came = 0, left = 0;
        std::vector<char> reduced;
        std::map<int, std::shared_ptr<Clique>> parts;  // of a split, by color
    };
    void begin(Meeting& meeting) const;  // once everybody has come
    std::shared_ptr<Meeting> await(uint64_t number, std::string& sentence);

    const size_t ranks_;
    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<int> devices_;    // by rank; -1: it is not there yet
    std::vector<uint64_t> next_;  // number of a rank's next collective
    std::map<uint64_t, std::shared_ptr<Meeting>> meetings_;
    std::map<std::pair<int, int>, std::deque<std::vector<char>>> sent_;
    std::string failure_;
};

}  // namespace gpukernel::libraries::nccl
