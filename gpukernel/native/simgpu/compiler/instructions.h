// The vector instructions that the generator names itself, as Intel's manual, volume 2, writes them.
#pragma once

#include "simgpu/compiler/assembler.h"

namespace gpukernel::simgpu::compiler {

constexpr uint8_t kPlain = 0, k66 = 1, kF3 = 2, kF2 = 3;
constexpr Instruction kLoad{kPlain, 1, 0, 0x10}, kStore{kPlain, 1, 0, 0x11};           // vmovups
constexpr Instruction kLoadWide{k66, 1, 1, 0x10}, kStoreWide{k66, 1, 1, 0x11};         // vmovupd
constexpr Instruction kStoreFirst{kF3, 1, 0, 0x11}, kStoreFirstWide{kF2, 1, 1, 0x11};  // vmovss, vmovsd
constexpr Instruction kBroadcast{k66, 2, 0, 0x58}, kBroadcastWide{k66, 2, 1, 0x59};    // vpbroadcastd, q
constexpr Instruction kBroadcastGpr{k66, 2, 0, 0x7c}, kBroadcastGprWide{k66, 2, 1, 0x7c};
constexpr Instruction kAdd{k66, 1, 0, 0xfe}, kAddWide{k66, 1, 1, 0xd4}, kSubtractWide{k66, 1, 1, 0xfb};
constexpr Instruction kSubtract{k66, 1, 0, 0xfa};
constexpr Instruction kAnd{k66, 1, 0, 0xdb}, kXor{k66, 1, 0, 0xef};
constexpr Instruction kExtractHalf{k66, 3, 1, 0x1b},
    kInsertHalf{k66, 3, 1, 0x1a};  // vextractf64x4, vinsertf64x4
constexpr Instruction kSignExtend{k66, 2, 0, 0x25}, kZeroExtend{k66, 2, 0, 0x35};  // vpmovsxdq, vpmovzxdq
constexpr Instruction kNarrow{kF3, 2, 0, 0x35};                                    // vpmovqd
constexpr Instruction kCompareUnsigned{k66, 3, 0, 0x1e}, kCompareUnsignedWide{k66, 3, 1, 0x1e};
constexpr Instruction kTest{k66, 2, 0, 0x27}, kTestWide{k66, 2, 1, 0x27};     // vptestmd, q
constexpr Instruction kSigns{kF3, 2, 0, 0x39}, kSignsWide{kF3, 2, 1, 0x39};   // vpmovd2m, q
constexpr Instruction kWiden{kPlain, 1, 0, 0x5a}, kShorten{k66, 1, 1, 0x5a};  // vcvtps2pd, vcvtpd2ps
constexpr Instruction kRootWide{k66, 1, 1, 0x51}, kDivideWide{k66, 1, 1, 0x5e};
constexpr Instruction kRound{k66, 3, 0, 0x08};  // vrndscaleps
constexpr Instruction kMaximum{kPlain, 1, 0, 0x5f}, kMinimum{kPlain, 1, 0, 0x5d};
constexpr Instruction kCompareFloat{kPlain, 1, 0, 0xc2}, kCompareFloatWide{k66, 1, 1, 0xc2};
constexpr Instruction kBlend{k66, 2, 0, 0x64}, kBlendWide{k66, 2, 1, 0x64};  // vpblendmd, q
constexpr Instruction kGather{k66, 2, 0, 0x92}, kGatherFar{k66, 2, 0, 0x93}, kGatherFarWide{k66, 2, 1, 0x93};
constexpr Instruction kScatter{k66, 2, 0, 0xa2}, kScatterFar{k66, 2, 0, 0xa3},
    kScatterFarWide{k66, 2, 1, 0xa3};
constexpr Instruction kGatherWide{k66, 2, 1, 0x92}, kScatterWide{k66, 2, 1, 0xa2};

}  // namespace gpukernel::simgpu::compiler
