// What is wrong with an operand of Hopper's own instructions, for people.
#include "simgpu/exec/block.h"

namespace gpukernel::simgpu {

void not_one_descriptor(const Warp& warp, const Op& op, int lane, const WarpgroupPlan& plan) {
    throw Fault{Status::illegal_barrier,
                "Another descriptor or predicate than the first thread of the warp has, in " + plan.text +
                    " " + place(warp, lane, op.line)};
}

void not_a_tensor_map(const Warp& warp, const Op& op, int lane, const char* why, bool unsupported) {
    throw Fault{unsupported ? Status::unsupported : Status::illegal_address,
                std::string("A tensor map that does not fit its instruction: ") + why + ", " +
                    place(warp, lane, op.line)};
}

}  // namespace gpukernel::simgpu
