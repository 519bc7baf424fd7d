// Answers about kernels that cannot change before the program changes something: they are asked for once.
//
// Frameworks ask for a kernel's occupancy before each launch, for many sizes of a block, from the largest
// down, and for all of its attributes one by one: an answer brings those for other values of one parameter.
// XLA sets the shared memory of some kernels before each launch, to the same value.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>

#include "calls.h"

namespace gpukernel::shim {

class Connection;

struct Question {
    uint16_t call;
    std::array<uint64_t, 4> words;
    auto operator<=>(const Question&) const = default;
};

// Of one connection, under its mutex.
struct Memo {
    static constexpr size_t MOST = 1 << 15;  // answers that are kept
    std::map<Question, uint64_t> answers;
    uint64_t changed = 0;  // the newest request that may change them
    struct Setting {
        uint64_t request;  // the newest that sets it
        std::optional<int> value;
    };
    std::map<Question, Setting> settings;  // what the program has set, kernels' attributes, and set again
};

std::optional<uint64_t> recall(Connection& connection, const Question& question);
// An answer to a request, unless what a later one does may change it.
void remember(Connection& connection, uint64_t request, const Question& question, uint64_t answer);
// What came with an answer: other values of the question's word `varies`, and their answers.
class Request;
void remember_others(Connection& connection, Question question, size_t varies, Request& request);
// Whether a call may change such answers.
extern const std::array<bool, static_cast<size_t>(wire::DriverCall::end)> CHANGING;
inline bool changes_kernels(uint16_t call) { return call < CHANGING.size() && CHANGING[call]; }

}  // namespace gpukernel::shim
