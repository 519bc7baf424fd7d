// The instructions of AVX2 that the back end names itself, as Intel's manual, volume 2, writes them.
#pragma once

#include "simgpu/compiler/assembler.h"

namespace gpukernel::simgpu::compiler::vex {

constexpr uint8_t none = 0, p66 = 1, pF3 = 2, pF2 = 3;
constexpr Encoding load{none, 1, 0, 0x10}, store{none, 1, 0, 0x11};  // vmovups
constexpr Encoding copy{none, 1, 0, 0x28};                           // vmovaps
constexpr Encoding store_float{pF3, 1, 0, 0x11}, store_double{pF2, 1, 0, 0x11};
constexpr Encoding from_gpr{p66, 1, 0, 0x6e}, from_gpr_wide{p66, 1, 1, 0x6e};  // vmovd, vmovq
constexpr Encoding to_gpr{p66, 1, 0, 0x7e}, to_gpr_wide{p66, 1, 1, 0x7e};
constexpr Encoding broadcast{p66, 2, 0, 0x58}, broadcast_wide{p66, 2, 0, 0x59};
constexpr Encoding broadcast_word{p66, 2, 0, 0x79};
constexpr Encoding bit_and{p66, 1, 0, 0xdb}, bit_and_not{p66, 1, 0, 0xdf}, bit_or{p66, 1, 0, 0xeb},
    bit_xor{p66, 1, 0, 0xef};
constexpr Encoding equal{p66, 1, 0, 0x76}, equal_words{p66, 1, 0, 0x75}, equal_wide{p66, 2, 0, 0x29};
constexpr Encoding greater{p66, 1, 0, 0x66}, greater_wide{p66, 2, 0, 0x37};
constexpr Encoding least_unsigned{p66, 2, 0, 0x3b}, most_unsigned{p66, 2, 0, 0x3f};
constexpr Encoding blend{p66, 3, 0, 0x4a}, blend_wide{p66, 3, 0, 0x4b}, blend_bytes{p66, 3, 0, 0x4c};
constexpr Encoding blend_known{p66, 3, 0, 0x02};                                       // vpblendd
constexpr Encoding masked_store{p66, 2, 0, 0x8e}, masked_store_wide{p66, 2, 1, 0x8e};  // vpmaskmovd, q
constexpr Encoding signs{none, 1, 0, 0x50}, signs_of_bytes{p66, 1, 0, 0xd7};           // vmovmskps, vpmovmskb
constexpr Encoding pack_signed{p66, 1, 0, 0x6b}, pack_signed_words{p66, 1, 0, 0x63};
constexpr Encoding pack{p66, 2, 0, 0x2b}, pack_words{p66, 1, 0, 0x67};       // vpackusdw, vpackuswb
constexpr Encoding shuffle{p66, 1, 0, 0x70};                                 // vpshufd
constexpr Encoding shuffle_two{none, 1, 0, 0xc6};                            // vshufps
constexpr Encoding permute_wide{p66, 3, 1, 0x00}, permute{p66, 2, 0, 0x36};  // vpermq, vpermd
constexpr Encoding extract{p66, 3, 0, 0x39}, insert{p66, 3, 0, 0x38};        // vextracti128, vinserti128
constexpr Encoding shift_group{p66, 1, 0, 0x72}, shift_group_wide{p66, 1, 0, 0x73};
constexpr Encoding multiply_low{p66, 1, 0, 0xf4}, add{p66, 1, 0, 0xfe}, add_wide{p66, 1, 0, 0xd4};
constexpr Encoding subtract{p66, 1, 0, 0xfa}, subtract_wide{p66, 1, 0, 0xfb};
constexpr Encoding shift_right_wide{p66, 2, 1, 0x45};  // vpsrlvq
constexpr Encoding gather{p66, 2, 0, 0x90}, gather_wide{p66, 2, 1, 0x90}, gather_far{p66, 2, 0, 0x91},
    gather_far_wide{p66, 2, 1, 0x91};
constexpr Encoding compare_float{none, 1, 0, 0xc2}, compare_double{p66, 1, 0, 0xc2};
constexpr Encoding add_float{none, 1, 0, 0x58}, subtract_float{none, 1, 0, 0x5c},
    multiply_float{none, 1, 0, 0x59};
constexpr Encoding add_double{p66, 1, 0, 0x58}, subtract_double{p66, 1, 0, 0x5c};
constexpr Encoding float_of_int{none, 1, 0, 0x5b}, int_of_float{pF3, 1, 0, 0x5b};
constexpr Encoding double_of_int{pF3, 1, 0, 0xe6};
constexpr Encoding round_double{p66, 3, 0, 0x09};

}  // namespace gpukernel::simgpu::compiler::vex
