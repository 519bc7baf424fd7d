// Addresses in shared memory that are used more often than they change: what is found out about them is kept.
//
// For each of them a warp has room behind its lines: whether anything is known, and for each sixteen lanes a
// pointer to the first lane's place, where the others lie from there, and which lane stores where.  Whoever
// changes the address, and the interpreter, has it looked at again, for a block most often has the addresses
// of the one before.
#include <algorithm>
#include <cstddef>

#include "simgpu/compiler/generate/generator.h"
#include "simgpu/compiler/generate/instructions.h"

namespace gpukernel::simgpu::compiler {
namespace {

constexpr size_t kMostPlaces = kPlaceStates;
constexpr uint8_t kOrDifferent = 0xf6;  // of a ternary operation: a | (b ^ c)
constexpr double kWorth = 2;            // uses of an address for each change
constexpr double kSurelyWorth = 8;      // or so many: they are looked at again however often it changes
// How often the others are, in a launch, in the upper half of a state.
constexpr int32_t kLook = 1 << 16, kLooks = 64 * kLook;
constexpr int32_t kVector = 64;
constexpr uint32_t kStates = kPlaceStates * sizeof(uint32_t);
// Of what is known of sixteen lanes, two of which are a warp.
constexpr int32_t kNear = 8, kOneByOne = 32, kRow = 128, kLearned = 512, kOne = 1024;
// Where in a place's room something lies.
constexpr int32_t kAddresses = 0, kFromFirst = 2 * kVector, kStores = 4 * kVector, kPointers = 8 * kVector;
static_assert(kPointers + kVector == static_cast<int32_t>(kPlaceBytes));

}  // namespace

void Generator::find_places() {
    struct Use {
        double uses = 0, changes = 0;
        int64_t least = INT64_MAX, most = INT64_MIN;
    };
    std::map<uint32_t, Use> all;
    for (uint32_t n = 0; n < function_.code.size(); ++n) {
        double weight = 1;
        for (uint32_t d = 0; d < std::min(flow_.blocks[flow_.block_of[n]].depth, 6u); ++d) weight *= 8;
        const Op& op = function_.code[n];
        const Signature& s = flow_.signatures[n];
        for (const Access& a : s.writes) all[a.operand].changes += weight;
        MemoryOp m;
        if (!memory_op(s.key, m) || !is_shared_access(op, m) || is_line(s.reads[0].operand)) continue;
        Use& use = all[s.reads[0].operand];
        use.uses += weight;
        use.least = std::min(use.least, op.imm), use.most = std::max(use.most, op.imm);
    }
    std::vector<std::pair<double, uint32_t>> best;
    for (const auto& [operand, use] : all)
        if (use.uses && use.uses >= kWorth * use.changes) best.emplace_back(-use.uses, operand);
    std::sort(best.begin(), best.end());
    for (const auto& [uses, operand] : best) {
        if (places_.size() == kMostPlaces) break;
        const Use& use = all[operand];
        places_.push_back({operand, static_cast<int32_t>(use.least), static_cast<int32_t>(use.most),
                           use.uses < kSurelyWorth * use.changes});
    }
    image_.layout.places = places_.empty() ? 0 : image_.layout.lines + image_.layout.bytes_of_lines;
    if (!places_.empty())
        image_.layout.bytes_of_lines += kStates + static_cast<uint32_t>(places_.size() * kPlaceBytes);
}

int Generator::place_of(uint32_t operand) const {
    for (size_t n = 0; n < places_.size(); ++n)
        if (places_[n].operand == operand) return static_cast<int>(n);
    return -1;
}
Memory Generator::place_state(int place) const {
    return {rbx, static_cast<int32_t>(image_.layout.places) + 4 * place, -1, 4};
}
Memory Generator::place_room(int place, int32_t at) const {
    return {rbx, static_cast<int32_t>(image_.layout.places + kStates +
                                      kPlaceBytes * static_cast<uint32_t>(place)) +
                     at};
}
void Generator::forget_place(uint32_t operand) {
    const int place = place_of(operand);
    if (place < 0) return;
    a_.alu(Assembler::bit_and, place_state(place), ~kPlaceIsKnownNow);
    for (int n = 0; n < 4; ++n) drop_pointer(place, n);
}
// Each address is as much more or less than it was, or the same: then so are the pointers, and all else that
// is known goes from the first lane's place.
void Generator::recognise_place(int place, Label& elsewhere, Label& otherwise) {
    const Place& p = places_[static_cast<size_t>(place)];
    const Access address = s_->reads[0];
    a_.test(rdx, kLearned);
    a_.jump(equal, otherwise);
    const Memory by = field(offsetof(Context, first));
    int index[2];
    for (int unit = 0; unit < 2; ++unit) {
        index[unit] = half_of_addresses(address, unit);
        a_.vector(kSubtract, 3, index[unit], place_room(place, kAddresses + kVector * unit));
        if (unit == 0) {
            a_.vector(kStoreFirst, 3, 0, by);
            a_.vector(kBroadcast, 5, 0, 3);
        }
        a_.vector(kTernary, 0, 3, 5);
        a_.byte(kOrDifferent);
        a_.vector(kTest, 5 + unit, 0, 0);
    }
    a_.mask(Assembler::mask_or, 5, 5, 6);
    a_.mask_to(rax, 5);
    a_.test(rax, rax, false);
    a_.jump(not_equal, otherwise);
    Label there;
    a_.load_sized(rax, by, 4, true, true);
    a_.test(rax, rax, false);
    a_.jump(equal, there);
    check_room(p.least, p.most, elsewhere);
    for (int unit = 0; unit < 2; ++unit) {
        const int from = from_least(index[unit], p.least);
        a_.vector(kCompareUnsigned, 5 + unit, from, 5);
        a_.byte(5);
    }
    a_.mask(Assembler::mask_or, 5, 5, 6);
    a_.mask_to(rcx, 5);
    a_.test(rcx, rcx, false);
    a_.jump(not_equal, elsewhere);
    for (int unit = 0; unit < 2; ++unit)
        a_.vector(kStore, index[unit], 0, place_room(place, kAddresses + kVector * unit));
    for (int n = 0; n < 4; ++n) a_.alu(Assembler::add, place_room(place, kPointers + 8 * n), rax, true);
    a_.bind(there);
    say_known(place);
}

// It is known, and what can be done at once.
void Generator::say_known(int place) {
    a_.alu(Assembler::bit_or, place_state(place), kPlaceIsKnown | kLearned);
    a_.load(rdx, place_state(place), false);
    for (const auto& [both, at_once] :
         {std::pair{kNear * 3, kLoadsAtOnce}, std::pair{kRow * 3, kStoresAtOnce}}) {
        Label no;
        a_.move(rcx, rdx, false);
        a_.alu(Assembler::bit_and, rcx, both, false);
        a_.alu(Assembler::compare, rcx, both, false);
        a_.jump(not_equal, no);
        a_.alu(Assembler::bit_or, place_state(place), at_once);
        a_.bind(no);
    }
}

// All lanes run: what is known from now on goes to its room.
void Generator::learn_place(int place, Label& elsewhere) {
    const Place& p = places_[static_cast<size_t>(place)];
    a_.alu(Assembler::compare, r12, -1, false);
    a_.jump(not_equal, elsewhere);
    int index[2];
    check_halves(s_->reads[0], p.least, p.most, false, index, elsewhere);
    if (p.counts) {
        a_.load(rdx, place_state(place), false);
        a_.alu(Assembler::compare, rdx, kLooks, false);
        a_.jump(above_equal, elsewhere);
        a_.alu(Assembler::bit_and, rdx, -kLook, false);
        a_.alu(Assembler::add, rdx, kLook, false);
        a_.store(place_state(place), rdx, false);
    } else {
        a_.store(place_state(place), 0, false);
    }
    a_.load(rax, warp_field(offsetof(Warp, shared)), true);
    const auto lane = table_of([](uint32_t n) { return n % kHalfLanes; }, 0);
    for (int unit = 0; unit < 2; ++unit) {
        Label next;
        const auto room = [&](int32_t at) { return place_room(place, at); };
        const Memory first = field(offsetof(Context, first));
        a_.vector(kStore, index[unit], 0, room(kAddresses + kVector * unit));
        a_.vector(kStoreFirst, index[unit], 0, first);
        a_.vector(kBroadcast, 4, 0, index[unit]);
        a_.vector(kSubtract, 4, index[unit], 4);
        a_.load(rcx, first, false);
        a_.alu(Assembler::add, rcx, rax, true);
        const Memory pointer = room(kPointers + 16 * unit), from_first = room(kFromFirst + kVector * unit);
        a_.store(pointer, rcx, true);
        a_.vector(kShiftRight, 0, 4, every(2, 4));
        a_.vector(kStore, 0, 0, from_first);
        const auto all_or = [&](int k, Label& otherwise) {
            a_.mask_to(rdx, k);
            a_.alu(Assembler::compare, rdx, kAllOfHalf, false);
            a_.jump(not_equal, otherwise);
        };
        const auto same_or = [&](int one, int other, Label& otherwise) {
            a_.vector(kCompareUnsigned, 6, one, other);
            a_.byte(0);
            all_or(6, otherwise);
        };
        a_.vector(kCompareUnsigned, 6, 4, every(kWindow, 4));
        a_.byte(1);
        all_or(6, next);
        if (a_.is_narrow()) {  // which picks out of two vectors with a dozen instructions, and knows better
                               // ways
            Label several;
            a_.vector(kTest, 6, 4, 4);
            a_.mask_to(rdx, 6);
            a_.test(rdx, rdx, false);
            a_.jump(not_equal, several);
            a_.alu(Assembler::bit_or, place_state(place), kOne << unit);
            a_.bind(several);
        }
        // Which lane stores at each of 32 places; -1: none.
        const Memory stores = room(kStores + 2 * kVector * unit),
                     more = room(kStores + 2 * kVector * unit + kVector);
        a_.vector(kTernary, 3, 3, 3);
        a_.byte(0xff);
        a_.vector(kStore, 3, 0, stores);
        a_.vector(kStore, 3, 0, more);
        a_.vector(kLoad, 3, 0, lane);
        a_.place(rcx, stores);
        a_.vector(kScatter, 3, 0, Memory{rcx, 0, 4, 4}, 6);
        a_.vector(kLoad, 4, 0, stores);
        a_.vector(kLoad, 5, 0, more);
        // The second vector ends where the last lane is: one that goes on would wait for, or keep waiting,
        // what another warp does there.  It begins so many places behind the first.
        a_.vector(kSigns, 5, 0, 5);
        a_.vector(kSigns, 6, 0, 4);
        a_.mask_unpack(5, 5, 6, true);
        a_.mask_to(rdx, 5);
        a_.complement(rdx);
        a_.leading_zeros(rdx, rdx);
        a_.immediate(rcx, kHalfLanes);
        a_.alu(Assembler::subtract, rcx, rdx, false);
        a_.immediate(rdx, 0);
        a_.move_if(less, rcx, rdx, false);
        a_.shift_left(rcx, 2, true);
        a_.load(rdx, pointer, true);
        a_.alu(Assembler::add, rdx, rcx, true);
        a_.store(room(kPointers + 16 * unit + 8), rdx, true);
        // No two at one place?  Each at the place with its number?
        Label twice;
        a_.vector(kPermuteTwo, 0, 4, 5);
        same_or(0, 3, twice);
        a_.alu(Assembler::bit_or, place_state(place), kOneByOne << unit);
        a_.vector(kLoad, 0, 0, from_first);
        same_or(0, 3, twice);
        a_.alu(Assembler::bit_or, place_state(place), kRow << unit);
        a_.bind(twice);
        a_.place(rdx, stores);
        a_.alu(Assembler::add, rdx, rcx, true);
        a_.vector(kLoad, 5, 0, Memory{rdx});
        a_.vector(kStore, 5, 0, more);
        a_.immediate(rdx, kHalfLanes);
        a_.shift_right(rcx, 2, true);
        a_.alu(Assembler::subtract, rdx, rcx, false);
        a_.vector(kBroadcastGpr, 1, 0, static_cast<int>(rdx));
        a_.vector(kLoad, 0, 0, from_first);
        a_.vector(kCompareUnsigned, 6, 0, every(kHalfLanes, 4));
        a_.byte(5);
        a_.vector(kAdd, 0, 0, 1, 6);
        a_.vector(kStore, 0, 0, from_first);
        a_.alu(Assembler::bit_or, place_state(place), kNear << unit);
        a_.bind(next);
    }
    say_known(place);
}

// A load or store through such an address.  Most often it is known, and both vectors are near or rows.
void Generator::known_access(const MemoryOp& m, int place, const std::shared_ptr<Slow>& slow) {
    const Access data = m.loads ? s_->writes[0] : s_->reads[1];
    const auto imm = static_cast<int32_t>(op_->imm);
    const auto known = std::make_shared<Label>();
    need_masks(false);
    Label& otherwise = aside(
        [this, m, place, known, slow] {
            Label is_known, learn, each, done;
            a_.load(rdx, place_state(place), false);
            a_.test(rdx, kPlaceIsKnown);
            a_.jump(not_equal, is_known);
            Set address = flow_.nothing();
            insert(address, flow_.value(s_->reads[0].operand));
            if (!contains(changed_, flow_.value(s_->reads[0].operand))) reload(address);
            recognise_place(place, each, learn);
            a_.jump(*known);
            a_.bind(learn);
            learn_place(place, each);
            a_.jump(*known);
            a_.bind(each);
            masks_ = Masks::unknown;
            shared_each(m, *slow);
            a_.jump(done);
            a_.bind(is_known);
            masks_ = Masks::unknown;
            need_masks(false);
            for (int unit = 0; unit < 2; ++unit) known_half(m, place, unit);
            a_.bind(done);
            load_pointers(slow->kept_behind);
            masks_ = Masks::unknown;
        },
        slow);
    a_.bind(*known);
    a_.test(place_state(place), m.loads ? kLoadsAtOnce : kStoresAtOnce);
    a_.jump(equal, otherwise);
    for (int unit = 0; unit < 2; ++unit) {
        const Gpr first = pointer(place, 2 * unit, rcx);
        if (m.loads && a_.is_narrow()) {
            load_as_it_lies(place, unit, first, imm, target(data, unit));
            finish(data, unit, target(data, unit));
        } else if (m.loads) {
            load_near(place, unit, first, pointer(place, 2 * unit + 1, rax), imm, target(data, unit));
            finish(data, unit, target(data, unit));
        } else {
            a_.vector(kStore, in_register(data, unit, 3), 0, Memory{first, imm}, unit ? 2 : 1);
        }
    }
}

// The n-th of the four, in a register that has it or has nothing better; else in the one that is named.
Gpr Generator::pointer(int place, int n, Gpr otherwise) {
    const uint32_t operand = pointer_operand(place, n);
    if (const int reg = kept(operand); reg >= 0) return static_cast<Gpr>(reg);
    const auto free = [](const Keeping& k) { return k.operand == kNoGuard || is_pointer(k.operand); };
    // Those that have been there for longest make way.
    size_t at = next_kept_;
    for (size_t tries = 0; tries < kept_.size() && !free(kept_[at]); ++tries) at = (at + 1) % kept_.size();
    const bool stays = free(kept_[at]);
    const Gpr to = stays ? kKeeping[at] : otherwise;
    load_pointer(to, operand);
    if (stays) kept_[at] = {operand, false}, next_kept_ = (at + 1) % kept_.size();
    return to;
}
void Generator::drop_pointer(int place, int n) {
    if (Keeping* k = keeping(pointer_operand(place, n))) *k = {};
}
void Generator::load_pointers(const Kept& kept) {
    for (size_t n = 0; n < kept.size(); ++n)
        if (is_pointer(kept[n].operand)) load_pointer(kKeeping[n], kept[n].operand);
}
void Generator::load_pointer(Gpr to, uint32_t operand) {
    const auto n = static_cast<int>((operand - kFirstPointer) / 2);
    a_.load(to, place_room(n / 4, kPointers + 8 * (n % 4)), true);
}

// From the first lane's place on, and from where the last lanes are.
void Generator::load_near(int place, int unit, Gpr first, Gpr last, int32_t imm, int to) {
    a_.vector(kLoad, to, 0, place_room(place, kFromFirst + kVector * unit));
    a_.vector(kLoad, 5, 0, Memory{first, imm});
    a_.vector(kPermuteTwo, to, 5, Memory{last, imm});
}

// The same, by one vector where the lanes are a row, and by one number where they are at one place.
void Generator::load_as_it_lies(int place, int unit, Gpr first, int32_t imm, int to) {
    Label one, apart, done;
    a_.test(place_state(place), kOne << unit);
    a_.jump(not_equal, one);
    a_.test(place_state(place), kRow << unit);
    a_.jump(equal, apart);
    a_.vector(kLoad, to, 0, Memory{first, imm});
    a_.jump(done);
    a_.bind(one);
    a_.vector(kBroadcast, to, 0, Memory{first, imm, -1, 4});
    a_.jump(done);
    a_.bind(apart);
    a_.load(rax, place_room(place, kPointers + 16 * unit + 8), true);
    load_near(place, unit, first, rax, imm, to);
    a_.bind(done);
}

// The same for sixteen lanes wherever they are.  rdx has the state.
void Generator::known_half(const MemoryOp& m, int place, int unit) {
    const Access data = m.loads ? s_->writes[0] : s_->reads[1];
    const auto imm = static_cast<int32_t>(op_->imm);
    const int k = unit ? 2 : 1, from = m.loads ? 0 : in_register(data, unit, 3);
    Label apart, each, done;
    a_.load(rcx, place_room(place, kPointers + 16 * unit), true);
    a_.test(rdx, (m.loads ? kNear : kRow) << unit);
    a_.jump(equal, apart);
    if (m.loads) {
        a_.load(rax, place_room(place, kPointers + 16 * unit + 8), true);
        load_near(place, unit, rcx, rax, imm, 0);
    } else {
        a_.vector(kStore, from, 0, Memory{rcx, imm}, k);
    }
    a_.jump(done);
    a_.bind(apart);
    if (!m.loads) {
        a_.test(rdx, kOneByOne << unit);
        a_.jump(equal, each);
        a_.load(rax, place_room(place, kPointers + 16 * unit + 8), true);
        a_.vector(kMaskToVector, 0, 0, k);
        for (int half = 0; half < 2; ++half) {
            a_.vector(kLoad, 1, 0, place_room(place, kStores + kVector * (2 * unit + half)));
            a_.vector(kPermute, 4, 1, from);
            a_.vector(kPermute, 2, 1, 0);
            a_.vector(kAndNot, 2, 1, 2);
            a_.vector(kSigns, 6, 0, 2);
            a_.vector(kStore, 4, 0, Memory{half ? rax : rcx, imm}, 6);
        }
        a_.jump(done);
        a_.bind(each);
    }
    a_.load(rax, warp_field(offsetof(Warp, shared)), true);
    a_.vector(kLoad, 1, 0, place_room(place, kAddresses + kVector * unit));
    a_.mask(Assembler::mask_and, 5, k, k);
    const Memory place_of_each{rax, imm, 1, 4};
    m.loads ? a_.vector(kGather, 0, 0, place_of_each, 5) : a_.vector(kScatter, from, 0, place_of_each, 5);
    a_.bind(done);
    if (m.loads) finish(data, unit, 0);
}

}  // namespace gpukernel::simgpu::compiler
