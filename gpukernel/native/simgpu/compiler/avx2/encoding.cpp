// VEX prefixes (Intel's manual, volume 2, "VEX prefix").
#include "simgpu/compiler/avx2/avx2.h"

namespace gpukernel::simgpu::compiler {

// The four bits of `first` stand inverted, as do the fifth ones of the others.
void Avx2::prefix(Encoding i, int to, int first, bool index, bool base, bool large) {
    const int rest = (~first & 15) << 3 | large << 2 | i.prefix;
    if (i.map == 1 && !i.wide && !index && !base) {
        a_.byte(0xc5);
        return a_.byte(static_cast<uint8_t>((~to >> 3 & 1) << 7 | rest));
    }
    a_.byte(0xc4);
    a_.byte(static_cast<uint8_t>((~to >> 3 & 1) << 7 | !index << 6 | !base << 5 | i.map));
    a_.byte(static_cast<uint8_t>(i.wide << 7 | rest));
}
void Avx2::op(Encoding i, int to, int first, int second, bool large) {
    prefix(i, to, first, false, second >> 3 & 1, large);
    a_.byte(i.opcode), a_.byte(static_cast<uint8_t>(0xc0 | (to & 7) << 3 | (second & 7)));
}
void Avx2::op(Encoding i, int to, int first, Memory m, bool large) {
    const int index = m.scaled >= 0 ? m.scaled : m.index;
    prefix(i, to, first, index >= 0 && index >> 3 & 1, m.base >> 3 & 1, large);
    a_.byte(i.opcode);
    a_.operand(to, m, 1);
}
void Avx2::op(Encoding i, int to, int first, const Source& s, bool large) {
    s.reg >= 0 ? op(i, to, first, s.reg, large) : op(i, to, first, s.at, large);
}
void Avx2::op_with(Encoding i, int to, int first, int second, uint8_t imm, bool large) {
    op(i, to, first, second, large);
    a_.byte(imm);
}
void Avx2::op_with(Encoding i, int to, int first, const Source& s, uint8_t imm, bool large) {
    op(i, to, first, s, large);
    a_.byte(imm);
}

}  // namespace gpukernel::simgpu::compiler
