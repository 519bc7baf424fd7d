// Loads, stores, atomics and addresses (PTX ISA 9.7.9, 9.7.13).
#include "simgpu/ptx/check/forms.h"

namespace gpukernel::simgpu::ptx {

namespace {

constexpr Form kForms[] = {
    {"ld",
     "weak? global|local|shared|shared::cta|shared::cluster|const? ca|cg|cs|lu|cv? v2|v4|v8? T:$any|b128",
     "=~T* @"},
    {"ld", "weak? global? ca|cg|cs|lu|cv? $l2size? L2::cache_hint? v2|v4|v8? T:$any|b128", "=~T* @ b64?"},
    {"ld", "weak? param|param::entry|param::func ca|cg|cs|lu|cv? v2|v4? T:$any|b128", "=~T* @"},
    {"ld", "weak? global? $l1? $l2? $l2size? L2::cache_hint? v2|v4|v8? T:$any|b128", "=~T* @ b64?"},
    {"ld", "weak? global nc ca|cg|cs? $l1? $l2? $l2size? L2::cache_hint? v2|v4|v8? T:$any|b128",
     "=~T* @ b64?"},
    {"ld", "volatile global|shared|shared::cta|shared::cluster? $l2size? v2|v4|v8? T:$any|b128", "=~T* @"},
    {"ld", "relaxed|acquire $scope $atomspace? $l1? $l2? $l2size? L2::cache_hint? v2|v4|v8? T:$any|b128",
     "=~T* @ b64?"},
    {"ld", "mmio relaxed sys global? T:$any", "=~T @"},
    {"ldu", "global? v2|v4? T:$any", "=~T* @"},
    {"st", "weak? global|local|shared|shared::cta|shared::cluster? wb|cg|cs|wt? v2|v4|v8? T:$any|b128",
     "@ ~T*"},
    {"st", "weak? global? wb|cg|cs|wt? L2::cache_hint? v2|v4|v8? T:$any|b128", "@ ~T* b64?"},
    {"st", "weak? param|param::func wb|cg|cs|wt? v2|v4? T:$any|b128", "@ ~T*"},
    {"st", "weak? global? $l1? $l2? L2::cache_hint? v2|v4|v8? T:$any|b128", "@ ~T* b64?"},
    {"st", "volatile global|shared|shared::cta|shared::cluster? v2|v4|v8? T:$any|b128", "@ ~T*"},
    {"st", "relaxed|release $scope $atomspace? $l1? $l2? L2::cache_hint? v2|v4|v8? T:$any|b128",
     "@ ~T* b64?"},
    {"st", "mmio relaxed sys global? T:$any", "@ ~T"},
    {"st",
     "async weak? shared::cluster? mbarrier::complete_tx::bytes v2|v4? T:b32|u32|s32|f32|b64|u64|s64|f64",
     "@ T* @"},
    {"prefetch", "global|local? L1|L2", "@"},
    {"prefetch", "global? L2::evict_last|L2::evict_normal", "@"},
    {"prefetch", "const|param? tensormap", "@"},
    {"prefetchu", "L1", "@"},
    {"applypriority", "global? L2::evict_normal", "@ i"},
    {"discard", "global? L2", "@ i"},
    {"createpolicy",
     "fractional L2::evict_last|L2::evict_normal|L2::evict_first|L2::evict_unchanged "
     "L2::evict_first|L2::evict_unchanged? b64",
     "=b64 f32?"},
    {"createpolicy",
     "range global? L2::evict_last|L2::evict_normal|L2::evict_first|L2::evict_unchanged "
     "L2::evict_first|L2::evict_unchanged? b64",
     "=b64 @ u32 u32"},
    {"createpolicy", "cvt L2 b64", "=b64 b64"},
    {"isspacep", "const|global|local|shared|shared::cta|shared::cluster|param|param::entry", "=p where"},
    {"cvta", "to const|global|local|shared|shared::cta|shared::cluster|param|param::entry T:u32|u64", "=T T"},
    {"cvta", "const|global|local|shared|shared::cta|shared::cluster|param|param::entry T:u32|u64", "=T name"},
    {"mapa", "shared::cluster? T:u32|u64", "=T name u32"},
    {"getctarank", "shared::cluster? u32|u64", "=u32 name"},

    {"atom", "$sem? $scope? $atomspace? and|or|xor L2::cache_hint? T:b32|b64", "=T @ T b64?"},
    {"atom", "$sem? $scope? $atomspace? exch L2::cache_hint? T:b32|b64|b128", "=T @ T b64?"},
    {"atom", "$sem? $scope? $atomspace? cas L2::cache_hint? T:b16|b32|b64|b128", "=T @ T T b64?"},
    {"atom", "$sem? $scope? $atomspace? add L2::cache_hint? T:u32|s32|u64|f32|f64", "=T @ T b64?"},
    {"atom", "$sem? $scope? $atomspace? add noftz L2::cache_hint? T:f16|f16x2|bf16|bf16x2", "=T @ T b64?"},
    {"atom", "$sem? $scope? $atomspace? inc|dec L2::cache_hint? T:u32", "=T @ T b64?"},
    {"atom", "$sem? $scope? $atomspace? min|max L2::cache_hint? T:u32|s32|u64|s64", "=T @ T b64?"},
    {"atom", "$sem? $scope? global? add L2::cache_hint? v2|v4 T:f32", "=T* @ T* b64?"},
    {"atom", "$sem? $scope? global? add|min|max noftz L2::cache_hint? v2|v4|v8 T:f16|bf16", "=T* @ T* b64?"},
    {"atom", "$sem? $scope? global? add|min|max noftz L2::cache_hint? v2|v4 T:f16x2|bf16x2", "=T* @ T* b64?"},
    {"red", "$sem? $scope? $atomspace? and|or|xor L2::cache_hint? T:b32|b64", "@ T b64?"},
    {"red", "$sem? $scope? $atomspace? add L2::cache_hint? T:u32|s32|u64|f32|f64", "@ T b64?"},
    {"red", "$sem? $scope? $atomspace? add noftz L2::cache_hint? T:f16|f16x2|bf16|bf16x2", "@ T b64?"},
    {"red", "$sem? $scope? $atomspace? inc|dec L2::cache_hint? T:u32", "@ T b64?"},
    {"red", "$sem? $scope? $atomspace? min|max L2::cache_hint? T:u32|s32|u64|s64", "@ T b64?"},
    {"red", "$sem? $scope? global? add L2::cache_hint? v2|v4 T:f32", "@ T* b64?"},
    {"red", "$sem? $scope? global? add|min|max noftz L2::cache_hint? v2|v4|v8 T:f16|bf16", "@ T* b64?"},
    {"red", "$sem? $scope? global? add|min|max noftz L2::cache_hint? v2|v4 T:f16x2|bf16x2", "@ T* b64?"},
    {"red", "async relaxed cluster shared::cluster? mbarrier::complete_tx::bytes inc|dec T:u32", "@ T @"},
    {"red", "async relaxed cluster shared::cluster? mbarrier::complete_tx::bytes min|max T:u32|s32", "@ T @"},
    {"red", "async relaxed cluster shared::cluster? mbarrier::complete_tx::bytes and|or|xor T:b32", "@ T @"},
    {"red", "async relaxed cluster shared::cluster? mbarrier::complete_tx::bytes add T:u32|s32|u64", "@ T @"},
};

}  // namespace

std::span<const Form> memory_forms() { return kForms; }

}  // namespace gpukernel::simgpu::ptx
