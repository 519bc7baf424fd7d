// The vector instructions that the generator names itself, as Intel's manual, volume 2, writes them.
#pragma once

#include "simgpu/compiler/assembler.h"

namespace gpukernel::simgpu::compiler {

constexpr uint8_t kPlain = 0, k66 = 1, kF3 = 2, kF2 = 3;
constexpr Encoding kLoad{kPlain, 1, 0, 0x10}, kStore{kPlain, 1, 0, 0x11};           // vmovups
constexpr Encoding kLoadWide{k66, 1, 1, 0x10}, kStoreWide{k66, 1, 1, 0x11};         // vmovupd
constexpr Encoding kStoreFirst{kF3, 1, 0, 0x11}, kStoreFirstWide{kF2, 1, 1, 0x11};  // vmovss, vmovsd
constexpr Encoding kBroadcast{k66, 2, 0, 0x58}, kBroadcastWide{k66, 2, 1, 0x59};    // vpbroadcastd, q
constexpr Encoding kBroadcastGpr{k66, 2, 0, 0x7c}, kBroadcastGprWide{k66, 2, 1, 0x7c};
constexpr Encoding kAdd{k66, 1, 0, 0xfe}, kAddWide{k66, 1, 1, 0xd4}, kSubtractWide{k66, 1, 1, 0xfb};
constexpr Encoding kSubtract{k66, 1, 0, 0xfa};
constexpr Encoding kAnd{k66, 1, 0, 0xdb}, kOr{k66, 1, 0, 0xeb}, kXor{k66, 1, 0, 0xef};
constexpr Encoding kMove{kPlain, 1, 0, 0x10};         // vmovups between registers, under a mask
constexpr Encoding kPermuteTwo{k66, 2, 0, 0x76};      // vpermi2d
constexpr Encoding kPermuteTwoWide{k66, 2, 1, 0x76};  // vpermi2q
constexpr Encoding kPermute{k66, 2, 0, 0x36};         // vpermd
constexpr Encoding kMaskToVector{kF3, 2, 0, 0x38};    // vpmovm2d
constexpr Encoding kTernary{k66, 3, 0, 0x25};         // vpternlogd
constexpr Encoding kStoreWords{kF2, 1, 1, 0x7f};      // vmovdqu16
constexpr Encoding kLoadWords{kF2, 1, 1, 0x6f};
constexpr Encoding kShiftLeft{k66, 2, 0, 0x47}, kShiftRight{k66, 2, 0, 0x45};  // vpsllvd, vpsrlvd
constexpr Encoding kExtractQuarter{k66, 3, 0, 0x39};                           // vextracti32x4
constexpr Encoding kRightSigned{k66, 2, 0, 0x46};                              // vpsravd
constexpr Encoding kZeros{kF3, 2, 0, 0x27};                                    // vptestnmd
constexpr Encoding kAndNot{k66, 1, 0, 0xdf};                                   // vpandnd
constexpr Encoding kCompareSigned{k66, 3, 0, 0x1f};
constexpr Encoding kExtractHalf{k66, 3, 1, 0x1b},
    kInsertHalf{k66, 3, 1, 0x1a};                 // vextractf64x4, vinsertf64x4
constexpr Encoding kZeroExtend{k66, 2, 0, 0x35};  // vpmovzxdq
constexpr Encoding kNarrow{kF3, 2, 0, 0x35};      // vpmovqd
constexpr Encoding kCompareUnsigned{k66, 3, 0, 0x1e}, kCompareUnsignedWide{k66, 3, 1, 0x1e};
constexpr Encoding kTest{k66, 2, 0, 0x27}, kTestWide{k66, 2, 1, 0x27};     // vptestmd, q
constexpr Encoding kSigns{kF3, 2, 0, 0x39}, kSignsWide{kF3, 2, 1, 0x39};   // vpmovd2m, q
constexpr Encoding kWiden{kPlain, 1, 0, 0x5a}, kShorten{k66, 1, 1, 0x5a};  // vcvtps2pd, vcvtpd2ps
constexpr Encoding kRootWide{k66, 1, 1, 0x51}, kDivideWide{k66, 1, 1, 0x5e};
constexpr Encoding kRound{k66, 3, 0, 0x08};  // vrndscaleps
constexpr Encoding kCompareFloat{kPlain, 1, 0, 0xc2}, kCompareFloatWide{k66, 1, 1, 0xc2};
constexpr Encoding kBlend{k66, 2, 0, 0x64}, kBlendWide{k66, 2, 1, 0x64};  // vpblendmd, q
constexpr Encoding kGather{k66, 2, 0, 0x92}, kGatherFar{k66, 2, 0, 0x93}, kGatherFarWide{k66, 2, 1, 0x93};
constexpr Encoding kScatter{k66, 2, 0, 0xa2}, kScatterFar{k66, 2, 0, 0xa3}, kScatterFarWide{k66, 2, 1, 0xa3};
constexpr Encoding kGatherWide{k66, 2, 1, 0x92}, kScatterWide{k66, 2, 1, 0xa2};

}  // namespace gpukernel::simgpu::compiler
