#include "libraries/nccl/clique.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "libraries/nccl/reduction.h"

namespace gpukernel::libraries::nccl {

namespace {
struct Side {  // how a rank divides
    int color, key;
};
Side side_of(const std::vector<char>& given) {
    Side side;
    std::memcpy(&side, given.data(), sizeof side);
    return side;
}
}  // namespace

size_t Question::given_by(int rank, size_t ranks) const {
    switch (kind) {
        case Kind::REDUCE_SCATTER:
        case Kind::ALL_TO_ALL:
            return ranks;
        case Kind::BROADCAST:
            return rank == root;
        case Kind::SCATTER:
            return rank == root ? ranks : 0;
        default:
            return 1;
    }
}
size_t Question::got_by(int rank, size_t ranks) const {
    switch (kind) {
        case Kind::REDUCE:
            return rank == root;
        case Kind::ALL_GATHER:
        case Kind::ALL_TO_ALL:
            return ranks;
        case Kind::GATHER:
            return rank == root ? ranks : 0;
        default:
            return 1;
    }
}

std::string Clique::join(int rank, int device) {
    const std::lock_guard lock(mutex_);
    int& own = devices_[static_cast<size_t>(rank)];
    if (own >= 0) return "rank " + std::to_string(rank) + " is there already";
    if (std::find(devices_.begin(), devices_.end(), device) != devices_.end())
        return "two ranks cannot be on one device, and another is on device " + std::to_string(device);
    own = device;
    return {};
}
bool Clique::complete() const {
    const std::lock_guard lock(mutex_);
    return std::find(devices_.begin(), devices_.end(), -1) == devices_.end();
}

uint64_t Clique::give(int rank, const Question& question, std::vector<char> given) {
    const std::lock_guard lock(mutex_);
    const uint64_t number = next_[static_cast<size_t>(rank)]++;
    std::shared_ptr<Meeting>& meeting = meetings_[number];
    if (!meeting) {
        meeting = std::make_shared<Meeting>(Meeting{question, {}, 0, 0, {}, {}});
        meeting->given.resize(ranks_);
    } else if (meeting->question != question && failure_.empty()) {
        failure_ =
            "the ranks' calls differ: of the same number are collectives of another kind, count, type, "
            "operation or root";
    }
    meeting->given[static_cast<size_t>(rank)] = std::move(given);
    if (++meeting->came == ranks_ && failure_.empty()) begin(*meeting);
    changed_.notify_all();
    return number;
}

void Clique::begin(Meeting& meeting) const {
    const Question& asked = meeting.question;
    if (asked.kind == Kind::ALL_REDUCE || asked.kind == Kind::REDUCE)
        meeting.reduced = reduced(meeting.given, asked.count, asked.type, asked.operation);
    if (asked.kind == Kind::REDUCE_SCATTER)
        meeting.reduced = reduced(meeting.given, asked.count * ranks_, asked.type, asked.operation);
    if (asked.kind != Kind::SPLIT) return;
    std::map<int, size_t> sizes;
    for (const auto& given : meeting.given)
        if (const Side side = side_of(given); side.color >= 0) ++sizes[side.color];
    for (const auto& [color, size] : sizes) meeting.parts[color] = std::make_shared<Clique>(size);
}

std::shared_ptr<Clique::Meeting> Clique::await(uint64_t number, std::string& sentence) {
    std::unique_lock lock(mutex_);
    const std::shared_ptr<Meeting> meeting = meetings_[number];
    changed_.wait(lock, [&] { return meeting->came == ranks_ || !failure_.empty(); });
    if (++meeting->left == ranks_) meetings_.erase(number);
    sentence = failure_;
    return sentence.empty() ? meeting : nullptr;
}

std::string Clique::get(int rank, uint64_t number, std::vector<char>& got) {
    std::string sentence;
    const std::shared_ptr<Meeting> meeting = await(number, sentence);
    if (!meeting) return sentence;
    // Complete, a meeting changes no more.
    const Question& asked = meeting->question;
    const size_t bytes = asked.count * BYTES[asked.type], own = static_cast<size_t>(rank) * bytes;
    const auto part = [&](const std::vector<char>& of, size_t at) {
        got.insert(got.end(), of.data() + at, of.data() + at + bytes);
    };
    got.clear();
    if (!asked.got_by(rank, ranks_)) return {};
    switch (asked.kind) {
        case Kind::ALL_REDUCE:
        case Kind::REDUCE:
            part(meeting->reduced, 0);
            break;
        case Kind::REDUCE_SCATTER:
            part(meeting->reduced, own);
            break;
        case Kind::BROADCAST:
            part(meeting->given[static_cast<size_t>(asked.root)], 0);
            break;
        case Kind::SCATTER:
            part(meeting->given[static_cast<size_t>(asked.root)], own);
            break;
        case Kind::ALL_GATHER:
        case Kind::GATHER:
            for (const auto& given : meeting->given) part(given, 0);
            break;
        default:  // ALL_TO_ALL
            for (const auto& given : meeting->given) part(given, own);
    }
    return {};
}

std::string Clique::get(int rank, uint64_t number, std::shared_ptr<Clique>& part, int& rank_there) {
    std::string sentence;
    const std::shared_ptr<Meeting> meeting = await(number, sentence);
    if (!meeting) return sentence;
    const Side own = side_of(meeting->given[static_cast<size_t>(rank)]);
    part = nullptr, rank_there = 0;
    if (own.color < 0) return {};
    part = meeting->parts[own.color];
    for (size_t i = 0; i < ranks_; ++i) {  // by key, and then by rank
        const Side side = side_of(meeting->given[i]);
        const bool before = side.key < own.key || (side.key == own.key && i < static_cast<size_t>(rank));
        if (side.color == own.color && before) ++rank_there;
    }
    return {};
}

void Clique::send(int from, int to, std::vector<char> sent) {
    const std::lock_guard lock(mutex_);
    sent_[{from, to}].push_back(std::move(sent));
    changed_.notify_all();
}
std::string Clique::receive(int from, int to, size_t bytes, std::vector<char>& received) {
    std::unique_lock lock(mutex_);
    auto& waiting = sent_[{from, to}];
    changed_.wait(lock, [&] { return !waiting.empty() || !failure_.empty(); });
    if (!failure_.empty()) return failure_;
    received = std::move(waiting.front());
    waiting.pop_front();
    if (received.size() == bytes) return {};
    return std::to_string(received.size()) + " bytes are sent, and " + std::to_string(bytes) + " received";
}

void Clique::fail(const std::string& sentence) {
    const std::lock_guard lock(mutex_);
    if (failure_.empty()) failure_ = sentence;
    changed_.notify_all();
}
bool Clique::failed() const {
    const std::lock_guard lock(mutex_);
    return !failure_.empty();
}

}  // namespace gpukernel::libraries::nccl
